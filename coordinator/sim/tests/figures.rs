//! Figures of simulated runs, against what is known of them.

#![allow(clippy::unwrap_used, reason = "this is test code")]

use std::time::Duration;

use longhaul_common::config::{RunConfig, ShareRule};
use longhaul_common::model::ModelSpec;
use longhaul_plan::Topology;
use longhaul_run_toml::{Gpt2, RunToml};
use longhaul_sim::simulate::{CostFigures, Faults, Report, Setup, simulate};

const SITES: &str = "[[site]]\nname = \"a\"\nworkers = 2\ntflops = 0.1\nmemory_gib = 8\n\
                     [[site]]\nname = \"b\"\nworkers = 2\ntflops = 0.1\nmemory_gib = 8\n[wan]\nmbit = 100\nrtt_ms = 50\n";

fn setup(topology: &str, parallel: &str, sync: &str, faults: &str) -> Setup {
    let run = RunToml::new("simulated")
        .workers(4)
        .steps(200)
        .gpt2(Gpt2 { layers: 4, width: 128, heads: 4, context: 128 })
        .batch(32)
        .set("train.micro_batch", 4)
        .lines("sync", sync)
        .lines("parallel", parallel)
        .set("checkpoint.every_rounds", 2)
        .lines("faults", "silent_after_ms = 3000\nreconnect_grace_ms = 5000");
    let config = RunConfig::parse(&run.to_string()).unwrap();
    let topology = Topology::parse(topology).unwrap();
    let spec = ModelSpec::resolve(&config.model, 256).unwrap();
    let faults = Faults::parse(faults, &topology).unwrap();
    Setup { config, spec, topology, faults, seed: 1, until: Duration::from_secs(3600) }
}

const SPARSE: &str = "preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 5\noverlap = 1";
const WHOLE: &str = "plan = \"fixed\"";

fn report(setup: Setup) -> Report {
    simulate(setup).unwrap_or_else(|error| panic!("{:?}", anyhow::Error::from(error)))
}

/// Eight sequences of 128 tokens at 10¹¹ FLOPs a second, what coding takes of the same cores, a jitter of 2.5 % on average, of which the slowest of four has 4 %, and a wait for the rest of an exchange that takes longer than the step beside it.
#[test]
fn a_run_without_faults_takes_the_time_that_the_planner_says() {
    let setup = setup(SITES, WHOLE, SPARSE, "");
    let work = longhaul_plan::Workload::of(&setup.config, &setup.spec);
    let flops: u64 = work.blocks.iter().map(|b| b.forward_flops_per_token + b.backward_flops_per_token).sum();
    let plan = longhaul_plan::choose_among(&setup.topology, &work, |rows| rows.len() == 4).unwrap().best.0;
    let phases = longhaul_plan::phases(&setup.config, &setup.spec);
    let coding_s =
        longhaul_plan::whole_run(&setup.topology, &work, &plan, &phases).unwrap().phases[0].coding_s;
    let step_s = flops as f64 * 8.0 * 128.0 / 1e11 + coding_s;
    let report = report(setup);
    assert!(report.finished && report.training.steps == 200 && report.churn.generations == 1, "{report:?}");
    let ratio = report.training.step_s.unwrap() / step_s;
    assert!((1.0..1.12).contains(&ratio), "{ratio}");
    // The sum over workers of what each has trained on.
    let tokens = 200.0 * 32.0 * 128.0;
    assert!(
        (report.training.tokens_per_s * (report.virtual_s - report.first_generation_s.unwrap()) / tokens
            - 1.0)
            .abs()
            < 0.01
    );
    assert!(report.training.utilisation > 0.8 && report.training.stalled < 0.1, "{report:?}");
}

/// Dense gradients of 0.84 million parameters: four times 3.4 MB over the link between the sites in each direction takes longer than computing.
#[test]
fn what_waits_for_its_exchange_takes_the_sum_of_both() {
    let slow = SITES.replace("mbit = 100", "mbit = 10");
    let setup = setup(&slow, WHOLE, "preset = \"dense\"", "");
    let plan = longhaul_plan::choose_among(
        &setup.topology,
        &longhaul_plan::Workload::of(&setup.config, &setup.spec),
        |rows| rows.len() == 4,
    );
    let expected = plan.unwrap().best.1;
    let report = report(setup);
    let ratio = report.training.step_s.unwrap() / (expected.compute_s + expected.sync_s);
    assert!((0.95..1.1).contains(&ratio), "{ratio}: {report:?}");
    assert!(report.training.stalled > 0.5, "{report:?}");
}

/// Ten rounds of twenty steps, each of which waits for its exchange; with a jitter, of which the slowest of four has 4 %. A round that is applied counts, and not the one before.
#[test]
fn steps_of_long_rounds_take_what_their_rounds_do() {
    let setup = setup(SITES, WHOLE, "preset = \"diloco\"\nevery = 20", "");
    let work = longhaul_plan::Workload::of(&setup.config, &setup.spec);
    let plan = longhaul_plan::choose_among(&setup.topology, &work, |rows| rows.len() == 4).unwrap().best.1;
    let ratio = report(setup).training.step_s.unwrap() / (1.04 * plan.compute_s + plan.sync_s);
    assert!((0.98..1.03).contains(&ratio), "{ratio}");
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_one_another() {
    let churn = "[churn]\nlife_s = 20\nabsence_s = 5\n";
    let once = |seed| {
        let report = report(Setup { seed, ..setup(SITES, WHOLE, SPARSE, churn) });
        Report { cost: CostFigures::default(), ..report }
    };
    assert_eq!(once(3), once(3));
    assert_ne!(once(3), once(4));
}

#[test]
fn workers_come_and_go_and_the_run_ends_all_the_same() {
    let in_parts =
        ["stages = 2", "tensor = 2"].into_iter().flat_map(|parallel| [(parallel, 1), (parallel, 2)]);
    for (parallel, seed) in [(WHOLE, 1), (WHOLE, 2)].into_iter().chain(in_parts) {
        let churn = "[churn]\nlife_s = 15\nabsence_s = 4\n[[outage]]\nsite = \"b\"\nat_s = 10\nfor_s = 6\n";
        let report = report(Setup { seed, ..setup(SITES, parallel, SPARSE, churn) });
        assert!(report.finished && report.churn.killed > 1, "{parallel}, {seed}: {report:#?}");
        assert!(
            report.churn.generations > 1 && report.churn.back_s.is_some(),
            "{parallel}, {seed}: {report:#?}"
        );
        // The only copy of a model in parts is gathered again.
        let goes_on = parallel != WHOLE || report.churn.settled_s.is_some();
        assert!(goes_on, "{parallel}, {seed}: {report:#?}");
    }
}

/// A model that is too large for any of the four.
#[test]
fn the_coordinator_makes_the_plan_that_the_planner_makes() {
    let small = SITES.replace("memory_gib = 8", "memory_gib = 0.02");
    let report = report(setup(&small, "plan = \"auto\"", SPARSE, ""));
    assert!(report.finished, "{report:#?}");
    let plan = report.plan.unwrap();
    assert!(plan.contains("2 × 2") || plan.contains("1 × 4"), "{plan}");
}

/// Links within the sites as between GPUs of one machine, and memory in which neither half of the model fits nor a share of one of two. Each part is at a site of its own.
#[test]
fn the_coordinator_makes_a_plan_of_parts_of_groups_and_it_takes_the_time_that_the_planner_says() {
    let sites = SITES.replace("memory_gib = 8", "memory_gib = 0.026\nlan_mbit = 2400000\nlan_rtt_ms = 0.001");
    let setup = setup(&sites, "plan = \"auto\"", "preset = \"dense\"", "");
    let divisions = longhaul_plan::Divisions::of(&setup.config, &setup.spec);
    let (_, choice) = longhaul_plan::choose_with_groups(setup.topology.clone(), &divisions, true).unwrap();
    assert_eq!((choice.tensor, choice.best.0.pipeline.ranks), (2, 2), "{}", longhaul_plan::why(&choice));
    let report = report(setup);
    let plan = report.plan.clone().unwrap();
    assert!(report.finished && plan.starts_with("the plan: 1 × 4 in 2 parts of 2"), "{report:#?}");
    let ratio = report.training.step_s.unwrap() / choice.best.1.step_s;
    assert!((0.95..1.1).contains(&ratio), "{ratio}: {report:#?}");
}

/// A fast machine at the second site, and at a third one a machine of a quarter of its speed: it computes three or two sequences of 32 where the others have ten, in place of eight.
#[test]
fn with_shares_by_speed_nobody_waits_for_a_slow_machine() {
    let slow = "[[site]]\nname = \"c\"\nworkers = 1\ntflops = 0.025\nmemory_gib = 8\n";
    let fast = "name = \"b\"\nworkers = ";
    let sites = format!("{slow}{}", SITES.replace(&format!("{fast}2"), &format!("{fast}1")));
    let with = |shares| {
        let mut setup = setup(&sites, WHOLE, SPARSE, "");
        (setup.config.run.steps, setup.config.train.shares) = (3000, Some(shares));
        report(setup)
    };
    let (even, by_speed) = (with(ShareRule::Even), with(ShareRule::BySpeed));
    assert!(even.finished && by_speed.finished, "{even:#?} {by_speed:#?}");
    assert!(even.churn.generations == 1 && by_speed.churn.generations > 1, "{by_speed:#?}");
    // The coordinator looks for half a minute before it shares otherwise.
    let ratio = by_speed.training.tokens_per_s / even.training.tokens_per_s;
    assert!((2.0..3.2).contains(&ratio), "{ratio}: {by_speed:#?}");
    assert!(even.training.stalled > 0.5 && by_speed.training.stalled < 0.3, "{even:#?} {by_speed:#?}");
}

/// What the planner says of two groups, of which each is a copy.
#[test]
fn tensor_groups_take_the_time_that_the_planner_says() {
    let setup = setup(SITES, "tensor = 2", "preset = \"dense\"", "");
    let groups = setup.topology.in_groups(2).unwrap();
    let work = longhaul_plan::Workload::of(&setup.config, &setup.spec);
    let (_, expected) = longhaul_plan::choose_among(&groups, &work, |rows| rows.len() == 2).unwrap().best;
    let report = report(setup);
    let ratio = report.training.step_s.unwrap() / (expected.compute_s + expected.sync_s);
    assert!(report.finished && (0.95..1.1).contains(&ratio), "{ratio}: {report:?}");
}

/// No site has workers for both stages, so there is one on each.
#[test]
fn stages_of_tensor_groups_take_the_time_that_the_planner_says() {
    let setup = setup(SITES, "tensor = 2\nstages = 2\nblocks = [3, 3]", "preset = \"dense\"", "");
    let groups = setup.topology.in_groups(2).unwrap();
    let work = longhaul_plan::Workload::of(&setup.config, &setup.spec);
    let plan = longhaul_plan::Plan {
        replicas: vec![groups.devices().collect()],
        stages: vec![0..3, 3..6],
        pipeline: setup.config.parallel.pipeline(work.micro_batches(1)),
        recompute: false,
    };
    let expected = longhaul_plan::predict(&groups, &work, &plan).unwrap();
    let report = report(setup);
    let ratio = report.training.step_s.unwrap() / expected.step_s;
    assert!(report.finished && (0.95..1.1).contains(&ratio), "{ratio}: {report:?}");
}

#[test]
fn too_few_machines_are_refused() {
    let few = SITES.replace("workers = 2", "workers = 1");
    let error = simulate(setup(&few, WHOLE, SPARSE, "")).unwrap_err().to_string();
    assert!(error.contains("2 workers, and the run wants 4"), "{error}");
    let alone = SITES
        .replace("workers = 2", "workers = 1")
        .replace("[wan]", "[[site]]\nname = \"c\"\nworkers = 3\ntflops = 0.1\nmemory_gib = 8\n[wan]");
    let error = simulate(setup(&alone, "tensor = 2\nstages = 2", SPARSE, "")).unwrap_err().to_string();
    assert!(error.contains("parallel.tensor = 2: the topology has 1 groups"), "{error}");
}

/// Four bits of each value in the warm-up, which takes more of the run the slower the link is and the shorter the run.
#[test]
fn a_warmup_takes_the_time_that_the_planner_says_and_less_of_a_longer_run() {
    let with = |mbit: u32, steps: u64| {
        let sites = SITES.replace("mbit = 100", &format!("mbit = {mbit}"));
        let mut setup = setup(&sites, WHOLE, "preset = \"auto\"", "");
        setup.config.run.steps = steps;
        let work = longhaul_plan::Workload::of(&setup.config, &setup.spec);
        let (plan, _) =
            longhaul_plan::choose_among(&setup.topology, &work, |rows| rows.len() == 4).unwrap().best;
        let phases = longhaul_plan::phases(&setup.config, &setup.spec);
        let planned = longhaul_plan::whole_run(&setup.topology, &work, &plan, &phases).unwrap();
        (planned, report(setup))
    };
    let (planned, simulated) = with(2, 600);
    let [warmup, ..] = planned.phases[..] else { panic!("{planned:?}") };
    let (steps, took) = simulated.training.warmup.unwrap();
    // Nothing streams in a simulation, and what is computed takes up to 5 % longer.
    let most = steps as f64 * (planned.local_s / 600.0 + warmup.sync_s);
    assert!(
        steps == 100 && took > 0.97 * warmup.seconds() && took < 1.06 * most,
        "{simulated:#?} {planned:?}"
    );
    let share = |report: &Report| report.training.share_of_local_speed.unwrap();
    assert!(
        (share(&simulated) / planned.share_of_local_speed - 1.0).abs() < 0.1,
        "{simulated:#?} {planned:?}"
    );
    assert!(share(&with(20, 600).1) > share(&simulated) && share(&with(2, 1200).1) > share(&simulated));
}

/// Each strategy has rounds of its own: gradients, momenta, factors in two exchanges, columns, deltas with a warm-up.
#[test]
fn every_preset_is_simulated_with_members_as_they_ship() {
    for preset in longhaul_common::config::SyncPreset::ALL {
        for warmup in ["", "\nwarmup_share = 0.0\nwarmup_rounds = 2"] {
            let mut setup = setup(SITES, WHOLE, "preset = \"auto\"", "[churn]\nlife_s = 30\nabsence_s = 4\n");
            let name = toml::Value::try_from(preset).unwrap();
            let text = format!("preset = {name}{warmup}\n");
            setup.config.sync = toml::from_str(&text).unwrap();
            setup.config.run.steps = 60;
            let report = report(setup);
            assert!(report.finished && report.training.steps == 60, "{preset:?}: {report:#?}");
        }
    }
}
