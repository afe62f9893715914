//! What workers do when a generation ends and another begins.

use std::collections::BTreeMap;

use longhaul_common::id::{Generation, Round, WorkerId};
use longhaul_proto::control::message::{GenerationStart, Member, Settled, ToCoordinator};

use super::World;
use crate::simulate::exchanges::Exchanges;
use crate::simulate::rounds::Group;
use crate::simulate::shares::Shares;
use crate::simulate::worker::Stage;
use longhaul_plan::{DeviceId, Plan, Unfit, Workload, in_place_of_groups, paces, phases, whole_run};

impl World {
    pub(super) fn settle(&mut self, place: usize, generation: Generation) {
        let Some(rank) = self.workers[place].rank.filter(|_| self.workers[place].is_in_training()) else {
            return;
        };
        let open_round = self.groups.get(&rank).map_or(self.workers[place].applied, |group| group.complete);
        let worker = &mut self.workers[place];
        worker.is_settling = true;
        let computing = worker.computing();
        self.say(
            place,
            ToCoordinator::Settled(Settled { generation, open_round, computing, results: Vec::new() }),
        );
    }

    pub(super) fn begin(&mut self, place: usize, start: &GenerationStart) {
        let generation = start.membership.generation;
        let Some(rank) = self.workers[place].rank else { return };
        if self.workers[place].generation >= generation {
            return;
        }
        if self.groups.get(&rank).is_none_or(|group| group.generation < generation) {
            self.groups.insert(rank, Group::of(start));
            self.begun(generation);
        }
        let Some(group) = self.groups.get(&rank) else { return };
        let (complete, first_round) = (group.complete, start.first_round);
        let worker = &mut self.workers[place];
        worker.generation = generation;
        worker.is_settling = false;
        if !worker.is_in_training() {
            // It makes up for what it has missed by results that the others have.
            (worker.stage, worker.computed) = (Stage::Idle, first_round.max(worker.computed));
            worker.applied = worker.applied.max(complete.min(first_round));
            if let Some(started) = self.outages.starts.remove(&worker.id) {
                self.tally.back.push(self.agenda.now - started);
            }
        }
        let computed = self.workers[place].computed;
        for round in (complete.0..computed.0).map(Round) {
            self.contribute(place, rank, round);
        }
        match self.workers[place].stage {
            Stage::Idle => self.go_on(place),
            Stage::Stalled(since) => self.resume_if_possible(place, since),
            Stage::Off | Stage::Joined | Stage::Head | Stage::Tail => {}
        }
    }

    /// A generation that nobody has begun before.
    pub(super) fn begun(&mut self, generation: Generation) {
        if self.last_generation >= generation {
            return;
        }
        self.last_generation = generation;
        self.tally.generations += 1;
        self.tally.began.get_or_insert(self.agenda.now);
        let now = self.agenda.now;
        let missing = std::mem::take(&mut self.outages.deaths);
        let lineup = self.run.state().generation.as_ref();
        for (worker, died) in missing {
            if lineup.is_some_and(|lineup| lineup.rank_of(worker).is_some()) {
                self.outages.deaths.insert(worker, died);
            } else {
                self.tally.settled.push(now - died);
            }
        }
        if let Err(unfit) = self.set_paces() {
            self.failure = Some(unfit);
        }
    }

    /// What steps and exchanges take with these copies.
    pub(super) fn set_paces(&mut self) -> Result<(), Unfit> {
        let Some(lineup) = self.run.state().generation.as_ref() else { return Ok(()) };
        let (parallel, work) = (&self.config.parallel, Workload::of(&self.config, &self.setup.spec));
        let nowhere = || Unfit::Schedule("the model cannot be cut so".to_owned());
        let parts = self.setup.spec.parts(parallel, self.config.data.sequence_length).ok_or_else(nowhere)?;
        let chunks = 0..parallel.chunks as usize;
        // All members of a tensor group have the same stage.
        let ranks = || parts.iter().step_by(parallel.tensor as usize);
        let stages = chunks.flat_map(|chunk| ranks().filter_map(move |part| part.chunks.get(chunk).cloned()));
        let device =
            |worker: WorkerId| -> Option<DeviceId> { Some(self.workers[self.place_of(worker)?].device) };
        let row =
            |ranks: &[Member]| ranks.iter().filter_map(|member| device(member.worker)).collect::<Vec<_>>();
        let rows: Vec<Vec<DeviceId>> = lineup.replicas.iter().map(|replica| row(&replica.ranks)).collect();
        let groups;
        let (topology, replicas) = match parallel.tensor {
            1 => (&self.setup.topology, rows),
            members => {
                groups = self.setup.topology.in_groups(members).map_err(|_| nowhere())?;
                (&groups, in_place_of_groups(&rows, members))
            }
        };
        let plan = Plan {
            replicas,
            stages: stages.collect(),
            pipeline: parallel.pipeline(work.micro_batches(lineup.replicas.len())),
            recompute: self.config.train.recompute,
        };
        let paces = paces(topology, &work, &plan)?;
        let whole = whole_run(topology, &work, &plan, &phases(&self.config, &self.setup.spec))?;
        // A pace is that of an even share.
        let batch = self.config.train.batch;
        let even = f64::from(batch) / lineup.replicas.len().max(1) as f64;
        let mut sequence_s = BTreeMap::new();
        for (replica, pace) in lineup.replicas.iter().zip(paces) {
            sequence_s.extend(replica.ranks.iter().map(|member| (member.worker, pace / even)));
        }
        let shares = Shares::of(&lineup.assignments, &lineup.replicas, batch.into());
        self.costs.exchanges = Exchanges::of(&whole);
        (self.costs.sequence_s, self.costs.shares) = (sequence_s, shares);
        Ok(())
    }
}
