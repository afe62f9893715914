//! Import and export of the device's state.

use std::time::Instant;

use anyhow::Result;
use longhaul_common::id::Round;
use longhaul_engine::Moments;
use longhaul_member::activity::Activity;
use longhaul_member::message::{DeviceState, FromDevice};
use longhaul_member::sparse_ranges::SparseRanges;

use super::{Device, Stretch};
use crate::train::selection::Selector;

impl Device<'_> {
    pub(super) fn export(&mut self) -> Result<()> {
        let state = self.state()?;
        self.tell(FromDevice::State { next_round: self.next_round, state })
    }

    /// The synchronised parameters.
    pub(super) fn parameters(&self) -> Result<Vec<f32>> {
        Ok(self.share.synchronised(self.all_parameters()?))
    }

    /// The parameters of the due fragments.
    pub(super) fn due_parameters(&self, stretch: &mut Stretch) -> Result<SparseRanges> {
        let due = stretch.schedule.due_stretches(&self.layout(), stretch.round);
        let mut parameters = SparseRanges::reusing(std::mem::take(&mut stretch.memory), due);
        for (range, values) in parameters.iter_mut() {
            for (piece, start) in self.share.places(range) {
                self.engine.read_parameters(start, &mut values[piece])?;
            }
        }
        Ok(parameters)
    }

    pub(super) fn state(&self) -> Result<DeviceState> {
        let Moments { first, second, updates } = self.engine.moments_to_host()?;
        let (first, second) = (self.share.synchronised(first), self.share.synchronised(second));
        let parameters = self.parameters()?;
        let (factors, error) = match &self.low_rank {
            Some(low_rank) => (low_rank.shared(), low_rank.error().to_vec()),
            None => (Vec::new(), Vec::new()),
        };
        let selection = self.selector.as_ref().map(Selector::state).unwrap_or_default();
        let (first_moments, second_moments) = (first, second);
        Ok(DeviceState { parameters, first_moments, second_moments, updates, factors, error, selection })
    }

    /// Copies the state, which is counted as a pause of training; a checkpoint's other work runs concurrently.
    #[allow(clippy::disallowed_methods, reason = "measures what training stands still for")]
    pub(super) fn state_for_checkpoint(&self) -> Result<DeviceState> {
        let _copying = self.progress.begin(Activity::Checkpoint);
        let began = Instant::now();
        let state = self.state()?;
        self.progress.stood_still_for_checkpoint(began.elapsed());
        Ok(state)
    }

    pub(super) fn import(&mut self, state: &DeviceState) -> Result<()> {
        self.load_parameters(&state.parameters)?;
        let moments = Moments {
            first: state.first_moments.clone(),
            second: state.second_moments.clone(),
            updates: state.updates,
        };
        if let Some(low_rank) = &mut self.low_rank {
            low_rank.load_shared(&state.factors);
            low_rank.load_error(&state.error);
        }
        if let Some(selector) = &mut self.selector {
            selector.load(&state.selection);
        }
        self.load_moments(&moments)
    }

    pub(super) fn is_checkpoint(&self, round: Round) -> bool {
        // Clears the request in either case.
        self.barrier.take_checkpoint(round) || self.config.checkpoints_before(round.next())
    }
}
