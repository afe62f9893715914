//! Encodes and sends a rank's messages, concurrently with the device.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use longhaul_common::config::{BOUNDARY_CHUNK, Rounding, ValueFormat};
use longhaul_common::id::{Generation, WorkerId};
use longhaul_peer::Network;
use longhaul_peer::stage_inbox::{About, Interrupted, StageKind};
use longhaul_proto::codec::{CodecSpec, Decoder, EncodeError, Encoder, Selection, SpecError, TopK, Update};

use super::activation_cache::ActivationCache;
use super::drawn::draw;
use super::pipe::BoundaryFormats;

/// Values per frame: later parts are in flight while the first is verified, and a lost connection costs little.
pub(super) const PART_VALUES: usize = 1 << 18;

/// Limit on messages waiting for encoding. More would not speed up the device, as its next messages need encoding as well.
const WAITING_MAX: usize = 2;

/// Ranks cannot exchange messages.
#[derive(Debug, thiserror::Error)]
pub enum PipeError {
    /// The codec lacks a format.
    #[error(transparent)]
    Format(#[from] SpecError),
    /// The system cannot create a thread.
    #[error("start a thread that encodes: {0}")]
    Thread(#[from] std::io::Error),
}

/// The outgoing messages of a rank in one session.
#[derive(Debug)]
pub(super) struct StageSender {
    messages: SyncSender<StageMessage>,
    /// Buffers of sent messages, for reuse.
    empty: Receiver<Vec<f32>>,
}

/// A tensor for another rank.
#[derive(Debug)]
pub(super) struct StageMessage {
    pub to: WorkerId,
    pub about: About,
    /// For cached activations: their sequences.
    pub sequences: Vec<u64>,
    /// The values, all finite.
    pub values: Vec<f32>,
}

impl StageSender {
    /// Starts the thread. It ends once this is dropped and the queue is sent, or with the session.
    pub fn start(
        network: Arc<Network>,
        session: Generation,
        copy: WorkerId,
        formats: BoundaryFormats,
        chunks: u32,
    ) -> Result<Self, PipeError> {
        let (messages, waiting) = sync_channel(WAITING_MAX);
        let (sent, empty) = sync_channel(WAITING_MAX);
        let recall = formats.differences.map(|differences| ActivationCache::new(differences, chunks));
        let differences = recall.as_ref().map_or(formats.activations, ActivationCache::values);
        let mut post = Post {
            network,
            session,
            copy,
            activations: Encoder::new(to_nearest(formats.activations))?,
            gradients: Encoder::new(of_gradients(formats))?,
            returned: Encoder::new(at_random(formats.gradients))?,
            differences: Encoder::new(to_nearest(differences))?,
            exact: Encoder::new(to_nearest(ValueFormat::F32))?,
            drawn: (formats.gradient_keep < BOUNDARY_CHUNK)
                .then_some((formats.gradient_keep as usize, Vec::new())),
            recall,
            decoder: Decoder::default(),
        };
        std::thread::Builder::new().name("stage-out".to_owned()).spawn(move || {
            for mut message in waiting {
                if post.post(&mut message).is_err() {
                    return;
                }
                // A full or closed queue drops the buffer.
                let _ = sent.try_send(message.values);
            }
        })?;
        Ok(Self { messages, empty })
    }

    /// Returns a buffer for a message's values, with arbitrary content.
    pub fn paper(&self) -> Vec<f32> {
        self.empty.try_recv().unwrap_or_default()
    }

    /// Queues a tensor of finite values; blocks while the queue is full.
    ///
    /// # Errors
    /// [`Interrupted`]: the session is over.
    pub fn post(&self, message: StageMessage) -> Result<(), Interrupted> {
        self.messages.send(message).map_err(|_| Interrupted)
    }
}

fn to_nearest(values: ValueFormat) -> CodecSpec {
    CodecSpec::new(Selection::All, values)
}

/// Rounds stochastically where the format can, so that the sum over micro-batches is unbiased. With sparse gradients, the values kept by [`draw`] are the largest.
fn of_gradients(formats: BoundaryFormats) -> CodecSpec {
    let all = at_random(formats.gradients);
    if formats.gradient_keep == BOUNDARY_CHUNK {
        return all;
    }
    CodecSpec {
        selection: Selection::TopK(TopK { chunk: BOUNDARY_CHUNK, keep: formats.gradient_keep }),
        ..all
    }
}

/// Rounds to nearest if the format has no stochastic rounding.
fn at_random(values: ValueFormat) -> CodecSpec {
    let at_random = CodecSpec { rounding: Rounding::Stochastic, ..to_nearest(values) };
    if at_random.validate().is_ok() { at_random } else { to_nearest(values) }
}

/// The state of the thread.
struct Post {
    network: Arc<Network>,
    session: Generation,
    /// The first worker of this copy of the model.
    copy: WorkerId,
    activations: Encoder,
    gradients: Encoder,
    /// For gradients of a lent parameter, sent in full: nothing is left over for a later message.
    returned: Encoder,
    differences: Encoder,
    exact: Encoder,
    /// For sparse gradients: the values kept per chunk, and a buffer for the selection.
    drawn: Option<(usize, Vec<f32>)>,
    recall: Option<ActivationCache>,
    decoder: Decoder,
}

impl Post {
    fn post(&mut self, message: &mut StageMessage) -> Result<(), Interrupted> {
        let StageMessage { to, about, sequences, values } = message;
        if sequences.is_empty() || self.recall.is_none() {
            return self.send(*to, *about, values, false, None);
        }
        let mut recall = self.recall.take().ok_or(Interrupted)?;
        let is_known = recall.knows(about.chunk, sequences);
        if is_known {
            recall.subtract(about.chunk, sequences, values);
        }
        let mut received = Vec::with_capacity(values.len());
        let sent = self.send(*to, *about, values, is_known, Some(&mut received));
        if is_known {
            recall.add(about.chunk, sequences, &mut received);
        }
        recall.remember(about.chunk, sequences, &received);
        self.recall = Some(recall);
        sent
    }

    /// Sends a message in parts; `received` gets the values as the receiver decodes them.
    fn send(
        &mut self,
        to: WorkerId,
        about: About,
        values: &[f32],
        is_difference: bool,
        mut received: Option<&mut Vec<f32>>,
    ) -> Result<(), Interrupted> {
        for (part, values) in (0..).zip(values.chunks(PART_VALUES)) {
            // All values are finite, so the only possible error is a broken invariant.
            let body = self.encode(about, part, values, is_difference).map_err(|_| Interrupted)?;
            if let Some(received) = &mut received
                && let Ok(Update::Dense(part)) = self.decoder.decode(&body, values.len())
            {
                received.extend_from_slice(part);
            }
            let meta = about.to_meta(self.session, self.network.worker(), part);
            self.network.send_stage(to, meta, body.into())?;
        }
        Ok(())
    }

    fn encode(
        &mut self,
        about: About,
        part: u32,
        values: &[f32],
        is_difference: bool,
    ) -> Result<Vec<u8>, EncodeError> {
        let (seed, mut body) = (noise_of(self.copy, about, part), Vec::new());
        match (about.kind, &mut self.drawn) {
            (StageKind::Forward, _) if is_difference => self.differences.encode(seed, values, &mut body)?,
            (StageKind::Forward, _) => self.activations.encode(seed, values, &mut body)?,
            (StageKind::Backward, Some((keep, drawn))) => {
                drawn.clear();
                drawn.extend_from_slice(values);
                draw(drawn, BOUNDARY_CHUNK as usize, *keep, seed);
                self.gradients.encode(seed, drawn, &mut body)?;
            }
            (StageKind::Backward, None) => self.gradients.encode(seed, values, &mut body)?,
            (StageKind::Returned, _) => self.returned.encode(seed, values, &mut body)?,
            (StageKind::Number | StageKind::Given, _) => self.exact.encode(seed, values, &mut body)?,
        }
        Ok(body)
    }
}

/// Returns a distinct seed for each part, message and copy of the model, so that rounding errors of copies differ.
fn noise_of(copy: WorkerId, about: About, part: u32) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&copy.0.to_le_bytes());
    hasher.update(&about.exchange.to_le_bytes());
    for number in [about.chunk, about.micro_batch, part] {
        hasher.update(&number.to_le_bytes());
    }
    let mut seed = [0; 8];
    hasher.finalize_xof().fill(&mut seed);
    u64::from_le_bytes(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_parts_round_each_in_their_own_way_and_members_of_one_copy_alike() {
        let about = About { exchange: 3, kind: StageKind::Backward, chunk: 0, micro_batch: 1 };
        let noise = |copy, part| noise_of(WorkerId(copy), about, part);
        assert_eq!(noise(1, 0), noise(1, 0));
        assert_ne!(noise(1, 0), noise(2, 0));
        assert_ne!(noise(1, 0), noise(1, 1));
    }
}
