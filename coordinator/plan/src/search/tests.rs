//! The planner's choice, against exhaustive search.

use std::collections::BTreeMap;
use std::ops::Range;

use longhaul_common::config::BottleneckConfig;
use longhaul_common::model::ModelSpec;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::workload::tests::config;
use super::super::{Device, Link, Site};
use super::*;

fn workload(sync: &str) -> Workload {
    let config = config(sync);
    Workload::of(&config, &ModelSpec::resolve(&config.model, 256).unwrap())
}

/// Sites with these devices (FLOPs a second, bytes), and one link between all of them.
pub fn topology(sites: &[&[(f64, f64)]], mbit: f64, rtt_ms: f64) -> Topology {
    let link = |mbit: f64, rtt_ms: f64| Link { bytes_per_s: mbit * 1e6 / 8.0, round_trip_s: rtt_ms / 1e3 };
    let site = |(at, devices): (usize, &&[(f64, f64)])| Site {
        name: format!("s{at}"),
        devices: devices
            .iter()
            .map(|&(flops_per_s, memory_bytes)| Device { flops_per_s, memory_bytes, host_memory_bytes: None })
            .collect(),
        lan: link(10_000.0, 0.1),
        knows_lan: true,
    };
    let pairs = (0..sites.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
    let links: BTreeMap<_, _> = pairs.map(|pair| (pair, link(mbit, rtt_ms))).collect();
    Topology::new(sites.iter().enumerate().map(site).collect(), links).unwrap()
}

pub const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

#[test]
fn equal_machines_with_room_for_the_model_train_it_whole() {
    let choice =
        choose(&topology(&[&[(1e11, GIB); 2], &[(1e11, GIB); 2]], 100.0, 50.0), &workload("")).unwrap();
    let (plan, prediction) = choice.best;
    assert_eq!((plan.replicas.len(), plan.pipeline.ranks), (4, 1));
    assert!(prediction.bubble.abs() < 1e-9 && !plan.recompute);
    assert!(choice.runners_up.iter().any(|(plan, _)| plan.pipeline.ranks == 2));
}

#[test]
fn a_model_that_fits_nobody_is_cut_and_one_that_fits_nothing_is_refused_with_what_is_lacking() {
    let work = workload("");
    let small = 0.75 * fixed_bytes(&work, Memory::Machine);
    let cut = choose(&topology(&[&[(1e11, small); 2], &[(1e11, small); 2]], 100.0, 50.0), &work).unwrap();
    assert!(cut.best.0.pipeline.ranks > 1 && cut.unfit > 0);
    assert!(cut.best.1.memory_bytes.iter().all(|&bytes| bytes <= small));
    let none = choose(&topology(&[&[(1e11, small / 100.0); 4]], 100.0, 50.0), &work).unwrap_err();
    assert!(none.to_string().contains("smaller train.micro_batch"), "{none}");
}

/// Each stage in a site of its own: exchanges over a link that carries nothing stay within the sites.
#[test]
fn where_gradients_are_too_large_for_the_link_stages_lie_within_sites() {
    let work = Workload { batch: 128, ..workload("preset = \"dense\"") };
    let choice = choose(&topology(&[&[(1e10, GIB); 4], &[(1e10, GIB); 4]], 20.0, 50.0), &work).unwrap();
    let (plan, prediction) = &choice.best;
    assert!(plan.pipeline.ranks > 1, "{plan:?}");
    assert!(prediction.links.iter().all(|load| load.sync_bytes == 0.0), "{prediction:?}");
}

/// Behind layer 22 of 46 rather than 23, over a slow link; not behind layer 18 over a fast one; all cuts are predicted in a small model.
#[test]
fn a_bottleneck_is_where_a_model_is_cut_if_the_link_is_slow() {
    for (layers, behind, mbit, expected) in [(46, 22, 5.0, 23), (46, 18, 1e6, 24), (6, 2, 5.0, 3)] {
        let bottleneck = BottleneckConfig { width: 8, behind: vec![behind] };
        let mut config = config("preset = \"dense\"");
        (config.model.layers, config.model.bottleneck) = (layers, Some(bottleneck));
        let work = Workload::of(&config, &ModelSpec::resolve(&config.model, 256).unwrap());
        let small = 0.7 * fixed_bytes(&work, Memory::Machine) + 1e8;
        let choice = choose(&topology(&[&[(1e11, small)], &[(1e11, small)]], mbit, 50.0), &work).unwrap();
        let plan = &choice.best.0;
        assert_eq!(
            (plan.pipeline.ranks, plan.stages[0].end),
            (2, expected),
            "{layers} layers, {mbit} Mbit/s"
        );
    }
}

#[test]
fn sixty_four_workers_on_eight_sites_are_planned() {
    let mut config = config("");
    config.model.layers = 46;
    config.train.batch = 512;
    let work = Workload::of(&config, &ModelSpec::resolve(&config.model, 256).unwrap());
    let sites: Vec<&[(f64, f64)]> = vec![&[(1e12, 2.0 * GIB); 8]; 8];
    let choice = choose(&topology(&sites, 1000.0, 30.0), &work).unwrap();
    assert_eq!(choice.best.0.replicas.iter().map(Vec::len).sum::<usize>(), 64);
}

/// Schedules of one chunk for each rank.
const PLAIN: [PipelineSchedule; 2] = [PipelineSchedule::OneForwardOneBackward, PipelineSchedule::ZeroBubble];

/// Everything that four devices and six blocks can be: each device in any place or in none, and every cut.
pub fn exhaustive(topology: &Topology, work: &Workload) -> Option<f64> {
    exhaustive_among(topology, work, |_| true)
}

/// The same in those numbers of ranks that are permitted.
pub fn exhaustive_among(
    topology: &Topology,
    work: &Workload,
    is_permitted: impl Fn(usize) -> bool,
) -> Option<f64> {
    let devices: Vec<DeviceId> = topology.devices().collect();
    let mut best: Option<f64> = None;
    for ranks in (1..=devices.len().min(work.blocks.len())).filter(|&ranks| is_permitted(ranks)) {
        for count in 1..=devices.len() / ranks {
            for places in placements(&devices, ranks * count) {
                let replicas: Vec<Vec<DeviceId>> = places.chunks(ranks).map(<[DeviceId]>::to_vec).collect();
                let times = cuts_by_mask(work.blocks.len() as u32, ranks as u32)
                    .into_iter()
                    .filter(|stages| stages.iter().all(|stage| work.may_be_stage(stage)))
                    .flat_map(|stages| [false, true].map(|recompute| (stages.clone(), recompute)))
                    .flat_map(|(stages, recompute)| {
                        PLAIN.map(|schedule| (stages.clone(), recompute, schedule))
                    })
                    .filter_map(|(stages, recompute, schedule)| {
                        let micro_batches = work.micro_batches(count);
                        let (ranks, in_flight) = (ranks as u32, Vec::new());
                        let pipeline = Pipeline { schedule, ranks, chunks: 1, micro_batches, in_flight };
                        let cut = Cut { topology, work, replicas: &replicas, pipeline: &pipeline, recompute };
                        let (in_flight, busy_s) = (cut.in_flight(&stages), cut.busy_s(&stages));
                        let pipeline = Pipeline { in_flight, ..pipeline };
                        let plan = Plan { replicas: replicas.clone(), stages, pipeline, recompute };
                        let step_s = predict(topology, work, &plan).ok()?.step_s;
                        // A plan dropped for its bound is no faster than the bound.
                        assert!(shortest_step_s(topology, work, &plan, busy_s) <= step_s * (1.0 + 1e-9));
                        Some(step_s)
                    });
                best = times.fold(best, |best, time| Some(best.map_or(time, |best: f64| best.min(time))));
            }
        }
    }
    best
}

/// All ordered choices of so many devices.
fn placements(devices: &[DeviceId], count: usize) -> Vec<Vec<DeviceId>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for rest in placements(devices, count - 1) {
        all.extend(devices.iter().filter(|id| !rest.contains(id)).map(|&id| {
            let mut row = rest.clone();
            row.push(id);
            row
        }));
    }
    all
}

/// All cuts, by which of the gaps between blocks are cut.
fn cuts_by_mask(blocks: u32, stages: u32) -> Vec<Vec<Range<u32>>> {
    let masks = (0u32..1 << (blocks - 1)).filter(|mask| mask.count_ones() == stages - 1);
    masks
        .map(|mask| {
            let mut ends: Vec<u32> = (1..blocks).filter(|gap| mask >> (gap - 1) & 1 == 1).collect();
            ends.push(blocks);
            let starts = std::iter::once(0).chain(ends.clone());
            starts.zip(ends).map(|(start, end)| start..end).collect()
        })
        .collect()
}

#[test]
fn on_small_topologies_no_plan_is_faster_than_the_one_that_is_chosen() {
    let mut config = config("");
    config.model.layers = 3;
    let spec = ModelSpec::resolve(&config.model, 256).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let (mut fitting, mut divided) = (0, 0);
    for _ in 0..120 {
        config.sync = longhaul_common::config::SyncConfig::of(
            [longhaul_common::config::SyncPreset::Auto, longhaul_common::config::SyncPreset::Dense]
                [rng.random_range(0..2)],
        );
        let work = Workload::of(&config, &spec);
        let whole = fixed_bytes(&work, Memory::Machine);
        let mut devices = |count: usize| -> Vec<(f64, f64)> {
            let device = |rng: &mut ChaCha8Rng| {
                (1e10 * f64::from(rng.random_range(1..5)), whole * rng.random_range(0.3..2.0))
            };
            (0..count).map(|_| device(&mut rng)).collect()
        };
        let sites = [devices(2), devices(1), devices(1)];
        let sites: Vec<&[(f64, f64)]> = sites.iter().map(Vec::as_slice).collect();
        let (mbit, rtt) = (10f64.powf(rng.random_range(0.0..3.0)), rng.random_range(1.0..100.0));
        let topology = topology(&sites, mbit, rtt);
        let chosen = choose(&topology, &work).ok();
        let best = exhaustive(&topology, &work);
        assert_eq!(chosen.is_some(), best.is_some());
        let (Some(chosen), Some(best)) = (chosen, best) else { continue };
        fitting += 1;
        let (plan, prediction) = &chosen.best;
        assert!(prediction.step_s <= best * (1.0 + CLOSE), "{} for {best}: {plan:?}", prediction.step_s);
        divided += u32::from(is_divided(plan));
        if plan.pipeline.chunks == 1 {
            assert!(prediction.step_s >= best * (1.0 - 1e-9), "{} for {best}", prediction.step_s);
        }
    }
    assert!(fitting > 60 && divided > 3, "{fitting}, {divided}");
}

/// Four equal devices and four equal stages at one site: 1F1B is idle for three of seven tasks, and dividing leaves a third of that.
#[test]
fn backward_passes_are_divided_where_that_is_faster_and_fits() {
    let mut config = config("preset = \"dense\"");
    config.model.layers = 8;
    let work = Workload::of(&config, &ModelSpec::resolve(&config.model, 256).unwrap());
    // Three sizes of device: everything fits, postponed work does not, and only recomputation does.
    let choice = |memory_bytes: f64| {
        let admits = |rows: &[Vec<DeviceId>]| rows.len() == 1 && rows[0].len() == 4;
        choose_among(&topology(&[&[(1e11, memory_bytes); 4]], 100.0, 50.0), &work, admits).unwrap()
    };
    let roomy = choice(GIB);
    let (plan, divided) = &roomy.best;
    assert!(is_divided(plan) && plan.pipeline.in_flight.is_empty(), "{plan:?}");
    let (_, undivided) = roomy.undivided.as_ref().unwrap();
    assert!(undivided.bubble > 1.5 * divided.bubble && undivided.step_s > 1.1 * divided.step_s);
    let needed = |prediction: &Prediction| prediction.memory_bytes.iter().copied().fold(0.0, f64::max);
    assert!(needed(divided) > needed(undivided), "{divided:?} {undivided:?}");
    // Postponed work has no room, and the others are as before.
    let tight = choice(needed(undivided) * 1.001);
    assert!(tight.undivided.is_none() || tight.best.0.recompute, "{:?}", tight.best);
    assert!(tight.best.1.step_s > divided.step_s);
}
