//! The figures of a finished simulation.

use super::*;
use crate::simulate::{ChurnFigures, Control, CostFigures, Report, Setup, SimulateError, TrainingFigures};

/// Simulates a run on machines as the planner knows them.
pub(crate) fn report_of(setup: Setup, control: &Control) -> Result<Report, SimulateError> {
    let began = now();
    let planned = Planned::new(setup.topology, setup.spec);
    let mut world = World::planned(setup.config, planned, &setup.faults, setup.seed)?;
    world.try_until(setup.until, control)?;
    Ok(world.into_report(began.elapsed()))
}

#[allow(clippy::disallowed_methods, reason = "measures the simulation")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

impl World {
    /// A step of the slowest copy in the present generation, without waits.
    fn local_step_s(&self) -> f64 {
        let Some(planned) = self.pace.planned() else { return 0.0 };
        let sequences = |node: &Node| {
            let session = node.running.as_ref().and_then(|running| running.session.as_ref());
            session.map_or(0, |session| session.work.sequences)
        };
        let step = |(worker, node): (WorkerId, &Node)| planned.sequence_s(worker) * sequences(node) as f64;
        self.nodes.iter().map(step).fold(0.0, f64::max)
    }

    fn into_report(mut self, took: Duration) -> Report {
        let local_step_s = self.local_step_s();
        for worker in self.nodes.keys().copied().collect::<Vec<_>>() {
            let running = self.nodes.get_mut(&worker).and_then(|node| node.running.take());
            running.iter().for_each(|running| self.bury(running));
        }
        let (tally, now) = (&self.tally, self.now());
        let state = self.run.as_ref().map_or(&self.store.state, |run| run.state());
        let steps = state.rounds.schedule.steps_of(state.rounds.ledger.through()).start;
        let since = |from: Duration| (now - from).as_secs_f64();
        let training_s = tally.began.map_or(0.0, since);
        let share = |of: Duration, all: Duration| {
            if all.is_zero() { 0.0 } else { of.as_secs_f64() / all.as_secs_f64() }
        };
        let step_s = tally.tenth.filter(|(_, counted)| steps > *counted);
        let warmup = self.pace.planned().map_or(0, Planned::warmup_steps);
        let warmed_up = tally.warmed_up.zip(tally.began).filter(|_| warmup > 0);
        let mean_and_most = |times: &[Duration]| {
            let most = times.iter().max()?.as_secs_f64();
            Some([times.iter().sum::<Duration>().as_secs_f64() / times.len() as f64, most])
        };
        Report {
            finished: state.phase == Phase::Finished,
            virtual_s: now.as_secs_f64(),
            first_generation_s: tally.began.map(|began| began.as_secs_f64()),
            workers: self.nodes.len(),
            training: TrainingFigures {
                steps,
                warmup: warmed_up.map(|(at, began)| (warmup, (at - began).as_secs_f64())),
                // With machines that come and go, steps of one generation are not those of another.
                share_of_local_speed: (training_s > 0.0 && tally.generations == 1)
                    .then(|| local_step_s * steps as f64 / training_s),
                step_s: step_s.map(|(at, counted)| since(at) / (steps - counted) as f64),
                tokens_per_s: if training_s > 0.0 { tally.gone.tokens as f64 / training_s } else { 0.0 },
                utilisation: share(tally.gone.compute, tally.lived),
                stalled: share(tally.gone.wait, tally.gone.compute + tally.gone.wait),
            },
            churn: ChurnFigures {
                generations: tally.generations,
                killed: tally.killed,
                back_s: mean_and_most(&tally.back),
                settled_s: mean_and_most(&tally.settled),
            },
            messages: [tally.coordinator.heard, tally.coordinator.told],
            plan: tally.plan.clone(),
            warnings: tally.warnings.iter().cloned().collect(),
            cost: CostFigures {
                coordinator_share: share(tally.coordinator.thinking, now),
                wall_s: took.as_secs_f64(),
            },
        }
    }
}
