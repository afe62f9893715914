//! Contributions of gradient columns: by fragment, and never as a vector of a whole weight.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use bytes::Bytes;
use longhaul_common::config::ValueFormat;
use longhaul_common::id::{FragmentId, Round};
use longhaul_proto::codec::ColumnGradient;
use longhaul_proto::codec::{CodecSpec, ColumnUpdate, Decoder, Encoder, Selection, Update};

use super::contributions::CARRIED_SHARE;
use super::layouts::Layouts;
use crate::reduce::mean::norm;

/// This member's contributions, and the parts that reached no result.
#[derive(Debug, Default)]
pub struct ColumnContributions {
    contributed: BTreeMap<Round, BTreeMap<FragmentId, ColumnUpdate>>,
    carried: BTreeMap<FragmentId, ColumnUpdate>,
}

impl ColumnContributions {
    /// Starts with this carry and no contributions.
    #[must_use]
    pub fn with_carried(carried: BTreeMap<FragmentId, ColumnUpdate>) -> Self {
        Self { carried, ..Self::default() }
    }

    /// Cuts a gradient into fragments and adds the carry, up to the share that owners accept ([`CARRIED_SHARE`]). Without samples, nothing is sent, and the
    /// gradient waits.
    ///
    /// # Errors
    /// The gradient is not one of this model.
    pub fn contribute(
        &mut self,
        round: Round,
        gradient: &ColumnGradient,
        layouts: &Layouts,
        weight: u32,
        norm_limit: f64,
    ) -> Result<()> {
        let layout = layouts.of(round);
        let mut updates = BTreeMap::new();
        for fragment in layout.fragments() {
            let cut = gradient.cut(layout.range(fragment));
            let update = cut.context("a gradient of columns is not of this model")?;
            let update =
                if weight > 0 { self.with_carried_over(fragment, update, norm_limit) } else { update };
            updates.insert(fragment, update);
        }
        self.contributed.insert(round, updates);
        Ok(())
    }

    /// Adds the fragment's carry to an update, up to the share that the owner accepts.
    fn with_carried_over(
        &mut self,
        fragment: FragmentId,
        update: ColumnUpdate,
        norm_limit: f64,
    ) -> ColumnUpdate {
        // A carry of other matrices comes from a checkpoint of another configuration.
        let carried = self.carried.remove(&fragment).filter(|carried| carried.is_like(&update));
        let Some(carried) = carried else { return update };
        let (room, size) = (CARRIED_SHARE * norm_limit * norm(update.values()), norm(carried.values()));
        let share = if norm_limit == 0.0 || size <= room { 1.0 } else { (room / size) as f32 };
        let Some(sum) = carried.plus(share, &update) else { return update };
        if share < 1.0 {
            self.carried.insert(fragment, carried.scaled(1.0 - share));
        }
        sum
    }

    /// Returns the contribution to a fragment in a round.
    #[must_use]
    pub fn of(&self, round: Round, fragment: FragmentId) -> Option<&ColumnUpdate> {
        self.contributed.get(&round)?.get(&fragment)
    }

    /// Returns it as a lossless frame of a site's member.
    ///
    /// # Errors
    /// The update is not finite.
    pub fn frame_of(&self, round: Round, fragment: FragmentId) -> Result<Option<Bytes>> {
        self.of(round, fragment).map(|update| exact_frame(update).map(Bytes::from)).transpose()
    }

    /// Adds a contribution without a result to the next one.
    pub fn carry_over(&mut self, round: Round, fragment: FragmentId) {
        if let Some(update) = self.of(round, fragment).cloned() {
            self.carry(fragment, update, 1.0);
        }
    }

    /// Adds `factor` times an unsent update to the next contribution.
    pub fn carry(&mut self, fragment: FragmentId, update: ColumnUpdate, factor: f32) {
        let update = update.scaled(factor);
        let sum = match self.carried.remove(&fragment) {
            Some(carried) => carried.plus(1.0, &update).unwrap_or(update),
            None => update,
        };
        self.carried.insert(fragment, sum);
    }

    /// Drops contributions up to this round.
    pub fn release(&mut self, round: Round) {
        self.contributed = self.contributed.split_off(&round.next());
    }

    /// Returns the carry by fragment.
    #[must_use]
    pub fn carried(&self) -> &BTreeMap<FragmentId, ColumnUpdate> {
        &self.carried
    }
}

/// Encodes an update without loss.
///
/// # Errors
/// The update is not finite.
pub fn exact_frame(update: &ColumnUpdate) -> Result<Vec<u8>> {
    let mut encoder = Encoder::new(CodecSpec::new(Selection::All, ValueFormat::F32))?;
    let mut frame = Vec::new();
    encoder
        .encode_columns(0, update, None, 0.0, &mut frame)
        .context("the update of columns is not finite")?;
    Ok(frame)
}

/// Decodes an update of `len` values; `None` if the frame is invalid or not of columns.
#[must_use]
pub fn of_frame(frame: &[u8], len: usize) -> Option<ColumnUpdate> {
    match Decoder::new().decode(frame, len).ok()? {
        Update::Columns(update) => Some(update.clone()),
        Update::Dense(_) | Update::Sparse { .. } => None,
    }
}

#[cfg(test)]
mod tests;
