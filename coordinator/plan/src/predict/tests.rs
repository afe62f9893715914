//! Closed forms.

use std::collections::BTreeMap;

use longhaul_common::config::RunConfig;
use longhaul_common::model::ModelSpec;
use longhaul_common::pipeline::PipelineSchedule;

use super::super::workload::tests::{config, run_toml};
use super::super::{Device, DeviceId, Site};
use longhaul_common::pipeline::Pipeline;

use super::super::coding::{CoreTime, Holders, largest_share};
use super::*;

/// Two sites of two devices of 10^11 FLOPs a second, and a link of 100 Mbit/s and 50 ms between them.
fn topology() -> Topology {
    let device = Device { flops_per_s: 1e11, memory_bytes: 4e9, host_memory_bytes: None };
    let lan = Link { bytes_per_s: 1.25e9, round_trip_s: 0.0 };
    let site = |name: &str| Site { name: name.into(), devices: vec![device; 2], lan, knows_lan: true };
    let wan = Link { bytes_per_s: 12.5e6, round_trip_s: 0.05 };
    Topology::new(vec![site("a"), site("b")], BTreeMap::from([((0, 1), wan)])).unwrap()
}

fn workload(sync: &str) -> Workload {
    let config = config(sync);
    Workload::of(&config, &ModelSpec::resolve(&config.model, 256).unwrap())
}

fn plan(replicas: &[&[(usize, usize)]], stages: &[u32], micro_batches: u32) -> Plan {
    let id = |&(site, device): &(usize, usize)| DeviceId { site, device };
    let starts = std::iter::once(&0).chain(stages);
    Plan {
        replicas: replicas.iter().map(|ranks| ranks.iter().map(id).collect()).collect(),
        stages: starts.zip(stages).map(|(start, end)| *start..*end).collect(),
        pipeline: Pipeline {
            schedule: PipelineSchedule::OneForwardOneBackward,
            ranks: stages.len() as u32,
            chunks: 1,
            micro_batches,
            in_flight: Vec::new(),
        },
        recompute: false,
    }
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}

const FLOPS_PER_TOKEN: f64 =
    3.0 * (6.0 * 24.0 * 384.0 * 384.0 + 6.0 * 4.0 * 128.0 * 384.0 + 2.0 * 384.0 * 256.0);

#[test]
fn one_device_computes_its_flops() {
    let alone = predict(&topology(), &workload(""), &plan(&[&[(0, 0)]], &[8], 4)).unwrap();
    assert!(close(alone.step_s, FLOPS_PER_TOKEN * 16.0 * 128.0 / 1e11), "{alone:?}");
    assert_eq!((alone.sync_s, alone.links.len()), (0.0, 0));
    assert!(close(alone.tokens_per_s * alone.step_s, 16.0 * 128.0));
}

/// Half of the dense gradients goes there, and half of the results comes back; transfers during the last of two micro-batches are
/// hidden.
#[test]
fn dense_replicas_on_two_sites_exchange_a_model() {
    let work = workload("preset = \"dense\"");
    let two = predict(&topology(), &work, &plan(&[&[(0, 0)], &[(1, 0)]], &[8], 2)).unwrap();
    let (compute_s, bytes) = (FLOPS_PER_TOKEN * 8.0 * 128.0 / 1e11, 4.0 * 10_893_312.0);
    let sync_s = bytes / 12.5e6 + 1.5 * 0.05;
    assert!(close(two.compute_s, compute_s) && close(two.sync_s, sync_s), "{two:?}");
    assert!(close(two.step_s, compute_s + sync_s - compute_s / 2.0 * 2.0 / 3.0));
    let load = two.links[0];
    assert!(load.between == (0, 1) && close(load.sync_bytes, bytes) && load.pipeline_bytes == 0.0);
}

/// Core time of the exchange on a single-core device, with this many bits of a parameter in a step.
fn coding_s(work: &Workload, bits: f64) -> f64 {
    let holders = Holders { sites: 2.0, devices: 1.0, parameters: 10_893_312.0 };
    CoreTime::of(&work.exchange.with_bits(bits), holders).of_computing_s(Some(1.0))
}

/// `auto` sends the bits that fit into a step, and no fewer than its least bits. The computing cores encode as well.
#[test]
fn bits_that_follow_the_link_hide_where_they_can() {
    let replicas = plan(&[&[(0, 0)], &[(1, 0)]], &[8], 2);
    let work = workload("");
    let wide = predict(&topology(), &work, &replicas).unwrap();
    let most = work.exchange.most_bits.unwrap();
    assert!(close(wide.step_s, wide.compute_s + coding_s(&work, most)), "{wide:?}");
    let mut gpus = topology();
    gpus.sites.iter_mut().flat_map(|site| &mut site.devices).for_each(|d| d.host_memory_bytes = Some(4e9));
    let beside = predict(&gpus, &work, &replicas).unwrap();
    assert!(close(beside.step_s, beside.compute_s) && close(beside.compute_s, wide.compute_s), "{beside:?}");
    assert!(wide.sync_s > 0.0 && wide.sync_s <= wide.compute_s * (1.0 + 1e-9));
    let mut narrow = topology();
    narrow = Topology::new(
        narrow.sites.clone(),
        BTreeMap::from([((0, 1), Link { bytes_per_s: 125.0, round_trip_s: 0.05 })]),
    )
    .unwrap();
    let narrow = predict(&narrow, &workload(""), &replicas).unwrap();
    assert!(narrow.step_s > narrow.compute_s && close(narrow.step_s, narrow.sync_s), "{narrow:?}");
}

/// The pair of sites that is slowest decides, whether by its rate or by its round trips.
#[test]
fn bits_follow_the_link_that_has_least_room() {
    let mut sites = topology().sites;
    sites.push(Site { name: "c".into(), ..sites[0].clone() });
    let (slow, far) =
        (Link { bytes_per_s: 5e5, round_trip_s: 0.0 }, Link { bytes_per_s: 1.25e9, round_trip_s: 0.2 });
    let links = BTreeMap::from([((0, 1), slow), ((0, 2), far), ((1, 2), far)]);
    let topology = Topology::new(sites, links).unwrap();
    let three =
        predict(&topology, &workload(""), &plan(&[&[(0, 0)], &[(1, 0)], &[(2, 0)]], &[8], 2)).unwrap();
    assert!(three.step_s > three.compute_s && three.sync_s <= three.compute_s * (1.0 + 1e-9), "{three:?}");
    // As many bits as the slow pair carries beside a step, and no fewer: the site that owns most sends half of the rest as contributions, and its own share as a mean.
    let owned = largest_share((10_893_312.0f64 / 32_768.0).ceil(), 2.0, 3);
    let more = ((1.0 - owned) / 2.0 + owned) / (2.0 / 3.0);
    assert!(close(three.links[0].sync_bytes * more, three.compute_s * 5e5), "{three:?}");
}

/// A tied embedding goes there and its gradient back, and devices of a site reduce over its own network.
#[test]
fn what_ends_of_a_pipeline_and_members_of_a_site_exchange_counts() {
    let plain = workload("preset = \"dense\"");
    let tied = Workload { tied_values: 1_000_000, tied_gradient_bytes: 1e6, ..plain.clone() };
    let across = plan(&[&[(0, 0), (1, 0)]], &[4, 8], 4);
    let [plain_s, tied_s] = [&plain, &tied].map(|work| predict(&topology(), work, &across).unwrap().step_s);
    assert!(close(tied_s - plain_s, (4e6 + 1e6) / 12.5e6 + 2.0 * 0.025), "{tied_s} after {plain_s}");
    let beside = predict(&topology(), &plain, &plan(&[&[(0, 0)], &[(0, 1)]], &[8], 2)).unwrap();
    assert!(close(beside.sync_s, 4.0 * 10_893_312.0 / 1.25e9) && beside.links.is_empty(), "{beside:?}");
}

/// Eight sequences for each of two devices are one whole micro-batch, and four for each of four are half of one.
#[test]
fn a_micro_batch_that_is_not_full_takes_less() {
    let mut config = config("");
    config.train.micro_batch = 8;
    let work = Workload::of(&config, &ModelSpec::resolve(&config.model, 256).unwrap());
    let step_s = |replicas: &[&[(usize, usize)]]| {
        predict(&topology(), &work, &plan(replicas, &[8], work.micro_batches(replicas.len())))
            .unwrap()
            .compute_s
    };
    let (two, four) =
        (step_s(&[&[(0, 0)], &[(0, 1)]]), step_s(&[&[(0, 0)], &[(0, 1)], &[(1, 0)], &[(1, 1)]]));
    assert!(close(two, 2.0 * four), "{two} and {four}");
}

#[test]
fn a_pipeline_hands_on_what_its_micro_batches_leave() {
    let across = predict(&topology(), &workload(""), &plan(&[&[(0, 0), (1, 0)]], &[4, 8], 4)).unwrap();
    let boundary = 4.0 * 128.0 * 384.0 * 8.125 / 8.0;
    assert!(close(across.links[0].pipeline_bytes, 4.0 * boundary), "{across:?}");
    assert!(across.bubble > 0.2);
    let within = predict(&topology(), &workload(""), &plan(&[&[(0, 0), (0, 1)]], &[4, 8], 4)).unwrap();
    assert!(within.links.is_empty() && within.step_s < across.step_s);
    // Each has about half of the parameters, and no group has two members.
    assert!(within.sync_s == 0.0 && within.memory_bytes.len() == 2);
}

/// A fortieth of the values within a subspace, and behind a bottleneck alone.
#[test]
fn of_a_narrow_stream_less_is_handed_on() {
    let bytes = |model: &str, stages: &[u32]| {
        let run = run_toml().lines("model", model);
        let config = RunConfig::parse(&run.to_string()).unwrap();
        let work = Workload::of(&config, &ModelSpec::resolve(&config.model, 256).unwrap());
        let across = predict(&topology(), &work, &plan(&[&[(0, 0), (1, 0)]], stages, 4)).unwrap();
        across.links[0].pipeline_bytes / (4.0 * 4.0 * 128.0 * 8.125 / 8.0)
    };
    assert!(close(bytes("", &[4, 8]), 384.0));
    assert!(close(bytes("subspace = 10", &[4, 8]), 10.0));
    let bottleneck = "bottleneck = { width = 10, behind = [3] }";
    assert!(close(bytes(bottleneck, &[4, 8]), 10.0) && close(bytes(bottleneck, &[3, 8]), 384.0));
}

/// One micro-batch goes there and its gradient comes back, each at the pace of 256 KiB in 40 ms, after which the norms are added.
#[test]
fn a_message_between_ranks_leaves_at_the_pace_of_its_window() {
    let across = plan(&[&[(0, 0), (1, 0)]], &[4, 8], 1);
    let work = workload("preset = \"dense\"");
    let alone = predict(&topology(), &work, &plan(&[&[(0, 0)]], &[8], 1)).unwrap().compute_s;
    let bytes = work.boundary_bytes_per_token(&(0..4)) * 4.0 * 128.0;
    let paced_s = |bytes: f64| held_back_s(topology().link(0, 1), bytes) + bytes / 12.5e6;
    let across_s = predict(&topology(), &work, &across).unwrap().compute_s;
    assert!(close(across_s, alone + 2.0 * (0.025 + 1.8e-3 + paced_s(bytes)) + 0.025), "{across_s}");
    assert!(close(paced_s(50_000.0), 50_000.0 / 262_144.0 * 0.04), "{}", paced_s(50_000.0));
    // The window has grown: two thirds of a round trip, or the link's time.
    assert!(close(paced_s(300_000.0), 0.05 / 1.5) && close(paced_s(1e6), 0.08));
    assert_eq!(held_back_s(topology().link(0, 0), 300_000.0), 0.0);
}

/// Signs of the largest parts of transformed tiles are few bytes: decoding them takes longer than the link.
#[test]
fn where_coding_takes_longer_than_the_link_a_step_waits_for_it() {
    let work = workload("preset = \"demo\"");
    let replicas = plan(&[&[(0, 0)], &[(1, 0)]], &[8], 2);
    let two = predict(&topology(), &work, &replicas).unwrap();
    let holders = Holders { sites: 2.0, devices: 1.0, parameters: 10_893_312.0 };
    let CoreTime { contributing_s, receiving_s, .. } = CoreTime::of(&work.exchange, holders);
    assert!(close(two.sync_s, contributing_s + receiving_s + 1.5 * 0.05), "{two:?}");
    assert!(close(two.step_s, two.compute_s + two.sync_s), "{two:?}");
    assert!(two.links[0].sync_bytes / 12.5e6 < 0.1 * two.sync_s, "{two:?}");
}

/// One micro-batch goes there and its gradient comes back: 143.6 packets of 1391 bytes each way, of which one in a thousand is lost and takes a round trip more.
#[test]
fn a_packet_that_is_lost_takes_a_round_trip_more() {
    let text = |loss: &str| {
        let site =
            |name: &str| format!("[[site]]\nname = \"{name}\"\nworkers = 1\ntflops = 0.1\nmemory_gib = 4\n");
        format!("{}{}[wan]\nmbit = 100\nrtt_ms = 50\n{loss}", site("a"), site("b"))
    };
    let across = plan(&[&[(0, 0), (1, 0)]], &[4, 8], 1);
    let step_s = |loss: &str| {
        predict(&Topology::parse(&text(loss)).unwrap(), &workload("preset = \"dense\""), &across)
            .unwrap()
            .step_s
    };
    let more_s = step_s("loss_percent = 0.1\n") - step_s("");
    assert!(close(more_s, 2.0 * 0.05 * (1.0 - 0.999f64.powi(144))), "{more_s}");
}

#[test]
fn what_does_not_fit_says_what_is_lacking() {
    let mut small = topology();
    small.sites[0].devices[1].memory_bytes = 1e6;
    let work = workload("");
    let unfit = predict(&small, &work, &plan(&[&[(0, 0), (0, 1)]], &[4, 8], 4)).unwrap_err();
    assert!(matches!(unfit, Unfit::Memory { rank: 1, bytes: 1e6, .. }), "{unfit}");
    // Computing again takes time, and less memory.
    let plain = plan(&[&[(0, 0)]], &[8], 4);
    let again = Plan { recompute: true, ..plain.clone() };
    let [plain, again] = [plain, again].map(|plan| predict(&topology(), &work, &plan).unwrap());
    assert!(again.memory_bytes[0] < plain.memory_bytes[0] && close(again.step_s, plain.step_s * 4.0 / 3.0));
}

/// Each of two members does half of the layers' arithmetic, and sums over 10 Gbit/s with a millisecond there and back; the exchange is that of the whole model.
#[test]
fn a_tensor_group_computes_its_shares_and_sums_over_its_site() {
    let run = run_toml().set("sync.preset", "dense").set("parallel.tensor", 2);
    let config = RunConfig::parse(&run.to_string()).unwrap();
    let spec = ModelSpec::resolve(&config.model, 256).unwrap();
    let work = Workload::of(&config, &spec);
    let mut machines = topology();
    machines.sites.iter_mut().for_each(|site| site.lan.round_trip_s = 1e-3);
    let groups = machines.in_groups(2).unwrap();
    assert_eq!(groups.devices().count(), 2);
    let head = 2.0 * 384.0 * 256.0;
    let flops = (FLOPS_PER_TOKEN - 3.0 * head) / 2.0 + 3.0 * head;
    let computing_s = |tokens: f64| flops * tokens / 1e11;
    // Four sums in each of six layers, of which a member of two sends one half there and one half back.
    let sums_s =
        |tokens: f64, micro_batches: f64| 24.0 * (tokens * 384.0 * 4.0 / 1.25e9 + micro_batches * 1e-3);
    let alone = predict(&groups, &work, &plan(&[&[(0, 0)]], &[8], 4)).unwrap();
    assert!(close(alone.compute_s, computing_s(2048.0) + sums_s(2048.0, 4.0)), "{alone:?}");
    let again = Plan { recompute: true, ..plan(&[&[(0, 0)]], &[8], 4) };
    let once_more = predict(&groups, &work, &again).unwrap().compute_s;
    let forward_s = computing_s(2048.0) / 3.0;
    assert!(close(once_more, computing_s(2048.0) + forward_s + 1.5 * sums_s(2048.0, 4.0)), "{once_more}");

    let both = plan(&[&[(0, 0)], &[(1, 0)]], &[8], 2);
    let bytes = predict(&groups, &work, &both).unwrap().links[0].sync_bytes;
    let whole = predict(&topology(), &workload("preset = \"dense\""), &both).unwrap();
    assert!(close(bytes, whole.links[0].sync_bytes), "{bytes}");
    let fixed = |prediction: &Prediction| prediction.memory_bytes[0];
    assert!(
        fixed(&alone)
            < 0.75
                * fixed(
                    &predict(&topology(), &workload("preset = \"dense\""), &plan(&[&[(0, 0)]], &[8], 4))
                        .unwrap()
                )
    );
    assert!(machines.in_groups(3).is_err());
}

/// Three layers and an end on each of two sites: each group computes and sums half, and both members hand their stream on.
#[test]
fn stages_of_tensor_groups_sum_within_their_sites_and_each_member_hands_its_stream_on() {
    let of = |parallel: &str| {
        let run = run_toml().workers(4).set("sync.preset", "dense").lines("parallel", parallel);
        let config = RunConfig::parse(&run.to_string()).unwrap();
        Workload::of(&config, &ModelSpec::resolve(&config.model, 256).unwrap())
    };
    let (shared, whole) = (of("stages = 2\ntensor = 2\n"), of("stages = 2\n"));
    let groups = topology().in_groups(2).unwrap();
    let across = plan(&[&[(0, 0), (1, 0)]], &[4, 8], 4);
    let [found, apart] = [(&groups, &shared), (&topology(), &whole)]
        .map(|(machines, work)| predict(machines, work, &across).unwrap());
    assert!(close(found.links[0].pipeline_bytes, 2.0 * apart.links[0].pipeline_bytes));
    // Of four micro-batches, three layers with two sums in each direction, of which each member sends one half there and one half back.
    let sums_s = 2.0 * 3.0 * 2.0 * 2048.0 * 384.0 * 4.0 / 1.25e9;
    assert!(close(found.sums_s, sums_s), "{} for {sums_s}", found.sums_s);
    assert!(found.memory_bytes.iter().zip(&apart.memory_bytes).all(|(share, part)| share < part));
    // A generation of two such copies exchanges the same as two copies in two whole parts.
    let both = plan(&[&[(0, 0), (0, 1)], &[(1, 0), (1, 1)]], &[4, 8], 2);
    let mut four = topology();
    four.sites.iter_mut().for_each(|site| site.devices = site.devices.repeat(2));
    let sync_bytes = |machines: &Topology, work| predict(machines, work, &both).unwrap().links[0].sync_bytes;
    assert!(close(sync_bytes(&four.in_groups(2).unwrap(), &shared), sync_bytes(&topology(), &whole)));
    let head = 7..8;
    assert!(shared.may_be_stage(&(6..8)) && !shared.may_be_stage(&head) && whole.may_be_stage(&head));
}
