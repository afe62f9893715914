//! The numbers behind the round protocol's commands: means, residuals, encoding.

use std::collections::BTreeMap;

use bytes::Bytes;
use longhaul_common::config::{RunConfig, SyncPreset, ValueFormat};
use longhaul_common::id::{FragmentId, Round};
use longhaul_common::plan::FragmentLayout;
use longhaul_common::schedule::RoundSchedule;
use longhaul_proto::codec::{CodecSpec, Decoder, EncodeError, Encoder, Selection, SpecError};
use longhaul_proto::round::{Contribution, Reduction};

use super::mean::add_weighted_mean;

/// The presets' chains draw nothing at random.
const NO_SEED: u64 = 0;

/// Encodes what leaves the site, and remembers what encoding left behind.
///
/// One residual for each fragment that this worker uploads. For each round: p = residual·decay + mean of the site's updates,
/// c = C(p), residual = p − decode(c) (error feedback; Stich et al. 2018, Karimireddy et al. 2019).
pub struct Compressor {
    layout: FragmentLayout,
    schedule: RoundSchedule,
    decay: f32,
    steady: Encoder,
    opening: Encoder,
    decoder: Decoder,
    residuals: BTreeMap<FragmentId, Vec<f32>>,
    /// Residuals as they were before the compression of a round that is not decided yet.
    before: BTreeMap<FragmentId, (Round, Vec<f32>)>,
    scratch: Vec<f32>,
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
        Ok(Self {
            layout,
            schedule: config.round_schedule(),
            decay: if dense { 1.0 } else { sync.error_decay },
            steady: Encoder::new(CodecSpec::new(top_k(sync.keep), values))?,
            opening: Encoder::new(CodecSpec::new(top_k(sync.opening_keep), values))?,
            decoder: Decoder::default(),
            residuals: BTreeMap::new(),
            before: BTreeMap::new(),
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
        let encoder = if self.schedule.is_opening(round) { &mut self.opening } else { &mut self.steady };
        let residual = self.residuals.entry(fragment).or_insert_with(|| vec![0.0; len]);
        let (_, before) = self.before.entry(fragment).or_default();
        before.clone_from(residual);
        let mut body = Vec::new();
        encoder.encode_with_feedback(NO_SEED, &self.scratch, residual, self.decay, &mut body)?;
        self.before.entry(fragment).and_modify(|(of, _)| *of = round);
        Ok(body.into())
    }

    /// Puts a residual back to what it was before the compression of this round, bit for bit: it did not count.
    pub fn retract(&mut self, round: Round, fragment: FragmentId) {
        if let Some((of, before)) = self.before.remove(&fragment)
            && of == round
        {
            self.residuals.insert(fragment, before);
        }
    }

    /// Gives a residual away, as somebody else uploads the fragment from now on.
    pub fn take_residual(&mut self, fragment: FragmentId) -> Option<Vec<f32>> {
        self.before.remove(&fragment);
        self.residuals.remove(&fragment)
    }

    /// The owner's part where results are means: the weighted mean of the contributions that decode, in site order, encoded.
    ///
    /// # Errors
    /// A mean that is not finite.
    pub fn reduce(
        &mut self,
        fragment: FragmentId,
        contributions: &[Contribution],
    ) -> Result<Bytes, EncodeError> {
        let len = self.layout.range(fragment).len();
        let parts: Vec<_> = contributions.iter().map(|c| (c.weight, &c.body)).collect();
        self.scratch.clear();
        self.scratch.resize(len, 0.0);
        add_weighted_mean(&parts, 1.0, &mut self.decoder, &mut self.scratch);
        let mut body = Vec::new();
        self.steady.encode(NO_SEED, &self.scratch, &mut body)?;
        Ok(body.into())
    }

    /// In which form the run's results are published.
    #[must_use]
    pub fn reduction(config: &RunConfig) -> Reduction {
        let exact_enough = matches!(config.wire_values(), ValueFormat::F32 | ValueFormat::Bf16);
        match config.sync.preset {
            SyncPreset::Dense if exact_enough => Reduction::Mean,
            SyncPreset::Dense | SyncPreset::SparseLocal => Reduction::Bundle,
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
        self.before.clear();
        self.residuals = residuals
            .into_iter()
            .filter(|(fragment, values)| values.len() == self.layout.range(*fragment).len())
            .collect();
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
