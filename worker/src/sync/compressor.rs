//! The numbers behind the round protocol's commands: means, residuals, encoding.

use std::collections::BTreeMap;

use bytes::Bytes;
use longhaul_common::config::{RunConfig, SyncPreset, ValueFormat};
use longhaul_common::id::{FragmentId, Round};
use longhaul_common::plan::FragmentLayout;
use longhaul_common::schedule::RoundSchedule;
use longhaul_proto::codec::{CodecSpec, DecodeError, Decoder, EncodeError, Encoder, Selection, SpecError};
use longhaul_proto::result::{self, Contribution, MeanError};

/// Encodes what leaves the site, and remembers what encoding left behind.
///
/// One residual for each fragment that this worker uploads. For each round: p = residual·decay + mean of the site's updates,
/// c = C(p), residual = p − decode(c) (error feedback; Stich et al. 2018, Karimireddy et al. 2019).
pub struct Compressor {
    layout: FragmentLayout,
    schedule: RoundSchedule,
    decay: f32,
    form: ResultForm,
    steady: Encoder,
    opening: Encoder,
    decoder: Decoder,
    residuals: BTreeMap<FragmentId, Vec<f32>>,
    /// Kept until the round's result says whether it counted.
    sent: BTreeMap<(Round, FragmentId), Bytes>,
    scratch: Vec<f32>,
}

/// How an owner publishes: see [`result`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResultForm {
    Bundle,
    Mean,
}

/// A member's update of one fragment.
pub enum Local<'a> {
    /// In this process.
    Own(&'a [f32]),
    /// As the frame of another member brought it: f32, little-endian.
    Received(&'a [u8]),
}

/// Why a fragment could not be compressed.
#[derive(Debug, thiserror::Error)]
pub enum CompressError {
    /// Training diverged: the update is not finite.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// Another member's update has the wrong length.
    #[error("an update of {got} values for a fragment of {expected}")]
    Length {
        /// What came.
        got: usize,
        /// What the fragment holds.
        expected: usize,
    },
}

impl Compressor {
    /// The compressor of a run.
    ///
    /// # Errors
    /// A combination of selection and format that the codec does not have.
    pub fn new(config: &RunConfig, layout: FragmentLayout) -> Result<Self, SpecError> {
        let sync = &config.sync;
        let values = config.wire_values();
        let top_k = |keep| match sync.preset {
            SyncPreset::Dense => Selection::All,
            SyncPreset::SparseLocal => Selection::TopK { chunk: sync.chunk, keep },
        };
        let dense = sync.preset == SyncPreset::Dense;
        let exact_enough = matches!(values, ValueFormat::F32 | ValueFormat::Bf16);
        Ok(Self {
            layout,
            schedule: config.round_schedule(),
            decay: if dense { 1.0 } else { sync.error_decay },
            form: if dense && exact_enough { ResultForm::Mean } else { ResultForm::Bundle },
            steady: Encoder::new(CodecSpec { selection: top_k(sync.keep), values })?,
            opening: Encoder::new(CodecSpec { selection: top_k(sync.opening_keep), values })?,
            decoder: Decoder::default(),
            residuals: BTreeMap::new(),
            sent: BTreeMap::new(),
            scratch: Vec::new(),
        })
    }

    /// The site's contribution to a fragment: the weighted mean of its members' updates, in their order, through error feedback.
    ///
    /// # Errors
    /// [`CompressError`]; the residual is then unchanged.
    pub fn compress(
        &mut self,
        round: Round,
        fragment: FragmentId,
        locals: &[(u32, Local<'_>)],
    ) -> Result<Bytes, CompressError> {
        let len = self.layout.range(fragment).len();
        weighted_mean(locals, len, &mut self.scratch)?;
        let decay = self.decay;
        self.encode(round, fragment, decay)
    }

    /// Contributes again what [`Self::give_back`] returned: the residual alone, which already holds the round's update.
    ///
    /// # Errors
    /// [`CompressError`]; the residual is then unchanged.
    pub fn compress_again(&mut self, round: Round, fragment: FragmentId) -> Result<Bytes, CompressError> {
        self.scratch.clear();
        self.scratch.resize(self.layout.range(fragment).len(), 0.0);
        self.encode(round, fragment, 1.0)
    }

    fn encode(&mut self, round: Round, fragment: FragmentId, decay: f32) -> Result<Bytes, CompressError> {
        let encoder = if self.schedule.is_opening(round) { &mut self.opening } else { &mut self.steady };
        let residual =
            self.residuals.entry(fragment).or_insert_with(|| vec![0.0; self.layout.range(fragment).len()]);
        let mut body = Vec::new();
        encoder.encode_with_feedback(&self.scratch, residual, decay, &mut body)?;
        let body = Bytes::from(body);
        self.sent.insert((round, fragment), body.clone());
        Ok(body)
    }

    /// Puts what was sent for a fragment back into its residual: it was late, or the round is void.
    ///
    /// # Errors
    /// Never for bytes that this compressor made.
    pub fn give_back(&mut self, round: Round, fragment: FragmentId) -> Result<(), DecodeError> {
        let Some(body) = self.sent.remove(&(round, fragment)) else { return Ok(()) };
        let residual =
            self.residuals.entry(fragment).or_insert_with(|| vec![0.0; self.layout.range(fragment).len()]);
        self.decoder.decode_add(&body, residual.len(), 1.0, residual)
    }

    /// Forgets what was sent up to a round: its result named this site.
    pub fn forget_through(&mut self, round: Round) {
        self.sent = self.sent.split_off(&(round.next(), FragmentId(0)));
    }

    /// The owner's part: what a round made of a fragment, ready to be published.
    ///
    /// # Errors
    /// A contribution that does not decode, or a mean that is not finite.
    pub fn reduce(
        &mut self,
        fragment: FragmentId,
        contributions: &[Contribution],
    ) -> Result<Vec<u8>, MeanError> {
        let len = self.layout.range(fragment).len();
        match self.form {
            ResultForm::Bundle => {
                // Decoded once here, so that one member's damage is refused by the owner and not met by all.
                for contribution in contributions {
                    self.decoder.decode(&contribution.body, len)?;
                }
                Ok(result::bundle(contributions))
            }
            ResultForm::Mean => result::mean(contributions, len, &mut self.decoder, &mut self.steady),
        }
    }

    /// The decoder, for applying results.
    pub fn decoder(&mut self) -> &mut Decoder {
        &mut self.decoder
    }

    /// The residuals that this worker keeps, by fragment.
    #[must_use]
    pub fn residuals(&self) -> &BTreeMap<FragmentId, Vec<f32>> {
        &self.residuals
    }

    /// Takes residuals over from a checkpoint, in place of all there were; those of a wrong length are left out.
    pub fn restore_residuals(&mut self, residuals: BTreeMap<FragmentId, Vec<f32>>) {
        self.sent.clear();
        self.residuals = residuals
            .into_iter()
            .filter(|(fragment, values)| values.len() == self.layout.range(*fragment).len())
            .collect();
    }

    /// Whether nothing is lost between input and wire, so that a residual stays zero unless a contribution comes back.
    #[must_use]
    pub fn is_lossless(&self) -> bool {
        self.steady.spec().selection == Selection::All && self.steady.spec().values == ValueFormat::F32
    }
}

/// Σ wᵢ·xᵢ / Σ w, in the order given, in f32: the stated reduction order within a site.
fn weighted_mean(locals: &[(u32, Local<'_>)], len: usize, mean: &mut Vec<f32>) -> Result<(), CompressError> {
    let total: u64 = locals.iter().map(|(weight, _)| u64::from(*weight)).sum();
    mean.clear();
    mean.resize(len, 0.0);
    for (weight, local) in locals {
        let share = *weight as f32 / total.max(1) as f32;
        match local {
            Local::Own(values) => {
                same_length(values.len(), len)?;
                mean.iter_mut().zip(*values).for_each(|(m, v)| *m += share * v);
            }
            Local::Received(bytes) => {
                same_length(bytes.len() / 4 + bytes.len() % 4, len)?;
                let values = bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word));
                mean.iter_mut().zip(values).for_each(|(m, v)| *m += share * v);
            }
        }
    }
    Ok(())
}

fn same_length(got: usize, expected: usize) -> Result<(), CompressError> {
    if got == expected { Ok(()) } else { Err(CompressError::Length { got, expected }) }
}
