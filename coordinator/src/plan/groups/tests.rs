//! Whether layers are shared, against what follows from the numbers, and against everything that there is.

use longhaul_common::model::{Memory, StageBytes};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::search::tests::{GIB, exhaustive, topology};
use super::super::workload::tests::CONFIG;
use super::super::{Link, Plan, predict, why};
use super::*;

/// Four workers, twelve heads, and gradients as they are.
fn run() -> (RunConfig, ModelSpec) {
    let text = CONFIG.replace("workers = 2", "workers = 4").replace("heads = 6", "heads = 12");
    let config = RunConfig::parse(&format!("{text}[sync]\npreset = \"dense\"\n")).unwrap();
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
    choose_with_groups(machines, &config, &spec, |_, _| true).unwrap().1
}

/// Memory in which a model does not fit, and the share of a member of two does.
fn tight() -> f64 {
    let (config, spec) = run();
    let bytes = |config: &RunConfig| {
        let work = Workload::of(config, &spec);
        StageBytes::of(Memory::Machine, &work.blocks, true, work.micro_tokens_most(2), work.parameter_bytes)
            .with(1)
    };
    let (whole, share) = (bytes(&config), bytes(&with_groups(&config, 2).unwrap()));
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
        let (members, step_s) = choice.rival.unwrap();
        assert!(members == 2 && step_s > choice.best.1.step_s, "{members}: {step_s}");
    }
}

/// What nobody has measured bears a group only where there is no plan otherwise.
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
    let alone = |_: usize, rows: &[Vec<DeviceId>]| rows.iter().all(|row| row.len() == 1);
    let (groups, choice) = choose_with_groups(unknown(tight()), &config, &spec, alone).unwrap();
    assert_eq!((choice.tensor, groups.devices().count()), (2, 2));
    assert!(choose_with_groups(unknown(GIB / 1e6), &config, &spec, alone).is_err());
}

#[test]
fn groups_are_whole_and_such_as_the_configuration_permits() {
    let (config, spec) = run();
    assert!(with_groups(&config, 2).is_some() && with_groups(&config, 8).is_none(), "of four workers");
    let mut odd_heads = config.clone();
    odd_heads.model.heads = 3;
    assert!(with_groups(&odd_heads, 2).is_none());
    let odd = topology(&[&[(1e11, tight()); 3], &[(1e11, tight()); 2]], 10.0, 50.0);
    let (_, choice) = choose_with_groups(odd, &config, &spec, |_, _| true).unwrap();
    assert_eq!((choice.tensor, choice.rival), (1, None));
}

#[test]
fn on_small_topologies_no_plan_with_groups_or_without_is_faster_than_the_one_that_is_chosen() {
    let (mut config, _) = run();
    config.model.layers = 3;
    let spec = ModelSpec::resolve(&config.model, 256).unwrap();
    let whole = Workload::of(&config, &spec);
    let fixed = StageBytes::of(Memory::Machine, &whole.blocks, false, 0.0, whole.parameter_bytes).fixed;
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let (mut shared, mut apart) = (0, 0);
    for _ in 0..40 {
        let memory_bytes = fixed * rng.random_range(0.3..2.0);
        let lan = Link { bytes_per_s: 10f64.powf(rng.random_range(7.0..11.0)), round_trip_s: 1e-5 };
        let machines = machines(memory_bytes, lan);
        let mut best = exhaustive(&machines, &whole);
        for members in [2, 4] {
            // A site has two.
            let Ok(groups) = machines.in_groups(members) else { continue };
            let work = Workload::of(&with_groups(&config, members).unwrap(), &spec);
            let alone = exhaustive_of(&groups, &work);
            best = best.into_iter().chain(alone).reduce(f64::min);
        }
        let found = choose_with_groups(machines, &config, &spec, |_, _| true).ok();
        assert_eq!(found.is_some(), best.is_some());
        let (Some((_, choice)), Some(best)) = (found, best) else { continue };
        let step_s = choice.best.1.step_s;
        assert!(step_s <= best * (1.0 + 2.0 * CLOSE), "{step_s} for {best}: {choice:?}");
        if choice.tensor > 1 { shared += 1 } else { apart += 1 }
    }
    assert!(shared > 2 && apart > 2, "{shared}, {apart}");
}

/// Of copies that are on one group each.
fn exhaustive_of(groups: &Topology, work: &Workload) -> Option<f64> {
    let devices: Vec<DeviceId> = groups.devices().collect();
    let rows = (1..=devices.len()).flat_map(|count| [&devices[..count], &devices[devices.len() - count..]]);
    let plans = rows.flat_map(|row| {
        let replicas: Vec<Vec<DeviceId>> = row.iter().map(|&device| vec![device]).collect();
        [false, true].map(|recompute| Plan {
            pipeline: ParallelConfig::undivided().pipeline(work.micro_batches(replicas.len())),
            replicas: replicas.clone(),
            stages: std::iter::once(0..work.blocks.len() as u32).collect(),
            recompute,
        })
    });
    plans.filter_map(|plan| Some(predict(groups, work, &plan).ok()?.step_s)).reduce(f64::min)
}
