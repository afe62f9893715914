//! From joining to the first round: the initial state of a generation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_checkpoint::LoadedModel;
use longhaul_common::config::Transform;
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_common::plan::{FragmentLayout, Member};
use longhaul_proto::codec::{ColumnUpdate, Decoder};
use longhaul_proto::control::message::{CheckpointOffer, GenerationStart, Ready, Start, ToCoordinator};
use longhaul_proto::round::{self, Config, DeadlineConfig, Event};

use super::adaptation::{Adaptation, adapt_to};
use super::average::Average;
use super::columns::ColumnContributions;
use super::configured_rounds::is_of_this_run;
use super::event::HealedState;
use super::layouts::Layouts;
use super::outer::outer_step;
use super::privacy::mechanism_of;
use super::replica::Replica;
use super::running::{Codec, Contributions, DeviceView, Results, Rounds, Running, Stage};
use super::saved::{Saved, UnsentUpdates, average_in, momentum_in, second_moments_in};
use super::site::SiteReduction;
use super::synchroniser::{Outcome, RequestedState, Synchroniser};
use crate::encode::compressor::Compressor;
use crate::encode::pool::CodecPool;
use crate::encode::tiling::Tiling;
use crate::message::{DeviceState, Load, ReplicaPosition, ToDevice};
use crate::reduce::reducer::Reducer;
use crate::unsent::Unsent;

impl Synchroniser {
    pub(super) fn want(&mut self, wanted: RequestedState) -> Result<()> {
        if let Stage::Running(running) = &self.stage
            && running.device.entered
        {
            // The device is within a round of an obsolete state, and so is everything derived from it.
            let reason = "the state in training differs from the other members'";
            self.outcome = Some(Outcome::Rejoin(reason.into()));
            return Ok(());
        }
        self.forget_wanted();
        self.recovery.wanted = Some(wanted);
        self.prepare_if_possible()
    }

    /// Assigns a part of the model to this worker, or makes it wait for one.
    pub(super) fn take_rank(&mut self, rank: Option<u32>) -> Result<()> {
        if let Stage::Running(running) = &self.stage
            && running.device.entered
        {
            let reason = "this worker's copy of the model has come apart";
            self.outcome = Some(Outcome::Rejoin(reason.into()));
            return Ok(());
        }
        self.forget_wanted();
        self.recovery.wanted = None;
        self.stage = Stage::Preparing;
        if rank.is_none() || rank == self.part.rank {
            return Ok(());
        }
        (self.part.rank, self.part.prepared) = (rank, None);
        self.build()
    }

    /// Invalidates all fetches in flight.
    fn forget_wanted(&mut self) {
        self.recovery.wants += 1;
        self.outside.stop_healing();
    }

    /// Makes the device build this worker's part; if it builds another one, then after that.
    pub(super) fn build(&mut self) -> Result<()> {
        let Some(rank) = self.part.rank.filter(|_| !self.part.building) else { return Ok(()) };
        self.part.building = true;
        self.tell_device(ToDevice::Build { rank })
    }

    /// Prepares the start requested by the coordinator, once the device has its model and data.
    pub(super) fn prepare_if_possible(&mut self) -> Result<()> {
        if self.part.prepared.is_none() {
            return Ok(());
        }
        match self.recovery.wanted.take() {
            None => Ok(()),
            Some(RequestedState::Start(Start::Fresh)) => {
                let parameters = self.prepared_parameters();
                let average = self.average_from(None, &parameters, Round(0));
                let replica = Replica::new(parameters, Round(0)).with_average(average);
                self.start_from(replica, Load::Nothing, UnsentUpdates::default())
            }
            Some(RequestedState::Start(start)) => {
                self.unarchive(start)?.map_or(Ok(()), |start| self.start_from_disk(start))
            }
            Some(RequestedState::Heal(donors)) => {
                tracing::info!(donors = donors.len(), "fetching the state of the run from a peer");
                self.recovery.fetches_since = self.outside.now();
                self.outside.heal(self.recovery.wants, donors, self.state_buffers(), self.parameter_count());
                Ok(())
            }
        }
    }

    pub(super) fn take_state(&mut self, state: HealedState) -> Result<()> {
        self.recovery.came_after = Some(self.outside.now().saturating_sub(self.recovery.fetches_since));
        let HealedState { next_round, mut buffers, updates } = state;
        let count = buffers.len();
        let average = if self.config.train.ema_decay.is_some() { buffers.pop() } else { None };
        let mut buffers = buffers.into_iter().map(|b| Arc::try_unwrap(b).unwrap_or_else(|b| b.to_vec()));
        let parameters = buffers.next().context("a donor's state without parameters")?;
        anyhow::ensure!(
            count == self.state_buffers() && parameters.len() == self.parameter_count(),
            "a donor's state does not fit this run's model"
        );
        let (load, momentum) = match (buffers.next(), buffers.next()) {
            (Some(first_moments), Some(second_moments)) => {
                let (parameters, factors) = (parameters.clone(), buffers.next().unwrap_or_default());
                let error = Vec::new();
                let state = DeviceState {
                    parameters,
                    first_moments,
                    second_moments,
                    updates,
                    factors,
                    error,
                    ..DeviceState::default()
                };
                (Load::All(state), Vec::new())
            }
            (momentum, _) => (Load::Parameters(parameters.clone()), momentum.unwrap_or_default()),
        };
        let average = average.map(|average| average.to_vec());
        let average = self.average_from(average, &parameters, next_round);
        let replica = Replica::new(parameters, next_round).with_momentum(momentum).with_average(average);
        self.start_from(replica, load, UnsentUpdates::default())
    }

    /// Returns the moving average, if the run keeps one: this one, or one that begins with the parameters.
    pub(super) fn average_from(
        &self,
        average: Option<Vec<f32>>,
        parameters: &[f32],
        next_round: Round,
    ) -> Option<Average> {
        let decay = self.config.train.ema_decay?;
        let average = average.filter(|average| average.len() == parameters.len());
        if average.is_none() && next_round > Round(0) {
            tracing::warn!(
                next_round = next_round.0,
                "no moving average of the weights is there: it begins with the present ones"
            );
        }
        Some(Average::new(decay, average.unwrap_or_else(|| parameters.to_vec()), next_round))
    }

    pub(super) fn start_from_checkpoint(&mut self, offer: &CheckpointOffer) -> Result<()> {
        let (model, saved) = match self.load_checkpoint(offer) {
            Ok(loaded) => loaded,
            Err(error) => {
                // The checkpoint was intact when offered. Joining again offers the present ones.
                self.outcome = Some(Outcome::Rejoin(format!("{error:#}")));
                return Ok(());
            }
        };
        let (load, kept) = match saved {
            Some(Saved { state, kept, trained }) => {
                (Load::Private { state, synchronised: model.parameters.clone(), trained }, kept)
            }
            None => (Load::Parameters(model.parameters.clone()), UnsentUpdates::default()),
        };
        let momentum = momentum_in(&model.shared);
        let average = self.average_from(average_in(&model.shared), &model.parameters, offer.next_round);
        let replica = Replica::new(model.parameters, offer.next_round);
        let replica = replica.with_momentum(momentum).with_average(average);
        self.start_from(replica, load, kept)
    }

    fn load_checkpoint(&self, offer: &CheckpointOffer) -> Result<(LoadedModel, Option<Saved>)> {
        let store = self.store();
        let prepared = self.part.prepared.as_ref().context("the model is not built")?;
        let model = store.load_model(offer.next_round, &prepared.spec)?;
        anyhow::ensure!(
            model.state_hash == offer.state_hash,
            "the checkpoint is not the one that was offered"
        );
        let count = model.parameters.len();
        let fits = |saved: &Saved| {
            let state = &saved.state;
            [&state.parameters, &state.first_moments, &state.second_moments].iter().all(|v| v.len() == count)
        };
        let is_fork = offer.generation == Generation(0);
        let own = match offer.private {
            true => Saved::from_private(&store.load_private(offer.next_round)?.state).filter(fits),
            false => None,
        };
        let saved = match own {
            None if self.shares_everything_in(offer.next_round) || is_fork => {
                // θ, m and v are equal on all members, or those of a fork are for all.
                let anothers =
                    store.load_anothers(offer.next_round)?.filter(|a| a.state_hash == offer.state_hash);
                let saved = anothers.and_then(|a| Saved::from_private(&a.state)).filter(fits);
                saved.map(|saved| saved.into_common_at(&model.parameters))
            }
            None => self.frozen_state(&model),
            own => own,
        };
        if saved.is_none() {
            tracing::warn!(
                next_round = offer.next_round.0,
                "the checkpoint lacks this worker's private state: the optimiser's moments start from zero"
            );
        }
        Ok((model, saved))
    }

    /// Returns the state of a member that has only the shared part of a checkpoint, if that includes second moments.
    pub(super) fn frozen_state(&self, model: &LoadedModel) -> Option<Saved> {
        let second_moments = second_moments_in(&model.shared)?;
        let count = model.parameters.len();
        let state = DeviceState {
            parameters: model.parameters.clone(),
            first_moments: vec![0.0; count],
            second_moments,
            updates: self.config.round_schedule().warmup_rounds,
            ..DeviceState::default()
        };
        (state.second_moments.len() == count).then(|| Saved { state, ..Saved::default() })
    }

    fn layout(&self, parameters: usize) -> FragmentLayout {
        self.config.sync.layout(parameters as u64)
    }

    pub(super) fn start_from(&mut self, replica: Replica, load: Load, kept: UnsentUpdates) -> Result<()> {
        let sync = &self.config.sync;
        let next_round = replica.next_round();
        let layout = self.layout(replica.parameters().len());
        let schedule = self.config.round_schedule().for_fragments(layout.count());
        let exchanges = self.part.prepared.as_ref().and_then(|prepared| prepared.exchanges);
        let layouts =
            Layouts::new(layout, exchanges, schedule).with_redundant_warmup(sync.is_redundant_in(true));
        let tiling = match (sync.transform, &self.part.prepared) {
            (Transform::Dct, Some(prepared)) => Some(Tiling::new(&prepared.spec)),
            _ => None,
        };
        let tiles = tiling.as_ref().map_or(0, Tiling::tiles);
        let cores = self.part.prepared.as_ref().map_or(usize::MAX, |prepared| prepared.cores);
        let mut compressor = Compressor::new(self.run, sync, layouts, tiles, CodecPool::beside(cores))
            .context("set up the codec")?
            .with_mechanism(mechanism_of(&self.config, next_round)?);
        let mut reducer = Reducer::new(sync, layouts).context("set up the codec")?;
        if !schedule.is_warmup(next_round) {
            compressor.leave_warmup();
            reducer.leave_warmup();
        }
        compressor.restore(kept.memories);
        compressor.restore_columns(fitting(kept.columns, layout));
        reducer.restore_residuals(kept.owner_residuals);
        let state_hash = replica.hash();
        let config = Config {
            schedule,
            deadline: DeadlineConfig {
                floor: Duration::from_millis(sync.deadline_floor_ms),
                ceiling: Duration::from_millis(sync.deadline_ceiling_ms),
                mads: sync.deadline_mads,
                apart_every: sync.measured_every(),
            },
        };
        self.stage = Stage::Running(Box::new(Running {
            generation: Generation(0),
            membership: None,
            member: round::Member::new(self.worker, self.site, layout, next_round, config),
            postponed: None,
            rounds: Rounds { layout, layouts, tiling, schedule, until: Round(u64::MAX) },
            device: DeviceView::to_load(load),
            contributions: Contributions {
                of_rounds: BTreeMap::new(),
                columns: ColumnContributions::with_carried(fitting(kept.carried_columns, layout)),
                repeated: BTreeMap::new(),
                redundant: BTreeMap::new(),
                finished: None,
                snapshot: None,
                unsent: Unsent::default(),
                carry: kept.carry.filter(|carry| carry.len() as u64 == layout.values),
                memory: Vec::new(),
            },
            codec: Codec {
                compressor,
                reducer,
                masking: None,
                decoder: Decoder::default(),
                adaptation: Adaptation::new(sync, layouts),
            },
            site: SiteReduction::default(),
            results: Results::default(),
            replica,
        }));
        if let Stage::Running(running) = &mut self.stage {
            adapt_to(running, next_round)?;
        }
        if let Some(prepared) = &self.part.prepared {
            self.report(ToCoordinator::Ready(Ready {
                next_round,
                state_hash,
                rank: prepared.rank,
                parameters: layout.values,
                samples: prepared.samples,
                data_hash: prepared.data_hash,
                evaluation: prepared.evaluation,
            }));
        }
        Ok(())
    }

    pub(super) fn begin(&mut self, start: Arc<GenerationStart>) -> Result<()> {
        let Stage::Running(running) = &mut self.stage else {
            self.outcome = Some(Outcome::Rejoin("a generation started before this worker was ready".into()));
            return Ok(());
        };
        // A repetition after a lost connection: it must not open a barrier that a settlement has closed.
        let generation = start.membership.generation;
        if running.generation >= generation {
            return Ok(());
        }
        anyhow::ensure!(
            is_of_this_run(&self.config, &start.schedule),
            "the coordinator began a generation with {:?}, which does not belong to this run",
            start.schedule
        );
        // The coordinator knows that this worker is ready: a state in flight is not needed.
        self.recovery.wants += 1;
        self.outside.stop_healing();
        running.generation = generation;
        running.results.arriving.forget();
        running.rounds.until = start.until;
        running.follow(start.schedule);
        adapt_to(running, running.member.open_round())?;
        running.membership = Some(start.membership.clone());
        tracing::info!(
            generation = start.membership.generation.0,
            members = start.membership.members().len(),
            from_round = start.first_round.0,
            "a generation starts"
        );
        let model_bytes = running.rounds.layout.values as usize * size_of::<f32>();
        let ranks = start.replica.iter().flat_map(|replica| &replica.ranks);
        let others = ranks.filter(|rank| start.membership.member(rank.worker).is_none());
        let others: Vec<Member> = others.cloned().collect();
        self.outside.set_members(&start.membership, &others, model_bytes);
        self.take_place(&start)?;
        self.begin_site(&start);
        let (assignments, until, schedule) = (start.assignments.clone(), start.until, start.schedule);
        if start.checkpoint {
            self.outside.barrier().ask_for_checkpoint(start.first_round);
        }
        self.begin_masking(&start)?;
        self.feed(Event::Begin(start));
        if let Stage::Running(running) = &self.stage
            && running.member.generation() == Some(generation)
        {
            self.outside.barrier().open(assignments, until, schedule);
        }
        Ok(())
    }

    /// Joins the other workers of its replica, if any.
    fn take_place(&mut self, start: &GenerationStart) -> Result<()> {
        let Some(replica) = &start.replica else { return Ok(()) };
        let (Stage::Running(running), Some(rank)) = (&self.stage, self.part.rank) else { return Ok(()) };
        let workers: Vec<WorkerId> = replica.ranks.iter().map(|member| member.worker).collect();
        anyhow::ensure!(
            workers.get(rank as usize) == Some(&self.worker),
            "the coordinator began a generation in which this worker has another part of the model"
        );
        let session = replica.session;
        self.outside.join_replica(session, workers.clone());
        if running.device.entered {
            return Ok(());
        }
        let (parallel, ranks) = (&self.config.parallel, &replica.ranks);
        let (stage, index) = parallel.place_of(rank);
        let of_stage = ranks.chunks(parallel.tensor as usize).nth(stage as usize).unwrap_or_default();
        let of_share = workers.iter().copied().skip(index as usize).step_by(parallel.tensor as usize);
        let place = ReplicaPosition {
            session,
            group: if parallel.is_shared() { of_stage.to_vec() } else { Vec::new() },
            pipeline: if parallel.is_pipelined() { of_share.collect() } else { Vec::new() },
            stage,
            first: workers.first().copied().unwrap_or(self.worker),
        };
        if let Stage::Running(running) = &mut self.stage {
            running.device.place = Some(Box::new(place));
        }
        Ok(())
    }

    /// Returns the parameters drawn from the seed. They are kept: a fresh start may be requested again after a failed one.
    fn prepared_parameters(&self) -> Vec<f32> {
        self.part.prepared.as_ref().map(|prepared| prepared.parameters.clone()).unwrap_or_default()
    }

    fn parameter_count(&self) -> usize {
        self.part.prepared.as_ref().map_or(0, |prepared| prepared.parameters.len())
    }

    /// Returns the number of synchronised vectors: θ, and with gradients the moments and low-rank factors, with deltas alone the outer momentum; last the moving
    /// average.
    pub(super) fn state_buffers(&self) -> usize {
        let averages = usize::from(self.config.train.ema_decay.is_some());
        averages
            + if self.config.sync.opens_with_gradients() {
                3 + usize::from(self.config.sync.rank > 0)
            } else {
                1 + usize::from(outer_step(&self.config.sync).has_memory())
            }
    }
}

/// Keeps updates of the length of their fragments.
fn fitting(
    mut updates: BTreeMap<FragmentId, ColumnUpdate>,
    layout: FragmentLayout,
) -> BTreeMap<FragmentId, ColumnUpdate> {
    let has = |fragment: &FragmentId| fragment.0 < layout.count();
    updates.retain(|fragment, update| has(fragment) && update.len() == layout.range(*fragment).len());
    updates
}
