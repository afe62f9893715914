//! Encodes what a rank hands on to others, and posts it, beside the device.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use longhaul_common::config::{Rounding, ValueFormat};
use longhaul_common::id::{Generation, WorkerId};
use longhaul_proto::codec::{CodecSpec, Encoder, Selection, SpecError};

use super::Network;
use super::pipe::{BoundaryFormats, meta_of};
use super::stage_mail::{About, Interrupted, LetterKind};

/// Values in a frame: the rest of a tensor is on its way while the first of it is checked, and a lost connection costs little.
pub(super) const PART_VALUES: usize = 1 << 18;

/// Letters that may wait to be encoded. More would not make the device faster: what it computes next has to be encoded as well.
const WAITING_MAX: usize = 2;

/// Why ranks cannot talk.
#[derive(Debug, thiserror::Error)]
pub enum PipeError {
    /// The codec does not have a format.
    #[error(transparent)]
    Format(#[from] SpecError),
    /// The system gives no thread.
    #[error("start a thread that encodes: {0}")]
    Thread(#[from] std::io::Error),
}

/// What a rank hands on in one session.
#[derive(Debug)]
pub(super) struct Outbox {
    letters: SyncSender<Letter>,
    /// Memory of letters that are sent.
    empty: Receiver<Vec<f32>>,
}

/// A tensor for another rank.
#[derive(Debug)]
struct Letter {
    to: WorkerId,
    about: About,
    /// All of them are finite.
    values: Vec<f32>,
}

impl Outbox {
    /// It ends when it is dropped and what waits is posted, or with the session.
    pub fn start(
        network: Arc<Network>,
        session: Generation,
        formats: BoundaryFormats,
    ) -> Result<Self, PipeError> {
        let to_nearest = |values| CodecSpec::new(Selection::All, values);
        let at_random = CodecSpec { rounding: Rounding::Stochastic, ..to_nearest(formats.gradients) };
        let of_gradients =
            if at_random.validate().is_ok() { at_random } else { to_nearest(formats.gradients) };
        let (letters, waiting) = sync_channel(WAITING_MAX);
        let (sent, empty) = sync_channel(WAITING_MAX);
        let mut post = Post {
            network,
            session,
            activations: Encoder::new(to_nearest(formats.activations))?,
            gradients: Encoder::new(of_gradients)?,
            exact: Encoder::new(to_nearest(ValueFormat::F32))?,
        };
        std::thread::Builder::new().name("stage-out".to_owned()).spawn(move || {
            for letter in waiting {
                if post.post(&letter).is_err() {
                    return;
                }
                // Where nobody takes it back, it is freed.
                let _ = sent.try_send(letter.values);
            }
        })?;
        Ok(Self { letters, empty })
    }

    /// Memory for a letter's values, with whatever was in it.
    pub fn paper(&self) -> Vec<f32> {
        self.empty.try_recv().unwrap_or_default()
    }

    /// Hands a tensor over, whose values are finite; waits while others wait.
    ///
    /// # Errors
    /// [`Interrupted`]: the session is over.
    pub fn post(&self, to: WorkerId, about: About, values: Vec<f32>) -> Result<(), Interrupted> {
        self.letters.send(Letter { to, about, values }).map_err(|_| Interrupted)
    }
}

/// The thread's own.
struct Post {
    network: Arc<Network>,
    session: Generation,
    activations: Encoder,
    gradients: Encoder,
    exact: Encoder,
}

impl Post {
    fn post(&mut self, letter: &Letter) -> Result<(), Interrupted> {
        let Letter { to, about, values } = letter;
        for (part, values) in (0..).zip(values.chunks(PART_VALUES)) {
            let encoder = match about.kind {
                LetterKind::Forward => &mut self.activations,
                LetterKind::Backward => &mut self.gradients,
                LetterKind::Number | LetterKind::Given => &mut self.exact,
            };
            let mut body = Vec::new();
            let encoded = encoder.encode(noise_of(*about, part), values, &mut body);
            // All values are finite, so there is no other reason than that this is not what was promised.
            encoded.map_err(|_| Interrupted)?;
            let meta = meta_of(self.session, self.network.worker, *about, part);
            self.network.send_stage(*to, meta, body.into())?;
        }
        Ok(())
    }
}

/// A seed of its own for each part of each letter.
fn noise_of(about: About, part: u32) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&about.exchange.to_le_bytes());
    for number in [about.chunk, about.micro_batch, part] {
        hasher.update(&number.to_le_bytes());
    }
    let mut seed = [0; 8];
    hasher.finalize_xof().fill(&mut seed);
    u64::from_le_bytes(seed)
}
