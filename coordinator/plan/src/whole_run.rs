//! Time of a whole run under a plan, with its warm-up.

use serde::Serialize;

use super::predict::{StepTime, step_with, trace_slowest};
use super::{Phase, PhaseKind, Plan, Topology, Unfit, Workload};

/// A run from its first step to its last.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WholeRun {
    /// Seconds, without validation and checkpoints.
    pub seconds: f64,
    /// Seconds without any exchange: computing, including pipeline waits.
    pub local_s: f64,
    /// That part of local speed which the run has.
    pub share_of_local_speed: f64,
    /// Its phases, in order.
    pub phases: Vec<PhaseTime>,
}

/// Time of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PhaseTime {
    /// Which.
    pub kind: PhaseKind,
    /// Its steps.
    pub steps: u64,
    /// One of them, in seconds.
    pub step_s: f64,
    /// The exchange of the slowest sync group in it, in seconds.
    pub sync_s: f64,
    /// By so much its computing takes longer, in seconds, as the exchange takes of the same cores.
    pub coding_s: f64,
}

impl PhaseTime {
    /// All of it.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.steps as f64 * self.step_s
    }
}

/// The run that `plan` would be on these machines.
///
/// # Errors
/// No schedule goes with the plan's numbers.
pub fn whole_run(
    topology: &Topology,
    work: &Workload,
    plan: &Plan,
    phases: &[Phase],
) -> Result<WholeRun, Unfit> {
    let (compute_s, ..) = trace_slowest(topology, work, plan)?;
    let time = |phase: &Phase| {
        let shares = if phase.is_redundant { plan.replicas.len() as f64 } else { 1.0 };
        let exchange = (phase.exchange, phase.window_steps);
        let step = step_with(topology, work, plan, exchange, shares * compute_s);
        let StepTime { step_s, sync_s, coding_s, .. } = step;
        PhaseTime { kind: phase.kind, steps: phase.steps, step_s, sync_s, coding_s }
    };
    let phases: Vec<PhaseTime> = phases.iter().map(time).collect();
    let seconds: f64 = phases.iter().map(PhaseTime::seconds).sum();
    let local_s = compute_s * phases.iter().map(|phase| phase.steps as f64).sum::<f64>();
    let share_of_local_speed = if seconds > 0.0 { local_s / seconds } else { 1.0 };
    Ok(WholeRun { seconds, local_s, share_of_local_speed, phases })
}

#[cfg(test)]
mod tests {
    use longhaul_common::config::RunConfig;
    use longhaul_common::model::ModelSpec;

    use super::super::workload::tests::run_toml;
    use super::*;
    use crate::{choose_among, phases};

    /// Two sites of one device, each of which has the whole model.
    fn run_over(mbit: f64, steps: u64, sync: &str) -> WholeRun {
        let site =
            |name: &str| format!("[[site]]\nname = \"{name}\"\nworkers = 1\ntflops = 0.1\nmemory_gib = 4\n");
        let machines = format!("{}{}[wan]\nmbit = {mbit}\nrtt_ms = 50\n", site("a"), site("b"));
        let run = run_toml().steps(steps).set("train.micro_batch", 8).lines("sync", sync);
        let config = RunConfig::parse(&run.to_string()).unwrap();
        let topology = Topology::parse(&machines).unwrap();
        let spec = ModelSpec::resolve(&config.model, 256).unwrap();
        let work = Workload::of(&config, &spec);
        let (plan, prediction) = choose_among(&topology, &work, |rows| rows.len() == 2).unwrap().best;
        let whole = whole_run(&topology, &work, &plan, &phases(&config, &spec)).unwrap();
        let steady = whole.phases.last().unwrap();
        assert!(steady.kind != PhaseKind::Steady || steady.step_s == prediction.step_s);
        whole
    }

    /// One device of 10¹¹ FLOPs a second computes 8 sequences. Without overlap or streams (a cosine transform delays sending), and with a round every step: all values in
    /// f32 there and back in 150 of 1500 steps, over the 90.6 % of 100 Mbit/s that arrive as updates, and one and a half round trips.
    #[test]
    fn a_warmup_takes_what_its_own_exchange_takes() {
        let whole = run_over(100.0, 1500, "preset = \"demo\"");
        let flops = 3.0 * (6.0 * 24.0 * 384.0 * 384.0 + 6.0 * 4.0 * 128.0 * 384.0 + 2.0 * 384.0 * 256.0);
        let compute_s = flops * 8.0 * 128.0 / 1e11;
        // Each site owns half of 42 fragments: it sends the rest of its update, and both sites' updates of its own fragments come back.
        let bytes = 4.0 * 10_893_312.0 * (0.5 + 2.0 * 0.5);
        let sync_s = bytes / (0.906 * 12.5e6) + 0.075;
        let [warmup, steady] = whole.phases[..] else { panic!("{whole:?}") };
        assert_eq!((warmup.kind, warmup.steps, steady.steps), (PhaseKind::Warmup, 150, 1350));
        assert!((warmup.sync_s / sync_s - 1.0).abs() < 1e-3, "{warmup:?} for {sync_s}");
        assert!((warmup.step_s - (compute_s + warmup.sync_s)).abs() < 1e-9, "{warmup:?}");
        let seconds = 150.0 * warmup.step_s + 1350.0 * steady.step_s;
        assert!((whole.seconds / seconds - 1.0).abs() < 1e-12 && whole.local_s == 1500.0 * compute_s);
        assert!((whole.share_of_local_speed - 1500.0 * compute_s / seconds).abs() < 1e-12);
    }

    #[test]
    fn a_slower_link_takes_more_of_the_whole_run_and_a_longer_run_less_of_it() {
        for sync in [
            "preset = \"auto\"",
            "preset = \"sparse-local\"\nresult = \"bundle\"",
            "preset = \"onebit-adam\"",
        ] {
            let share = |mbit, steps| run_over(mbit, steps, sync).share_of_local_speed;
            let by_link = [100.0, 10.0, 1.0].map(|mbit| share(mbit, 1500));
            assert!(by_link.is_sorted_by(|faster, slower| faster > slower), "{sync}: {by_link:?}");
        }
        // Of two, each computes two shares of 100 steps, and values for comparison cross meanwhile.
        let redundant = run_over(1.0, 1500, "preset = \"auto\"\nwarmup_redundant = \"always\"");
        let [warmup, steady] = redundant.phases[..] else { panic!("{redundant:?}") };
        assert_eq!((warmup.kind, warmup.steps, steady.kind), (PhaseKind::Warmup, 100, PhaseKind::Steady));
        let compute_s = redundant.local_s / 1500.0;
        let more = warmup.step_s - 2.0 * compute_s;
        assert!(more.abs() < 1e-9 && warmup.sync_s < 0.15, "{more}: {warmup:?}");
        // The warm-up of `auto` has a hundred rounds in a run of 1500 steps, and a twentieth of 6000.
        let share = |steps| run_over(10.0, steps, "preset = \"auto\"").share_of_local_speed;
        assert!(share(6000) > share(1500), "{} and {}", share(6000), share(1500));
    }

    #[test]
    fn a_run_without_a_warmup_has_the_pace_of_its_steps() {
        let whole = run_over(100.0, 1500, "preset = \"dense\"");
        assert_eq!(whole.phases.len(), 1);
        assert!((whole.seconds - 1500.0 * whole.phases[0].step_s).abs() < 1e-6);
    }
}
