//! What came of it all.

use std::time::Duration;

use longhaul_common::id::WorkerId;

use super::World;
use crate::simulate::Report;
use longhaul_run::Phase;

impl World {
    /// A step of the slowest copy as the present generation has it, if it waited for nobody.
    fn local_step_s(&self) -> f64 {
        let lineup = self.run.state().generation.as_ref();
        let firsts = lineup
            .into_iter()
            .flat_map(|lineup| &lineup.replicas)
            .filter_map(|replica| replica.ranks.first());
        let round = self.until();
        let of = |worker: WorkerId| {
            let sequence_s = self.costs.sequence_s.get(&worker).copied().unwrap_or_default();
            let place = self.place_of(worker).unwrap_or_default();
            sequence_s * self.sequences_of(place, round)
        };
        firsts.map(|member| of(member.worker)).fold(0.0, f64::max)
    }

    pub(super) fn report(mut self, took: Duration) -> Report {
        (0..self.workers.len()).for_each(|place| self.bury(place));
        let (tally, now) = (&self.tally, self.agenda.now);
        let state = self.run.state();
        let schedule = state.schedule;
        let steps = schedule.steps_of(state.ledger.through()).start;
        let since = |from: Duration| (now - from).as_secs_f64();
        let training_s = tally.began.map_or(0.0, since);
        let share = |of: Duration, all: Duration| {
            if all.is_zero() { 0.0 } else { of.as_secs_f64() / all.as_secs_f64() }
        };
        let step_s = tally.tenth.filter(|(_, counted)| steps > *counted);
        let warmup = self.costs.exchanges.warmup_steps();
        let opened = tally.opened.zip(tally.began).filter(|_| warmup > 0);
        let local_s = self.local_step_s() * steps as f64;
        let mean_and_most = |times: &[Duration]| {
            let most = times.iter().max()?.as_secs_f64();
            Some([times.iter().sum::<Duration>().as_secs_f64() / times.len() as f64, most])
        };
        Report {
            finished: state.phase == Phase::Finished,
            virtual_s: now.as_secs_f64(),
            first_generation_s: tally.began.map(|began| began.as_secs_f64()),
            workers: self.workers.len(),
            steps,
            warmup: opened.map(|(at, began)| (warmup, (at - began).as_secs_f64())),
            // With machines that come and go, steps of one generation are not those of another.
            share_of_local_speed: (training_s > 0.0 && tally.generations == 1).then(|| local_s / training_s),
            step_s: step_s.map(|(at, counted)| since(at) / (steps - counted) as f64),
            tokens_per_s: if training_s > 0.0 { tally.gone.tokens as f64 / training_s } else { 0.0 },
            utilisation: share(tally.gone.compute, tally.gone.lived),
            stalled: share(tally.gone.wait, tally.gone.compute + tally.gone.wait),
            generations: tally.generations,
            killed: tally.killed,
            back_s: mean_and_most(&tally.back),
            settled_s: mean_and_most(&tally.settled),
            messages: [tally.heard, tally.told],
            plan: tally.plan.clone(),
            warnings: tally.warnings.iter().cloned().collect(),
            coordinator_share: share(tally.thinking, now),
            wall_s: took.as_secs_f64(),
        }
    }
}
