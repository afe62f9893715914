//! The device as a member of a tensor group: the first member exchanges replicated values and distributes them.

use std::sync::Arc;

use anyhow::{Context, Result};
use longhaul_common::id::Round;
use longhaul_engine::models::TensorGroup;
use longhaul_engine::{EngineError, Moments, PipelineRank};
use longhaul_member::message::{ParameterChange, ReplicaPosition};

use super::Device;
use crate::replica::{BoundaryFormats, GroupConnection, GroupError, NetworkPipe};

/// Identifies a meeting of the members.
#[derive(Clone, Copy, Debug)]
pub(super) enum Moment {
    /// State before a round is loaded.
    Entered,
    /// A round begins.
    Begins,
    /// A round's result is applied.
    Applies,
}

impl Device<'_> {
    /// Joins the other members of this copy.
    pub(super) fn join(&mut self, place: ReplicaPosition) -> Result<()> {
        let network = self.network.as_ref().context("a worker by itself is told of others")?;
        let parallel = &self.config.parallel;
        let ReplicaPosition { session, group, pipeline, stage, first } = place;
        if !group.is_empty() {
            let connection =
                GroupConnection::new(Arc::clone(network), session, &group, self.config.sync.within_site);
            let connection = connection.context("the coordinator began a generation without this worker")?;
            // A missing member is awaited again.
            let collective = connection.join(self.engine.device()).map_err(|error| match error {
                GroupError::Collective(error) => EngineError::Group(error).into(),
                error => anyhow::Error::from(error),
            })?;
            self.engine.join_group(TensorGroup::new(collective)?)?;
        }
        if !pipeline.is_empty() {
            let (plan, formats) = (parallel.pipeline(1), BoundaryFormats::configured(parallel));
            let network = Arc::clone(network);
            let pipe = NetworkPipe::new(network, plan.clone(), stage, session, pipeline, first, formats)?;
            self.engine.join(PipelineRank::new(plan, stage, Box::new(pipe)))?;
        }
        self.worker = first;
        Ok(())
    }

    /// Waits for the other members of the tensor group, if any.
    pub(super) fn meet(&self, moment: Moment, round: Round) -> Result<(), EngineError> {
        self.engine.meet(3 * round.0 + moment as u64)
    }

    /// Takes replicated parameters and moments from the first member: the others neither save nor heal them.
    pub(super) fn share_state(&mut self, round: Round) -> Result<()> {
        if !self.engine.is_member() {
            return Ok(());
        }
        self.meet(Moment::Entered, round)?;
        let updates = self.engine.moments_to_host()?.updates;
        if self.engine.tell_members(updates)?.iter().any(|other| *other != updates) {
            tracing::warn!(
                "a member of the tensor group has no moments of the optimiser: those of all start from zero"
            );
            self.engine.reset_moments()?;
        }
        self.take_parameters_of_first()?;
        let mut moments = self.engine.moments_to_host()?;
        self.take_from_first(&mut moments.first)?;
        self.take_from_first(&mut moments.second)?;
        Ok(self.engine.load_moments(&moments)?)
    }

    /// Takes replicated parameters from the first member after a round's result is applied.
    pub(super) fn share_parameters(&mut self, round: Round) -> Result<()> {
        if !self.engine.is_member() {
            return Ok(());
        }
        self.meet(Moment::Applies, round)?;
        self.take_parameters_of_first()
    }

    /// Expands the mean of synchronised values to all local values.
    pub(super) fn shared_mean(&self, round: Round, mean: Vec<f32>) -> Result<Vec<f32>> {
        let mut mean = self.share.spread(mean);
        if self.engine.is_member() {
            self.meet(Moment::Applies, round)?;
            self.take_from_first(&mut mean)?;
        }
        Ok(mean)
    }

    /// θ ← kept·θ + values, for stretches of the synchronised values. Returns their memory.
    pub(super) fn mix(&mut self, change: ParameterChange) -> Result<Vec<f32>> {
        for (range, values) in change.values.iter() {
            for (piece, start) in self.share.places(range) {
                self.engine.mix_into_parameters(start, change.kept, &values[piece])?;
            }
        }
        Ok(change.values.into_memory())
    }

    /// Replaces the synchronised parameters.
    pub(super) fn load_parameters(&mut self, synchronised: &[f32]) -> Result<()> {
        let mut all = self.all_parameters()?;
        self.share.put_synchronised(synchronised, &mut all);
        Ok(self.engine.load_parameters(&all)?)
    }

    /// Replaces the moments of synchronised parameters.
    pub(super) fn load_moments(&mut self, synchronised: &Moments) -> Result<()> {
        let mut all = self.engine.moments_to_host()?;
        self.share.put_synchronised(&synchronised.first, &mut all.first);
        self.share.put_synchronised(&synchronised.second, &mut all.second);
        Ok(self.engine.load_moments(&Moments { updates: synchronised.updates, ..all })?)
    }

    pub(super) fn all_parameters(&self) -> Result<Vec<f32>> {
        let mut parameters = Vec::new();
        self.engine.parameters_to_host(&mut parameters)?;
        Ok(parameters)
    }

    fn take_parameters_of_first(&mut self) -> Result<()> {
        let mut parameters = self.all_parameters()?;
        self.take_from_first(&mut parameters)?;
        Ok(self.engine.load_parameters(&parameters)?)
    }

    /// Replaces the replicated values within all local values by the first member's.
    fn take_from_first(&self, all: &mut [f32]) -> Result<()> {
        let mut replicated = self.share.replicated(all);
        self.engine.hand_on(&mut replicated)?;
        self.share.put_replicated(&replicated, all);
        Ok(())
    }
}
