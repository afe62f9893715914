//! Compression of updates of columns, with memories of columns.

use std::collections::BTreeMap;

use longhaul_common::config::SelectionRule;
use longhaul_common::id::{FragmentId, Round};
use longhaul_proto::codec::{ColumnUpdate, Encoder};

use super::{CompressError, Compressor, Job, Local};

/// A fragment's memory during compression.
pub(super) struct ColumnTask {
    before: Option<ColumnUpdate>,
    left: Option<ColumnUpdate>,
    is_remembered: bool,
}

impl ColumnTask {
    /// Encodes the mean plus `decay` times the memory into `frame`, with `seed`.
    ///
    /// # Errors
    /// [`CompressError`]; the memory is then unchanged.
    pub fn compress(
        &mut self,
        job: &Job<'_>,
        len: usize,
        encoder: &mut Encoder,
        (seed, decay): (u64, f32),
        frame: &mut Vec<u8>,
    ) -> Result<(), CompressError> {
        frame.clear();
        let updates = job.locals.iter().map(|(weight, local)| match local {
            Local::Columns(update) => Ok((*weight, update.clone())),
            Local::Own(_) | Local::Received(_) => Err(CompressError::Kinds),
        });
        let updates = updates.collect::<Result<Vec<_>, _>>()?;
        if updates.is_empty() {
            // No member had a valid update: the memory stays unchanged.
            encoder.encode(seed, &vec![0.0; len], frame)?;
            self.left.clone_from(&self.before);
            return Ok(());
        }
        let mean = weighted_mean(&updates).ok_or(CompressError::Kinds)?;
        // A residual of another configuration is useless.
        let residual = self.before.as_ref().filter(|before| before.is_like(&mean));
        let rest = encoder.encode_columns(seed, &mean, residual, decay, frame)?;
        self.left = rest.filter(|_| self.is_remembered);
        Ok(())
    }
}

impl Compressor {
    /// Takes out the memory of this fragment for compression.
    pub(super) fn take_up_columns(&mut self, fragment: FragmentId) -> ColumnTask {
        let is_remembered = self.config.has_residual();
        ColumnTask { before: self.columns.kept.remove(&fragment), left: None, is_remembered }
    }

    /// Puts the new memory back, or the old one after a failure.
    pub(super) fn put_down_columns(
        &mut self,
        (round, fragment): (Round, FragmentId),
        task: ColumnTask,
        is_done: bool,
    ) {
        let ColumnTask { before, left, .. } = task;
        if is_done {
            self.columns.kept.extend(left.map(|columns| (fragment, columns)));
            self.columns.before.insert(fragment, (round, before));
        } else {
            self.columns.kept.extend(before.map(|columns| (fragment, columns)));
        }
    }

    /// Restores the memory from before the compression of this round.
    pub(super) fn retract_columns(&mut self, round: Round, fragment: FragmentId) {
        if let Some((of, before)) = self.columns.before.remove(&fragment)
            && of == round
        {
            self.columns.kept.remove(&fragment);
            self.columns.kept.extend(before.map(|columns| (fragment, columns)));
        }
    }

    /// Reports whether all updates are of columns.
    #[must_use]
    pub fn is_of_columns(&self) -> bool {
        self.config.selection == SelectionRule::Columns
    }

    /// As [`Self::take_residual`], for updates of columns.
    pub fn take_columns(&mut self, fragment: FragmentId) -> Option<ColumnUpdate> {
        self.columns.before.remove(&fragment);
        self.columns.kept.remove(&fragment)
    }

    /// Returns this worker's unsent columns, by fragment.
    #[must_use]
    pub fn columns(&self) -> &BTreeMap<FragmentId, ColumnUpdate> {
        &self.columns.kept
    }

    /// Takes them over from a checkpoint.
    pub fn restore_columns(&mut self, columns: BTreeMap<FragmentId, ColumnUpdate>) {
        self.columns.before.clear();
        self.columns.kept = columns;
    }
}

/// Σ wᵢ·xᵢ / Σ w, in the given order; `None` for no updates or different models. A single member's update stays as it is.
fn weighted_mean(updates: &[(u32, ColumnUpdate)]) -> Option<ColumnUpdate> {
    if let [(_, update)] = updates {
        return Some(update.clone());
    }
    let total: u64 = updates.iter().map(|(weight, _)| u64::from(*weight)).sum();
    let share = |weight: u32| weight as f32 / total as f32;
    let mut scaled = updates.iter().map(|(weight, update)| update.clone().scaled(share(*weight)));
    let first = scaled.next()?;
    scaled.try_fold(first, |sum, update| sum.plus(1.0, &update))
}
