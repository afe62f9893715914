//! Round after round: what is computed, contributed, waited for and applied.

use std::time::Duration;

use longhaul_common::id::{Generation, Round};
use longhaul_common::schedule::RoundSchedule;
use longhaul_proto::control::message::{RoundReport, ToCoordinator};
use rand::Rng as _;

use super::{JITTER, World};
use crate::simulate::queue::Happening;
use crate::simulate::worker::{Stage, Stretch, hash_after};

impl World {
    pub(super) fn schedule(&self) -> RoundSchedule {
        self.run.state().schedule
    }

    pub(super) fn until(&self) -> Round {
        self.run.state().until().unwrap_or_default()
    }

    /// Steps of a round that may be computed while the result of the one before is on its way.
    pub(super) fn head_steps(&self, round: Round) -> u64 {
        let schedule = self.schedule();
        let sync = &self.config.sync;
        let steps = schedule.steps_of(round);
        let is_plain = round.0 > 0 && schedule.is_warmup(Round(round.0 - 1)) && sync.opens_with_gradients();
        let overlap = if is_plain { 0 } else { sync.overlap_at(schedule.pace_in(round).every) };
        overlap.min(steps.end - steps.start)
    }

    /// Begins the next round, or ends.
    pub(super) fn go_on(&mut self, place: usize) {
        let (round, until) = (self.workers[place].computed, self.until());
        if round >= until {
            return self.finish(place, until);
        }
        if self.workers[place].is_settling {
            self.workers[place].stage = Stage::Idle;
            return;
        }
        let head = self.head_steps(round);
        if round.0 == 0 || self.workers[place].applied >= round {
            self.compute(place, Stage::Tail, self.steps_in(round));
        } else if head > 0 {
            self.compute(place, Stage::Head, head);
        } else {
            self.head_done(place);
        }
    }

    pub(super) fn steps_in(&self, round: Round) -> u64 {
        let steps = self.schedule().steps_of(round);
        steps.end - steps.start
    }

    pub(super) fn compute(&mut self, place: usize, stage: Stage, steps: u64) {
        let slower = 1.0 + JITTER * self.rng.random::<f64>();
        let sequences = steps as f64 * self.sequences_of(place, self.workers[place].computed);
        let length = f64::from(self.config.predictions_per_sample());
        let worker = &mut self.workers[place];
        let sequence_s = self.costs.sequence_s.get(&worker.id).copied().unwrap_or_default();
        let takes = Duration::from_secs_f64((sequences * sequence_s * slower).min(1e9));
        // Those of a copy are counted once, by its first worker.
        let tokens = if worker.rank == Some(0) { (sequences * length) as u64 } else { 0 };
        worker.stage = stage;
        worker.set_to(Stretch { takes, tokens }, self.agenda.now);
        let done = match stage {
            Stage::Head => Happening::HeadDone(place, worker.work.task),
            _ => Happening::RoundDone(place, worker.work.task),
        };
        self.agenda.queue.push(self.agenda.now + takes, done);
    }

    /// Sequences that a worker has of each step of a round: as many as were assigned to its copy.
    pub(super) fn sequences_of(&self, place: usize, round: Round) -> f64 {
        let step = self.schedule().steps_of(round).start;
        let copies = || self.run.state().generation.as_ref().map_or(1, |lineup| lineup.replicas.len().max(1));
        let even = || f64::from(self.config.train.batch) / copies() as f64;
        self.costs.shares.in_step(step, self.workers[place].id).map_or_else(even, |own| own as f64)
    }

    /// The result of the round before must be there now.
    pub(super) fn head_done(&mut self, place: usize) {
        self.workers[place].has_computed();
        self.workers[place].stage = Stage::Stalled(self.agenda.now);
        self.resume_if_possible(place, self.agenda.now);
    }

    pub(super) fn resume_if_possible(&mut self, place: usize, since: Duration) {
        let round = self.workers[place].computed;
        let Some(rank) = self.workers[place].rank else { return };
        if self.groups.get(&rank).is_none_or(|group| group.complete < round) {
            return;
        }
        self.workers[place].work.wait += self.agenda.now - since;
        self.apply_before(place, rank, round);
        if round >= self.until() {
            return self.finish(place, round);
        }
        let (head, steps) = (self.head_steps(round), self.steps_in(round));
        self.compute(place, Stage::Tail, steps - head.min(steps));
    }

    /// Applies what is there of rounds before this one.
    pub(super) fn apply_before(&mut self, place: usize, rank: u32, round: Round) {
        let Some(group) = self.groups.get(&rank) else { return };
        let to = group.complete.min(round);
        let generation = self.workers[place].generation;
        let every = self.config.checkpoint.every_rounds;
        while self.workers[place].applied < to {
            let applied = self.workers[place].applied;
            let next = applied.next();
            self.workers[place].applied = next;
            if every > 0 && next.0.is_multiple_of(every) {
                self.save(place, next, rank);
            }
            let report = RoundReport {
                generation,
                round: applied,
                loss: None,
                gradient_norm: None,
                samples: self.samples_in(place, applied),
                sites: self.groups.get(&rank).map(|group| group.sites.clone()).unwrap_or_default(),
                residual_ratio: None,
                state_hash: hash_after(next, rank),
                skipped: Vec::new(),
                validation_loss: None,
                validation_accuracy: None,
                refused: Vec::new(),
                refused_beyond: 0,
                measured: None,
                audit: Default::default(),
            };
            self.say(place, ToCoordinator::RoundApplied(report));
        }
    }

    fn save(&mut self, place: usize, next: Round, rank: u32) {
        let (parts, keep) = (self.config.parallel.seats(), self.config.checkpoint.keep);
        self.workers[place].save(next, (rank, parts), keep);
    }

    fn samples_in(&self, place: usize, round: Round) -> u32 {
        (self.sequences_of(place, round) * self.steps_in(round) as f64) as u32
    }

    pub(super) fn round_done(&mut self, place: usize) {
        let Some(rank) = self.workers[place].rank else { return };
        let round = self.workers[place].computed;
        self.workers[place].has_computed();
        self.workers[place].computed = round.next();
        // While a generation ends, nobody takes it; with the next one it is said again.
        let is_current =
            self.groups.get(&rank).is_some_and(|group| group.generation == self.workers[place].generation);
        if is_current && !self.workers[place].is_settling {
            self.contribute(place, rank, round);
        }
        self.go_on(place);
    }

    pub(super) fn contribute(&mut self, place: usize, rank: u32, round: Round) {
        let worker = self.workers[place].id;
        let steps = self.schedule().steps_of(round);
        let Some(group) = self.groups.get_mut(&rank) else { return };
        let generation = group.generation;
        let takes = self.costs.exchanges.takes(steps);
        for whole in group.contribute(worker, round) {
            self.agenda.queue.push(self.agenda.now + takes, Happening::Result(generation, rank, whole));
        }
    }

    pub(super) fn result(&mut self, generation: Generation, rank: u32, round: Round) {
        let Some(group) = self.groups.get_mut(&rank).filter(|group| group.generation == generation) else {
            return;
        };
        group.complete = group.complete.max(round.next());
        let members = group.members.clone();
        for member in members {
            let Some(place) = self.place_of(member) else { continue };
            if self.workers[place].generation != generation {
                continue;
            }
            match self.workers[place].stage {
                Stage::Stalled(since) => self.resume_if_possible(place, since),
                Stage::Idle if self.workers[place].computed >= self.until() => {
                    self.finish(place, self.until());
                }
                _ => {}
            }
        }
        self.note_progress();
    }

    pub(super) fn note_progress(&mut self) {
        let schedule = self.schedule();
        let counted = schedule.steps_of(self.run.state().ledger.through()).start;
        if counted > 0 && counted >= self.costs.exchanges.warmup_steps() {
            self.tally.opened.get_or_insert(self.agenda.now);
        }
        if self.tally.tenth.is_none() && counted * 10 >= schedule.steps {
            self.tally.tenth = Some((self.agenda.now, counted));
        }
    }

    /// Nothing is left to compute.
    pub(super) fn finish(&mut self, place: usize, until: Round) {
        let Some(rank) = self.workers[place].rank else { return };
        self.workers[place].stage = Stage::Idle;
        self.apply_before(place, rank, until);
        if self.workers[place].applied >= until && !self.workers[place].is_settling {
            self.save(place, until, rank);
            self.say(
                place,
                ToCoordinator::Finished {
                    next_round: until,
                    validation_loss: None,
                    validation_accuracy: None,
                },
            );
        }
    }
}
