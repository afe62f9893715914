//! Contributions that are columns of gradients: by fragment, and never as a vector of a whole weight.

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

/// What this member has contributed, and what was in no result.
#[derive(Debug, Default)]
pub struct ColumnContributions {
    contributed: BTreeMap<Round, BTreeMap<FragmentId, ColumnUpdate>>,
    carried: BTreeMap<FragmentId, ColumnUpdate>,
}

impl ColumnContributions {
    /// Nothing is contributed yet, and this is carried over.
    #[must_use]
    pub fn with_carried(carried: BTreeMap<FragmentId, ColumnUpdate>) -> Self {
        Self { carried, ..Self::default() }
    }

    /// Cuts a gradient into fragments, and adds what is carried over, as much as their owners will accept ([`CARRIED_SHARE`]); where it stands for no samples, nothing is sent, and that waits on.
    ///
    /// # Errors
    /// When the gradient is not one of this model.
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

    /// Adds to an update what is carried over of its fragment, as much as the owner will accept.
    fn with_carried_over(
        &mut self,
        fragment: FragmentId,
        update: ColumnUpdate,
        norm_limit: f64,
    ) -> ColumnUpdate {
        // That of other matrices was of another configuration, from whose checkpoint this run goes on.
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

    /// What was contributed to a round, of a fragment.
    #[must_use]
    pub fn of(&self, round: Round, fragment: FragmentId) -> Option<&ColumnUpdate> {
        self.contributed.get(&round)?.get(&fragment)
    }

    /// The same as the frame of a member of a site, which loses nothing.
    ///
    /// # Errors
    /// It is not finite.
    pub fn frame_of(&self, round: Round, fragment: FragmentId) -> Result<Option<Bytes>> {
        self.of(round, fragment).map(|update| exact_frame(update).map(Bytes::from)).transpose()
    }

    /// What was in no result is part of the next contribution.
    pub fn carry_over(&mut self, round: Round, fragment: FragmentId) {
        if let Some(update) = self.of(round, fragment).cloned() {
            self.carry(fragment, update, 1.0);
        }
    }

    /// Puts `factor` times what was not sent into the next contribution.
    pub fn carry(&mut self, fragment: FragmentId, update: ColumnUpdate, factor: f32) {
        let update = update.scaled(factor);
        let sum = match self.carried.remove(&fragment) {
            Some(carried) => carried.plus(1.0, &update).unwrap_or(update),
            None => update,
        };
        self.carried.insert(fragment, sum);
    }

    /// Nobody asks for rounds up to this one any more.
    pub fn release(&mut self, round: Round) {
        self.contributed = self.contributed.split_off(&round.next());
    }

    /// What is carried over, by fragment.
    #[must_use]
    pub fn carried(&self) -> &BTreeMap<FragmentId, ColumnUpdate> {
        &self.carried
    }
}

/// An update as bytes, of which it can be made again.
///
/// # Errors
/// It is not finite.
pub fn exact_frame(update: &ColumnUpdate) -> Result<Vec<u8>> {
    let mut encoder = Encoder::new(CodecSpec::new(Selection::All, ValueFormat::F32))?;
    let mut frame = Vec::new();
    encoder
        .encode_columns(0, update, None, 0.0, &mut frame)
        .context("the update of columns is not finite")?;
    Ok(frame)
}

/// The update of `len` values that bytes were made of; none where they are of no such update.
#[must_use]
pub fn of_frame(frame: &[u8], len: usize) -> Option<ColumnUpdate> {
    match Decoder::new().decode(frame, len).ok()? {
        Update::Columns(update) => Some(update.clone()),
        Update::Dense(_) | Update::Sparse { .. } => None,
    }
}

#[cfg(test)]
mod tests;
