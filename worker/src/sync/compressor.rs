//! A site's contribution: the mean of its members, error feedback, encoding.

use std::collections::BTreeMap;

use bytes::Bytes;
use longhaul_common::config::SyncConfig;
use longhaul_common::id::{FragmentId, Round};
use longhaul_proto::codec::{EncodeError, Encoder, SpecError};

use super::chain::{is_lossless, opening, uplink};
use super::layouts::Layouts;

/// Encodes what leaves the site, and remembers what encoding left behind.
///
/// One residual for each fragment that this worker uploads. For each round: p = residual·decay + mean of the site's updates,
/// c = C(p), residual = p − decode(c) (error feedback; Stich et al. 2018, Karimireddy et al. 2019).
pub struct Compressor {
    layouts: Layouts,
    decay: f32,
    steady: Encoder,
    opening: Encoder,
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
    pub fn new(config: &SyncConfig, layouts: Layouts) -> Result<Self, SpecError> {
        Ok(Self {
            layouts,
            decay: config.error_decay,
            steady: Encoder::new(uplink(config))?,
            opening: Encoder::new(opening(config))?,
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
        let len = self.layouts.of(round).range(fragment).len();
        weighted_mean(locals, len, &mut self.scratch)?;
        let encoder =
            if self.layouts.schedule().is_opening(round) { &mut self.opening } else { &mut self.steady };
        let mut body = Vec::new();
        if self.decay == 0.0 || is_lossless(encoder.spec()) && !self.residuals.contains_key(&fragment) {
            encoder.encode(&self.scratch, &mut body)?;
            return Ok(body.into());
        }
        let residual = self.residuals.entry(fragment).or_insert_with(|| vec![0.0; len]);
        let (_, before) = self.before.entry(fragment).or_default();
        before.clone_from(residual);
        encoder.encode_with_feedback(&self.scratch, residual, self.decay, &mut body)?;
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
            .filter(|(fragment, values)| values.len() == self.layouts.model().range(*fragment).len())
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
