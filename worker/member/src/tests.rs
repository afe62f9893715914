mod average;
pub(super) mod finished;
mod healing;
mod masking;
mod members;
mod owner;
mod privacy;
mod refused;
mod warmup;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longhaul_checkpoint::{CheckpointData, CheckpointStore, ModelState, PrivateState};
use longhaul_common::id::{FragmentId, Generation, Round, RunId, SiteId, WorkerId};
use longhaul_proto::codec::{CodecSpec, Decoder, Encoder, Selection};
use longhaul_proto::control::message::{AUDIT_MAX, CheckpointOffer, RoundReport, Start, ToWorker};

use super::layouts::Layouts;
use super::running::Stage;
use super::saved::{Saved, UnsentUpdates};
use super::{HealedState, SyncEvent, hash_of};
use crate::adapt::ladder::chain_for;
use crate::encode::compressor::{Compressor, Job, Local};
use crate::encode::error_feedback::ErrorFeedback;
use crate::encode::pool::CodecPool;
use crate::message::{DeviceState, FromDevice, Load, RoundUpdate, ToDevice};
use crate::reduce::mean::set_weighted_mean;
use crate::testing::{Rig, VALUES, Worker};

const SPARSE: &str = "fragment_values = 32";
const DENSE: &str = "preset = \"dense\"\nfragment_values = 96";

/// Two members in their first round.
fn training(sync: &str) -> Rig {
    training_of([1, 2], sync)
}

/// Members with these numbers in their first round.
fn training_of<const N: usize>(numbers: [u32; N], sync: &str) -> Rig<N> {
    Rig::new(numbers, sync).training()
}

fn assert_nothing_is_lost<const N: usize>(rig: &Rig<N>) {
    for worker in &rig.workers {
        let kept = worker.kept();
        for (index, kept) in kept.iter().enumerate() {
            let (learnt, counted) = (worker.learnt[index], worker.counted[index]);
            let gap = (learnt - counted - kept).abs();
            assert!(gap < 1e-4, "{}: {learnt} learnt, {counted} counted, {kept} kept", worker.member.worker);
        }
    }
    let hashes = rig.workers.each_ref().map(|worker| worker.running().replica.hash());
    assert_eq!(hashes, [hashes[0]; N]);
}

#[test]
fn nothing_is_lost_over_rounds_in_time_late_rounds_and_void_ones() {
    let mut rig = training(SPARSE);
    rig.workers.iter_mut().for_each(|worker| worker.contribute(0));
    (0..2).for_each(|at| rig.apply(at, 0));
    assert_nothing_is_lost(&rig);

    // The second one is too late for round 1.
    rig.workers.iter_mut().for_each(|worker| worker.begin(1));
    rig.workers[0].contribute(1);
    rig.apply(0, 1);
    rig.workers[1].contribute(1);
    rig.apply(1, 1);
    assert!(rig.workers[1].running().contributions.carry.is_some());
    assert_nothing_is_lost(&rig);

    // A generation ends after the first one has contributed to round 2 and before the second one has: the round is void.
    rig.workers.iter_mut().for_each(|worker| worker.begin(2));
    rig.workers[0].contribute(2);
    let answers = rig.workers.each_mut().map(|worker| (worker.member.worker, worker.settle(2)));
    let old = rig.begin(1, &[0, 1], 0, &[], None).membership;
    let layout = rig.layout();
    let settled = longhaul_proto::round::settle(&old, layout, rig.schedule(), &answers.into()).unwrap();
    assert_eq!((settled.settlement.open_round, settled.first_round), (Round(2), Round(3)));
    let start = rig.begin(2, &[0, 1], 3, &[0, 1], Some(settled.settlement));
    for worker in &mut rig.workers {
        worker.hear(ToWorker::Begin(Arc::new(start.clone())));
    }
    rig.workers[1].contribute(2);
    (0..2).for_each(|at| rig.apply(at, 2));
    assert_nothing_is_lost(&rig);

    let [a, b] = rig.workers.each_mut().map(Worker::round_reports);
    let hashes = |reports: &[RoundReport]| {
        reports.iter().map(|report| (report.round, report.state_hash)).collect::<Vec<_>>()
    };
    assert_eq!(hashes(&b).last(), hashes(&a).last(), "both report the same state after round 2");
}

/// A deadline is a moment of the session, a thread's wait is a duration: an hour into a session, these differ.
#[test]
fn a_member_waits_for_as_long_as_it_is_until_a_round_closes_however_old_the_session_is() {
    let mut rig = training(SPARSE);
    assert!(rig.workers.iter().all(|worker| worker.sync.wait().is_none()));
    rig.pass(Duration::from_secs(3600));
    rig.workers[0].contribute(0);
    rig.pump(|workers| workers.iter().any(|worker| worker.sync.timeout().is_some()));
    let waits = || rig.workers.iter().filter_map(|worker| worker.sync.wait());
    assert!(waits().count() > 0);
    // The ceiling of the deadline.
    assert!(waits().all(|wait| wait <= Duration::from_millis(200)), "{:?}", waits().collect::<Vec<_>>());
}

#[test]
fn a_slow_member_jumps_to_the_others_and_carries_what_came_too_late() {
    let mut rig = training(SPARSE);
    for round in 0..4 {
        rig.workers[0].contribute(round);
        rig.apply(0, round);
        rig.workers[0].begin(round + 1);
    }
    rig.pump(|workers| workers[1].running().member.open_round() == Round(4));
    rig.workers[1].contribute(0);
    (0..4).for_each(|round| rig.workers[1].count(Round(round)));
    let enter = rig.enter(1, 4);
    assert_eq!(enter.round, Round(4));
    let Load::Parameters(loaded) = &enter.load else { panic!("{:?}", enter.load) };
    assert_eq!(loaded, &**rig.workers[0].running().replica.parameters());
    assert_nothing_is_lost(&rig);

    // It reports each round as the first one does, which may not be there any more.
    let [first, slow] = rig.workers.each_mut().map(Worker::round_reports);
    let results = |reports: &[RoundReport]| {
        reports.iter().map(|of| (of.round, of.sites.clone(), of.state_hash)).collect::<Vec<_>>()
    };
    assert_eq!(results(&slow), results(&first));
    assert_eq!(slow.last().map(|last| last.state_hash), Some(rig.workers[1].running().replica.hash()));
    let part = |report: RoundReport| (report.samples, report.sites, report.skipped);
    let skipped = |rounds: &[u64]| (0, vec![SiteId(0)], rounds.iter().copied().map(Round).collect());
    let expected = vec![(4, vec![SiteId(0)], Vec::new()), skipped(&[1]), skipped(&[2]), skipped(&[1, 2, 3])];
    assert_eq!(slow.into_iter().map(part).collect::<Vec<_>>(), expected);

    // Its carry is part of its next contribution.
    rig.workers[1].begin(4);
    rig.workers.iter_mut().for_each(|worker| worker.contribute(4));
    (0..2).for_each(|at| rig.apply(at, 4));
    assert_nothing_is_lost(&rig);
}

#[test]
fn a_frame_of_the_wrong_length_or_without_finite_values_is_left_out() {
    use longhaul_proto::round::Local as Received;
    let mut rig = training(SPARSE);
    rig.workers[0].contribute(0);
    let worker = rig.workers[1].member.worker;
    let [first, _] = &mut rig.workers;
    let Stage::Running(running) = &mut first.sync.stage else { unreachable!() };
    let fragment = FragmentId(0);
    let local = |body: Option<Vec<u8>>| Received { worker, weight: 4, body: body.map(Bytes::from) };
    let compress = |running: &mut super::running::Running, locals: &[Received]| {
        running.codec.compressor.restore(Default::default());
        super::compression::compress(running, Round(0), &[(fragment, locals.to_vec())]).unwrap()
    };
    let alone = compress(running, &[local(None)]);
    let nan = f32::NAN.to_le_bytes().repeat(32);
    for damaged in [vec![0; 4 * 31], vec![0; 4 * 32 + 1], Vec::new(), nan] {
        assert_eq!(compress(running, &[local(None), local(Some(damaged))]), alone);
    }
    let sound = 1f32.to_le_bytes().repeat(32);
    assert_ne!(compress(running, &[local(None), local(Some(sound))]), alone);
}

#[test]
fn a_retracted_compression_leaves_the_residual_as_it_was_bit_for_bit() {
    let rig = Rig::new([1, 2], SPARSE);
    let layout = longhaul_common::plan::FragmentLayout { values: VALUES as u64, fragment_values: 32 };
    let mut compressor = Compressor::new(
        RunId([0; 16]),
        &rig.workers[0].sync.config.sync,
        Layouts::new(layout, None, rig.schedule()),
        0,
        CodecPool::of(1),
    )
    .unwrap();
    let update = |round: usize| (0..32).map(|i| ((i * 5 + round) % 11) as f32 / 3.0).collect::<Vec<_>>();
    let compress = |compressor: &mut Compressor, round: u64| {
        let values = update(round as usize);
        let job = Job { fragment: FragmentId(1), locals: vec![(4, Local::Own(&values))], base: None };
        compressor.compress(Round(round), &[job]).remove(0).unwrap()
    };
    compress(&mut compressor, 0);
    let before = compressor.memories().clone();
    let diverged =
        Job { fragment: FragmentId(1), locals: vec![(4, Local::Own(&[f32::NAN; 32]))], base: None };
    assert!(compressor.compress(Round(1), &[diverged]).remove(0).is_err());
    assert_eq!(compressor.memories(), &before);
    let first = compress(&mut compressor, 1);
    let after = compressor.memories().clone();
    assert_ne!(before, after);
    compressor.retract(Round(1), FragmentId(1));
    assert_eq!(compressor.memories(), &before);
    assert_eq!(compress(&mut compressor, 1), first, "the same again gives the same bytes");
    assert_eq!(compressor.memories(), &after);
    compressor.retract(Round(0), FragmentId(1));
    assert_eq!(compressor.memories(), &after, "a decided round is not retracted");
}

/// As with bits that follow a link: later rounds send each chain's remainder.
#[test]
fn chains_that_change_from_round_to_round_lose_nothing() {
    let rig =
        Rig::new([1, 2], "preset = \"auto\"\nwarmup_rounds = 1\nwarmup_share = 0.0\nfragment_values = 96");
    let layout = longhaul_common::plan::FragmentLayout { values: VALUES as u64, fragment_values: 96 };
    let layouts = Layouts::new(layout, None, rig.schedule());
    let sync = &rig.workers[0].sync.config.sync;
    let mut compressor = Compressor::new(RunId([0; 16]), sync, layouts, 0, CodecPool::of(1)).unwrap();
    let (mut came_in, mut sent) = (vec![0.0; VALUES], vec![0.0; VALUES]);
    let mut formats = std::collections::BTreeSet::new();
    for (round, bits) in (1..).zip([0.1, 2.5, 40.0, 0.6, 4.2, 0.0, 17.0, 8.3, 1.0, 33.0, 0.3]) {
        let chain = chain_for(bits, sync.chunk);
        formats.insert((chain.selection == Selection::All, chain.values.name()));
        compressor.adapt(chain);
        let values: Vec<f32> =
            (0..VALUES as u64).map(|i| ((i * 5 + round * 3) % 23) as f32 / 7.0 - 1.5).collect();
        let job = Job { fragment: FragmentId(0), locals: vec![(4, Local::Own(&values))], base: None };
        let body = compressor.compress(Round(round), &[job]).remove(0).unwrap();
        let mut received = vec![0.0; VALUES];
        Decoder::new().decode_add(&body, VALUES, 1.0, &mut received).unwrap();
        came_in.iter_mut().zip(&values).for_each(|(sum, value)| *sum += f64::from(*value));
        sent.iter_mut().zip(&received).for_each(|(sum, value)| *sum += f64::from(*value));
        let memories = compressor.memories();
        for at in 0..VALUES {
            let left = memories.get(&FragmentId(0)).map_or(0.0, |memory| f64::from(memory.residual[at]));
            let gap = (came_in[at] - sent[at] - left).abs();
            assert!(
                gap < 1e-4,
                "round {round}: {} came in, {} was sent, {left} is left",
                came_in[at],
                sent[at]
            );
        }
    }
    assert_eq!(formats.len(), 6, "top-k, and all values in every format: {formats:?}");
    // The run audits itself, too, now and then.
    let mut report = super::rounds::empty_report(Round(11));
    compressor.audit().hand_over(&mut report);
    assert!(report.audit.fragments > 0 && report.audit.worst < AUDIT_MAX, "{:?}", report.audit);
}

#[test]
fn a_mean_leaves_out_what_does_not_decode_and_shares_its_weight_out() {
    let spec = CodecSpec::new(Selection::All, longhaul_common::config::ValueFormat::F32);
    let encode = |value: f32| {
        let mut body = Vec::new();
        Encoder::new(spec).unwrap().encode(0, &[value; 8], &mut body).unwrap();
        Bytes::from(body)
    };
    let (one, four, damaged) = (encode(1.0), encode(4.0), Bytes::from_static(b"not a frame"));
    let (mut values, mut decoder) = (vec![10.0; 8], Decoder::default());
    let parts = [(1, &one), (5, &damaged), (3, &four)];
    // (1·1 + 3·4)/4
    assert_eq!((set_weighted_mean(&parts, &mut decoder, &mut values), &values), (1, &vec![3.25; 8]));
    assert_eq!(set_weighted_mean(&[(5, &damaged)], &mut decoder, &mut values), 1);
    assert_eq!(values, [0.0; 8]);
}

/// Of two members in a site, one has no samples, and so no gradient either.
#[test]
fn a_member_without_samples_has_nothing_in_the_mean() {
    let mut rig = Rig::at_sites([1, 2, 3], [0, 0, 1], DENSE).training();
    for (worker, (value, weight)) in rig.workers.iter_mut().zip([(Some(1.0), 4), (None, 0), (Some(3.0), 4)]) {
        worker.send_weighted(0, value.map_or_else(Vec::new, |value| vec![value; VALUES]), weight);
    }
    let mut means = RefCell::new(Vec::new());
    rig.pump(|workers| {
        for worker in workers {
            if let Ok(ToDevice::Apply { update: RoundUpdate::Mean(mean), .. }) = worker.device.try_recv() {
                means.borrow_mut().push(mean);
            }
        }
        means.borrow().len() == 3
    });
    assert!(means.get_mut().iter().flatten().all(|value| *value == 2.0));
}

/// The choice of the encoding thread changes no bit of sent or kept values.
#[test]
fn fragments_that_are_compressed_side_by_side_are_as_those_one_after_the_other() {
    let sparse = Rig::new([1, 2], SPARSE);
    let corrected = Rig::new([1, 2], "preset = \"dgc\"\nkeep = 2\nfragment_values = 16");
    for rig in [sparse, corrected] {
        let sync = &rig.workers[0].sync.config.sync;
        let layout = longhaul_common::plan::FragmentLayout { values: VALUES as u64, fragment_values: 16 };
        let layouts = Layouts::new(layout, None, rig.schedule());
        let mut compressors = [1, 3].map(|threads| {
            Compressor::new(RunId([0; 16]), sync, layouts, 0, CodecPool::of(threads)).unwrap()
        });
        for round in 0..20_u64 {
            let values: Vec<f32> =
                (0..VALUES as u64).map(|i| ((i * 5 + round * 3) % 23) as f32 - 11.0).collect();
            let bodies = compressors.each_mut().map(|compressor| {
                let job = |fragment| {
                    let own = Local::Own(&values[layout.range(fragment)]);
                    Job { fragment, locals: vec![(4, own)], base: None }
                };
                let jobs: Vec<Job<'_>> = layout.fragments().map(job).collect();
                let bodies = compressor.compress(Round(round), &jobs);
                bodies.into_iter().map(Result::unwrap).collect::<Vec<_>>()
            });
            assert_eq!(bodies[0].len(), 6);
            assert_eq!(bodies[0], bodies[1], "{round}");
            assert_eq!(compressors[0].memories(), compressors[1].memories());
        }
        assert_eq!(compressors.map(|compressor| compressor.lanes()), [1, 3]);
    }
}
