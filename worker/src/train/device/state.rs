//! What a device holds, in and out.

use anyhow::Result;
use longhaul_common::id::Round;

use super::{Device, Stretch};
use crate::engine::Moments;
use crate::train::message::{DeviceState, FromDevice};
use crate::train::stretches::Stretches;

impl Device<'_> {
    pub(super) fn export(&mut self) -> Result<()> {
        let state = self.state()?;
        self.tell(FromDevice::State { next_round: self.next_round, state })
    }

    pub(super) fn parameters(&self) -> Result<Vec<f32>> {
        let mut parameters = Vec::new();
        self.engine.parameters_to_host(&mut parameters)?;
        Ok(parameters)
    }

    /// The parameters of the fragments that are due.
    pub(super) fn due_parameters(&self, stretch: &Stretch) -> Result<Stretches> {
        let due = stretch.schedule.due_stretches(&self.layout(), stretch.round);
        let mut parameters = Stretches::zeros(due);
        for (range, values) in parameters.iter_mut() {
            self.engine.read_parameters(range.start, values)?;
        }
        Ok(parameters)
    }

    pub(super) fn state(&self) -> Result<DeviceState> {
        let Moments { first, second, updates } = self.engine.moments_to_host()?;
        let parameters = self.parameters()?;
        let (factors, error) = match &self.low_rank {
            Some(low_rank) => (low_rank.shared(), low_rank.error().to_vec()),
            None => (Vec::new(), Vec::new()),
        };
        Ok(DeviceState { parameters, first_moments: first, second_moments: second, updates, factors, error })
    }

    pub(super) fn import(&mut self, state: &DeviceState) -> Result<()> {
        self.engine.load_parameters(&state.parameters)?;
        let moments = Moments {
            first: state.first_moments.clone(),
            second: state.second_moments.clone(),
            updates: state.updates,
        };
        if let Some(low_rank) = &mut self.low_rank {
            low_rank.load_shared(&state.factors);
            low_rank.load_error(&state.error);
        }
        Ok(self.engine.load_moments(&moments)?)
    }

    pub(super) fn is_checkpoint(&self, round: Round) -> bool {
        let every = self.config.checkpoint.every_rounds;
        every != 0 && round.next().0.is_multiple_of(every)
    }
}
