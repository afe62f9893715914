//! Shared layers, against calculation and against exhaustive search.

use longhaul_common::config::RunConfig;
use longhaul_common::memory::{Memory, StageBytes};
use longhaul_common::model::ModelSpec;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::division::divided;
use super::super::search::tests::{GIB, exhaustive, exhaustive_among, topology};
use super::super::workload::tests::run_toml;
use super::super::{Link, Workload, outline, parallel_of, why};
use super::*;

/// Four workers, twelve heads, and gradients as they are.
fn run() -> (RunConfig, ModelSpec) {
    let run = run_toml().workers(4).set("model.heads", 12).set("sync.preset", "dense");
    let config = RunConfig::parse(&run.to_string()).unwrap();
    let spec = ModelSpec::resolve(&config.model, 256).unwrap();
    (config, spec)
}

/// Two sites of two devices with so much memory, and these links within sites.
fn machines(memory_bytes: f64, lan: Link) -> Topology {
    let mut machines = topology(&[&[(1e11, memory_bytes); 2], &[(1e11, memory_bytes); 2]], 10_000.0, 1.0);
    machines.sites.iter_mut().for_each(|site| site.lan = lan);
    machines
}

/// As between GPUs of one machine, and as between machines of an office.
const FAST: Link = Link { bytes_per_s: 300e9, round_trip_s: 1e-5 };
const SLOW: Link = Link { bytes_per_s: 12.5e6, round_trip_s: 1e-3 };

fn chosen(machines: Topology) -> Choice {
    let (config, spec) = run();
    let divisions = Divisions::of(&config, &spec).in_any_parts(config.model.kind);
    choose_with_groups(machines, &divisions, false).unwrap().1
}

/// Memory in which a model does not fit, and the share of a member of two does.
fn tight() -> f64 {
    let (config, spec) = run();
    let bytes = |config: &RunConfig| {
        let work = Workload::of(config, &spec);
        StageBytes::of(Memory::Machine, &work.blocks, true, work.micro_tokens_most(2), work.parameter_bytes)
            .with(1)
    };
    let (whole, share) = (bytes(&config), bytes(&divided(&config, 1, 2).unwrap()));
    assert!(share < 0.8 * whole);
    (whole + share) / 2.0
}

#[test]
fn layers_are_shared_where_a_site_has_fast_links_and_one_device_has_too_little_memory() {
    let choice = chosen(machines(tight(), FAST));
    assert_eq!((choice.tensor, choice.best.0.replicas.len()), (2, 2), "{choice:?}");
    assert!(choice.best.1.memory_bytes.iter().all(|&bytes| bytes <= tight()));
    assert!(
        why(&choice).starts_with("Each layer is shared by a tensor group of 2 workers"),
        "{}",
        why(&choice)
    );
}

#[test]
fn layers_are_not_shared_over_slow_links_whether_the_model_fits_or_not() {
    for memory_bytes in [tight(), GIB] {
        let choice = chosen(machines(memory_bytes, SLOW));
        assert_eq!(choice.tensor, 1, "{choice:?}");
        let rival = choice.rival.unwrap();
        assert!(rival.members == 2 && rival.step_s > choice.best.1.step_s, "{rival:?}");
    }
}

/// An unmeasured link carries a group only where no other plan exists.
#[test]
fn a_link_that_is_not_known_bears_a_group_only_where_nothing_else_fits() {
    let unknown = |memory_bytes: f64| {
        let mut machines = machines(memory_bytes, FAST);
        machines.sites.iter_mut().for_each(|site| site.knows_lan = false);
        machines
    };
    let choice = chosen(unknown(tight()));
    assert_eq!((choice.tensor, choice.rival), (1, None));
    let (config, spec) = run();
    // Copies of one worker alone, as where nothing may be cut.
    let mut divisions = Divisions::of(&config, &spec);
    divisions.whole.stages = Some([1].into());
    let (groups, choice) = choose_with_groups(unknown(tight()), &divisions, false).unwrap();
    assert_eq!((choice.tensor, groups.devices().count()), (2, 2));
    assert!(choose_with_groups(unknown(GIB / 1e6), &divisions, false).is_err());
}

#[test]
fn groups_leave_nobody_over_at_any_site() {
    let odd = topology(&[&[(1e11, tight()); 3], &[(1e11, tight()); 2]], 10.0, 50.0);
    let choice = chosen(odd);
    assert_eq!((choice.tensor, choice.rival), (1, None));
}

/// Memory in which neither half of the model fits nor the share of a member of two, and half of such a share does.
fn tighter() -> f64 {
    let (config, spec) = run();
    let work = Workload::of(&divided(&config, 2, 2).unwrap(), &spec);
    let (each, tokens) = (work.parameter_bytes, work.micro_tokens_most(1));
    let halves = [&work.blocks[..4], &work.blocks[4..]];
    let of = |blocks| StageBytes::of(Memory::Machine, blocks, true, tokens, each).with(2);
    let needed = halves.map(of).into_iter().fold(0.0, f64::max);
    assert!(2.0 * needed < tight());
    1.5 * needed
}

/// Without groups a copy is in four parts, which wait for each other longer than two do.
#[test]
fn copies_are_cut_in_parts_that_groups_share_where_that_is_the_fastest_that_fits() {
    let choice = chosen(machines(tighter(), FAST));
    let (plan, prediction) = &choice.best;
    assert_eq!((choice.tensor, plan.pipeline.ranks, plan.replicas.len()), (2, 2, 1), "{choice:?}");
    assert!(prediction.memory_bytes.iter().all(|&bytes| bytes <= tighter()));
    let rival = choice.rival.unwrap();
    assert!((rival.members, rival.stages) == (1, 4) && rival.step_s > prediction.step_s, "{rival:?}");
    let (told, short) = (why(&choice), outline(&choice));
    let parts =
        "The model is cut in 2, of which each part is shared by a tensor group of 2 workers of one site";
    assert!(
        told.starts_with(parts) && told.contains("; with whole layers, cut in 4, a step would take"),
        "{told}"
    );
    assert!(short.starts_with("1 × 4 in 2 parts of 2") && short.ends_with(", layer by layer"), "{short}");
    // Over slow links within sites sums take longer than waiting.
    assert_eq!(chosen(machines(tighter(), SLOW)).tensor, 1);
}

#[test]
fn on_small_topologies_no_plan_with_groups_or_without_is_faster_than_the_one_that_is_chosen() {
    let (mut config, _) = run();
    config.model.layers = 3;
    let spec = ModelSpec::resolve(&config.model, 256).unwrap();
    let divisions = Divisions::of(&config, &spec).in_any_parts(config.model.kind);
    let whole = Workload::of(&config, &spec);
    let fixed = StageBytes::of(Memory::Machine, &whole.blocks, false, 0.0, whole.parameter_bytes).fixed;
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let (mut shared, mut apart) = (0, 0);
    for _ in 0..40 {
        let memory_bytes = fixed * rng.random_range(0.3..2.0);
        let lan = Link { bytes_per_s: 10f64.powf(rng.random_range(7.0..11.0)), round_trip_s: 1e-5 };
        let machines = machines(memory_bytes, lan);
        let best = [exhaustive(&machines, &whole), exhaustive_of_groups(&machines, &divisions)];
        let best = best.into_iter().flatten().reduce(f64::min);
        let found = choose_with_groups(machines, &divisions, false).ok();
        assert_eq!(found.is_some(), best.is_some());
        let (Some((_, choice)), Some(best)) = (found, best) else { continue };
        let step_s = choice.best.1.step_s;
        assert!(step_s <= best * (1.0 + 2.0 * CLOSE), "{step_s} for {best}: {choice:?}");
        if choice.tensor > 1 { shared += 1 } else { apart += 1 }
    }
    assert!(shared > 2 && apart > 2, "{shared}, {apart}");
}

/// Four sites of two, so that all groupings of four in any number of parts are searched; eight workers without groups are too many for that.
#[test]
fn on_four_sites_of_two_no_plan_with_groups_is_faster_than_the_one_that_is_chosen() {
    let (mut config, _) = run();
    (config.run.workers, config.model.layers) = (8, 3);
    let spec = ModelSpec::resolve(&config.model, 256).unwrap();
    let divisions = Divisions::of(&config, &spec).in_any_parts(config.model.kind);
    let whole = Workload::of(&config, &spec);
    let fixed = StageBytes::of(Memory::Machine, &whole.blocks, false, 0.0, whole.parameter_bytes).fixed;
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let (mut fitting, mut both) = (0, 0);
    for _ in 0..30 {
        let memory_bytes = fixed * rng.random_range(0.25..0.8);
        let devices = [(1e11, memory_bytes); 2];
        let (mbit, rtt) = (10f64.powf(rng.random_range(1.0..4.0)), rng.random_range(1.0..50.0));
        let mut machines = topology(&[&devices[..]; 4], mbit, rtt);
        let lan = Link { bytes_per_s: 10f64.powf(rng.random_range(8.0..11.0)), round_trip_s: 1e-5 };
        machines.sites.iter_mut().for_each(|site| site.lan = lan);
        let Some(best) = exhaustive_of_groups(&machines, &divisions) else { continue };
        let (groups, choice) = choose_with_groups(machines, &divisions, false).unwrap();
        let (plan, prediction) = &choice.best;
        assert!(prediction.step_s <= best * (1.0 + 2.0 * CLOSE), "{} for {best}", prediction.step_s);
        fitting += 1;
        if choice.tensor > 1 {
            both += u32::from(plan.pipeline.ranks > 1);
            let parallel = parallel_of(&groups, &choice, &config.parallel);
            let written = RunConfig { parallel, ..config.clone() }.to_toml().unwrap();
            assert_eq!(
                RunConfig::parse(&written).unwrap().parallel.ranks_per_replica(),
                choice.tensor * plan.pipeline.ranks
            );
        }
    }
    assert!(fitting > 15 && both > 3, "{fitting}, {both}");
}

/// Of 48 blocks and sixteen heads, so that groups of two, four and eight are looked at, in up to 32 parts.
#[test]
fn sixty_four_workers_on_eight_sites_are_planned_with_groups_in_parts() {
    let (mut config, _) = run();
    (config.model.layers, config.model.heads) = (46, 16);
    (config.run.workers, config.train.batch) = (64, 512);
    let spec = ModelSpec::resolve(&config.model, 256).unwrap();
    let divisions = Divisions::of(&config, &spec);
    let stages = |division: &Division| division.stages.iter().flatten().copied().max();
    assert_eq!(divisions.shared.iter().map(stages).collect::<Vec<_>>(), [32, 16, 8].map(Some));
    let whole = &divisions.whole.work;
    let fixed = StageBytes::of(Memory::Machine, &whole.blocks, false, 0.0, whole.parameter_bytes).fixed;
    let devices = [(1e12, fixed / 10.0); 8];
    let mut machines = topology(&[&devices[..]; 8], 1000.0, 30.0);
    machines.sites.iter_mut().for_each(|site| site.lan = FAST);
    let (_, choice) = choose_with_groups(machines, &divisions, true).unwrap();
    let plan = &choice.best.0;
    assert!(choice.tensor > 1 && plan.pipeline.ranks > 1, "{}", why(&choice));
    assert_eq!(plan.replicas.iter().map(Vec::len).sum::<usize>() * choice.tensor as usize, 64);
}

/// The fastest of all that groups can be.
fn exhaustive_of_groups(machines: &Topology, divisions: &Divisions) -> Option<f64> {
    let of = |division: &Division| {
        let groups = machines.in_groups(division.members).ok()?;
        exhaustive_among(&groups, &division.work, |stages| division.permits(stages))
    };
    divisions.shared.iter().filter_map(of).reduce(f64::min)
}
