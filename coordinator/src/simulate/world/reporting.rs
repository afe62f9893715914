//! What came of it all.

use std::time::Duration;

use super::World;
use crate::run::Phase;
use crate::simulate::Report;

impl World {
    pub(super) fn report(mut self, took: Duration) -> Report {
        (0..self.workers.len()).for_each(|place| self.bury(place));
        let Self { tally, now, .. } = &self;
        let state = self.run.state();
        let schedule = state.schedule;
        let steps = schedule.steps_of(state.ledger.through()).start;
        let since = |from: Duration| (*now - from).as_secs_f64();
        let training_s = tally.began.map_or(0.0, since);
        let share = |of: Duration, all: Duration| {
            if all.is_zero() { 0.0 } else { of.as_secs_f64() / all.as_secs_f64() }
        };
        let step_s = tally.tenth.filter(|(_, counted)| steps > *counted);
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
            step_s: step_s.map(|(at, counted)| since(at) / (steps - counted) as f64),
            tokens_per_s: if training_s > 0.0 { tally.tokens as f64 / training_s } else { 0.0 },
            utilisation: share(tally.compute, tally.lived),
            stalled: share(tally.wait, tally.compute + tally.wait),
            generations: tally.generations,
            killed: tally.killed,
            back_s: mean_and_most(&tally.back),
            settled_s: mean_and_most(&tally.settled),
            messages: [tally.heard, tally.told],
            plan: tally.plan.clone(),
            warnings: tally.warnings.iter().cloned().collect(),
            coordinator_share: share(tally.thinking, *now),
            wall_s: took.as_secs_f64(),
        }
    }
}
