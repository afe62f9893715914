//! A member with bad frames among good members.

use bytes::Bytes;
use longhaul_common::config::ValueFormat;
use longhaul_common::id::SiteId;
use longhaul_proto::control::message::{Refusal, RefusalReason};
use longhaul_proto::round::{Frame, FrameKind};

use super::super::contributions::add_carry;
use super::*;

/// Three fragments, and deadlines that are never missed.
const CALM: &str = "fragment_values = 32\ndeadline_floor_ms = 20000\ndeadline_ceiling_ms = 20000";
const BAD: SiteId = SiteId(2);

fn is_bad(frame: &Frame) -> bool {
    frame.header.kind == FrameKind::Contribution && frame.header.site == BAD
}

fn nan(frame: &mut Frame) {
    if is_bad(frame) {
        let mut body = frame.body.to_vec();
        let at = body.len() - 4;
        body[at..].copy_from_slice(&f32::NAN.to_le_bytes());
        frame.body = body.into();
    }
}

fn cut(frame: &mut Frame) {
    if is_bad(frame) {
        frame.body.truncate(3);
    }
}

fn too_large(frame: &mut Frame) {
    if is_bad(frame) {
        let mut values = vec![0.0; 32];
        Decoder::new().decode_add(&frame.body, 32, 1e4, &mut values).unwrap();
        let mut encoder = Encoder::new(CodecSpec::new(Selection::All, ValueFormat::F32)).unwrap();
        let mut body = Vec::new();
        encoder.encode(0, &values, &mut body).unwrap();
        frame.body = body.into();
    }
}

/// Trains all members through these rounds, from begun to begun. Returns the refusals.
fn train(rig: &mut Rig<3>, rounds: std::ops::Range<u64>) -> Vec<Refusal> {
    let mut refused = Vec::new();
    for round in rounds {
        rig.workers.iter_mut().for_each(|worker| worker.contribute(round));
        (0..3).for_each(|at| rig.apply(at, round));
        assert_nothing_is_lost(rig);
        rig.workers.iter_mut().for_each(|worker| worker.begin(round + 1));
        let reports = rig.workers.iter_mut().flat_map(Worker::round_reports);
        refused.extend(reports.flat_map(|report| report.refused));
    }
    refused
}

/// Returns the fragments not owned by the bad site: its frames to itself are never tampered with.
fn fragments_of_others(rig: &Rig<3>) -> Vec<FragmentId> {
    let membership = rig.workers[0].running().membership.as_ref().unwrap();
    let bad = rig.workers[BAD.0 as usize].member.worker;
    (0..3).map(FragmentId).filter(|fragment| membership.owner(*fragment) != Some(bad)).collect()
}

#[test]
fn who_sends_what_is_no_update_is_refused_and_the_others_train_on() {
    for (tamper, expected) in
        [(nan as fn(&mut Frame), RefusalReason::NotFinite), (cut, RefusalReason::Undecodable)]
    {
        let mut rig = training_of([1, 2, 3], CALM);
        assert_eq!(train(&mut rig, 0..1), []);
        let fragments = fragments_of_others(&rig);
        assert!(!fragments.is_empty());
        rig.tamper = tamper;
        let mut refused = train(&mut rig, 1..4);
        refused.sort_by_key(|refusal| (refusal.round, refusal.fragment));
        let refusal = |round, fragment| Refusal { site: BAD, round, fragment, reason: expected };
        let all = (1..4).flat_map(|round| fragments.iter().map(move |fragment| (Round(round), *fragment)));
        assert_eq!(refused, all.map(|(round, fragment)| refusal(round, fragment)).collect::<Vec<_>>());
        assert!(rig.workers[2].running().contributions.carry.is_some());

        // After its repair, the unplaced rest goes in.
        rig.tamper = |_| {};
        assert_eq!(train(&mut rig, 4..5), []);
        assert_eq!(rig.workers[2].running().contributions.carry, None);
    }
}

#[test]
fn who_sends_far_more_than_the_others_is_refused_once_their_measure_is_known() {
    let mut rig = training_of([1, 2, 3], CALM);
    assert_eq!(train(&mut rig, 0..4), []);
    let fragments = fragments_of_others(&rig);
    rig.tamper = too_large;
    let refused = train(&mut rig, 4..8);
    assert_eq!(refused.len(), 4 * fragments.len());
    for refusal in refused {
        let RefusalReason::Norm { times, of } = refusal.reason else { panic!("{refusal:?}") };
        assert!(refusal.site == BAD && times > 20.0 && of >= 8, "{refusal:?}");
    }
    assert!(rig.workers[0].local.iter().all(|value| value.abs() < 1e3));
    rig.tamper = |_| {};
    assert_eq!(train(&mut rig, 8..9), []);
}

#[test]
fn a_round_of_which_everything_is_refused_changes_nothing() {
    let mut rig = training_of(
        [1, 2, 3],
        "fragment_values = 96\ndeadline_floor_ms = 20000\ndeadline_ceiling_ms = 20000",
    );
    let worker = &mut rig.workers[0];
    let Stage::Running(running) = &mut worker.sync.stage else { unreachable!() };
    let contribution = |site| longhaul_proto::round::Contribution {
        site: SiteId(site),
        weight: 4,
        body: Bytes::from_static(b"no update"),
    };
    let reduction = running
        .codec
        .reducer
        .reduce(Round(0), FragmentId(0), vec![contribution(0), contribution(2)])
        .unwrap();
    assert_eq!(reduction.result, longhaul_proto::round::FragmentResult::nothing());
    assert_eq!(
        reduction.refused.iter().map(|refusal| refusal.site).collect::<Vec<_>>(),
        [SiteId(0), SiteId(2)]
    );
}

#[test]
fn what_is_carried_goes_out_in_portions_that_an_owner_accepts_and_none_of_it_is_lost() {
    let slice = [3.0f32, 4.0];
    let mut carry = [300.0f32, -400.0];
    let (mut sent, mut rounds) = ([0.0f64; 2], 0);
    loop {
        let mut out = slice;
        add_carry(&mut out, &mut carry, 20.0);
        let norm = out.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        assert!(norm <= 6.0 * 5.0 * 1.0001, "{norm}: five times the slice, and the slice");
        sent.iter_mut().zip(out).for_each(|(sum, value)| *sum += f64::from(value));
        rounds += 1;
        if carry == [0.0; 2] {
            break;
        }
    }
    assert_eq!(rounds, 20);
    for (sent, (slice, carried)) in sent.iter().zip(slice.iter().zip([300.0, -400.0])) {
        assert!((sent - (20.0 * f64::from(*slice) + carried)).abs() < 1e-3, "{sent}");
    }
    let (mut out, mut carry) = (slice, [300.0f32, -400.0]);
    add_carry(&mut out, &mut carry, 0.0);
    assert_eq!((out, carry), ([303.0, -396.0], [0.0; 2]), "an owner without a limit gets all at once");
    let (mut quiet, mut carry) = ([0.0f32; 2], [1.0f32, 1.0]);
    add_carry(&mut quiet, &mut carry, 20.0);
    assert_eq!((quiet, carry), ([0.0; 2], [1.0; 2]));
}
