//! Round trips of all messages, and malformed ones.

use std::sync::Arc;

use std::net::SocketAddr;

use longhaul_common::config::{FRAGMENTS_MAX, TaskKind};
use longhaul_common::id::{FragmentId, Generation, Round, RunId, SiteId, WorkerId};
use longhaul_common::plan::{FragmentLayout, Membership};
use longhaul_common::sampler::{Positions, SampleFeed};
use longhaul_common::schedule::{Changes, Pace, RoundSchedule};
use longhaul_common::timeline::Assignment;
use proptest::prelude::*;

use super::super::message::{
    Adopted, Audit, CheckpointOffer, CheckpointReport, DataAt, DataHolders, DataName, Encoding,
    EvaluationData, GenerationStart, Heartbeat, HeldPart, HeldResult, Join, Measured, MeasuredLink, Member,
    ModelAt, ModelHolders, Profile, Ready, Refusal, RefusalReason, ReplicaMembers, RoundReport, SIGNS_MAX,
    SeenLink, Settled, Settlement, SignOfLife, Start, TaskScore, TimeSpent, Traffic, Welcome,
};
use super::super::{
    EnrolRefusal, EnrolReply, EnrolRequest, FromDesk, Grounds, ProbeReply, ProbeRequest, ToDesk,
};
use super::*;
use crate::identity::{TokenId, TokenRefusal};

const LAYOUT: FragmentLayout = FragmentLayout { values: 1000, fragment_values: 100 };

const SCHEDULE: RoundSchedule = RoundSchedule {
    warmup_rounds: 2,
    warmup_every: 1,
    every: 15,
    overlap: 15,
    groups: 1,
    exchanges: 1,
    steps: 4500,
    changes: Changes::NONE,
};

const DATA: DataName = DataName { data: [1; 32], catalogue: [2; 32] };

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], port))
}

fn member(worker: u32, site: u32) -> Member {
    Member {
        worker: WorkerId(worker),
        site: SiteId(site),
        lan_address: address(1),
        wan_address: SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 65_535)),
        upload_weight: 100,
    }
}

fn offer() -> CheckpointOffer {
    CheckpointOffer {
        next_round: Round(40),
        state_hash: [3; 32],
        private: true,
        rank: 2,
        parts: 3,
        generation: Generation(9),
    }
}

fn assignment() -> Assignment {
    let backlog: Vec<Positions> = vec![0..4, 100..1 << 40];
    let feed = SampleFeed { first_step: 30, backlog, cursor: 1 << 41 };
    Assignment { feed, workers: vec![WorkerId(1), WorkerId(300)], weights: vec![64_u32, 300].into() }
}

fn refusals() -> Vec<Refusal> {
    let reasons = [
        RefusalReason::Undecodable,
        RefusalReason::WrongLength,
        RefusalReason::NotFinite,
        RefusalReason::Norm { times: 2.75, of: 32 },
    ];
    let refusal = |reason| Refusal { site: SiteId(1), round: Round(300), fragment: FragmentId(2), reason };
    reasons.map(refusal).to_vec()
}

fn to_coordinator() -> Vec<ToCoordinator> {
    let report = RoundReport {
        generation: Generation(2),
        round: Round(9),
        loss: Some(2.5),
        gradient_norm: Some(1.5),
        samples: 32,
        sites: vec![SiteId(0), SiteId(1)],
        residual_ratio: None,
        state_hash: [4; 32],
        skipped: vec![Round(7)],
        validation_loss: Some(2.75),
        validation_accuracy: Some(0.75),
        refused: refusals(),
        refused_beyond: 300,
        measured: Some(Measured { step_s: 0.5, round_trip_s: 0.05, bit_s: 1e-3, spare_cores: 6.5 }),
        audit: Audit { fragments: 3, worst: 0.5 },
    };
    let result = HeldResult { fragment: FragmentId(1), hash: [5; 32], sites: vec![SiteId(1)] };
    let checkpoint = |outcome| CheckpointReport {
        next_round: Round(40),
        generation: Generation(9),
        path: "/tmp/c".to_owned(),
        outcome,
    };
    vec![
        ToCoordinator::Join(Join {
            incarnation: u64::MAX,
            site: "amsterdam".to_owned(),
            lan_address: address(1),
            wan_address: address(2),
            device: "host, cpu".to_owned(),
            memory_bytes: 24 << 30,
            host_memory_bytes: Some(64 << 30),
            held: Some((Generation(2), Round(9))),
            too_late_ms: Some(11_700),
            checkpoints: vec![offer()],
        }),
        ToCoordinator::Ready(Ready {
            next_round: Round(0),
            rank: 0,
            state_hash: [1; 32],
            parameters: 124_000_000,
            samples: 1000,
            data_hash: [2; 32],
            evaluation: EvaluationData { held_out: [3; 32], questions: [4; 32] },
        }),
        ToCoordinator::Heartbeat(Heartbeat {
            step: 7,
            time: TimeSpent { compute_s: 0.5, ..TimeSpent::default() },
            loss: 3.25,
            ..Heartbeat::default()
        }),
        ToCoordinator::RoundApplied(report),
        ToCoordinator::Settled(Settled {
            generation: Generation(3),
            open_round: Round(10),
            computing: Round(11),
            results: vec![result],
        }),
        ToCoordinator::Checkpoint(checkpoint(Ok([6; 32]))),
        ToCoordinator::Checkpoint(checkpoint(Err("no space".to_owned()))),
        ToCoordinator::Finished {
            next_round: Round(300),
            validation_loss: Some(2.75),
            validation_accuracy: Some(0.75),
        },
        ToCoordinator::Leaving,
        ToCoordinator::Failed { reason: "out of memory".to_owned() },
        ToCoordinator::Profile(Profile { flops_per_s: 5e10, vocabulary: 256, gradient_hash: 3 }),
        ToCoordinator::Links(vec![Some(MeasuredLink { bytes_per_s: 1.25e7, round_trip_s: 0.05 }), None]),
        ToCoordinator::Kept(Some(offer())),
        ToCoordinator::SeenLinks(vec![SeenLink {
            to: SiteId(300),
            link: MeasuredLink { bytes_per_s: 6.25e6, round_trip_s: 0.08 },
        }]),
        ToCoordinator::Archived(vec![offer()]),
        ToCoordinator::SiteHeartbeat {
            own: Heartbeat {
                step: 7,
                time: TimeSpent { wait_s: 0.5, ..TimeSpent::default() },
                ..Heartbeat::default()
            },
            others: vec![SignOfLife { worker: WorkerId(300), incarnation: u64::MAX, age_ms: 51 }],
        },
        ToCoordinator::OutOfReach(vec![WorkerId(2), WorkerId(300)]),
        ToCoordinator::Data(DataAt::Nowhere),
        ToCoordinator::Data(DataAt::Here(DATA)),
        ToCoordinator::Data(DataAt::Fetched(DATA)),
        ToCoordinator::Model(ModelAt::Nowhere),
        ToCoordinator::Model(ModelAt::Here([4; 32])),
    ]
}

fn to_worker() -> Vec<ToWorker> {
    let settlement = Settlement {
        open_round: Round(10),
        complete_at: vec![WorkerId(1)],
        results: vec![Adopted {
            fragment: FragmentId(1),
            hash: [5; 32],
            holders: vec![WorkerId(1), WorkerId(2)],
        }],
    };
    let members = vec![member(1, 0), member(2, 0), member(300, 1)];
    let start = GenerationStart {
        membership: Membership::assign(Generation(3), members, LAYOUT, 1),
        settlement: Some(settlement),
        first_round: Round(12),
        active_before: [WorkerId(1)].into(),
        assignments: vec![Arc::new(assignment())],
        until: Round(300),
        schedule: SCHEDULE,
        replica: Some(ReplicaMembers { session: Generation(2), ranks: vec![member(2, 0), member(7, 1)] }),
        checkpoint: true,
    };
    vec![
        ToWorker::Welcome(Welcome {
            run: RunId([7; 16]),
            config: "[run]\n".to_owned(),
            site: SiteId(1),
            resumed: true,
        }),
        ToWorker::Prepare(Start::Fresh),
        ToWorker::Prepare(Start::Checkpoint(offer())),
        ToWorker::Prepare(Start::Held(vec![HeldPart { offer: offer(), holders: vec![member(300, 1)] }])),
        ToWorker::Keep(HeldPart { offer: offer(), holders: Vec::new() }),
        ToWorker::Revoked { workers: vec![WorkerId(3), WorkerId(300)] },
        ToWorker::Heal { donors: vec![member(1, 0)] },
        ToWorker::Settle { generation: Generation(3) },
        ToWorker::Begin(Arc::new(start)),
        ToWorker::Dismiss { reason: "done".to_owned() },
        ToWorker::Refused { reason: "revoked".to_owned() },
        ToWorker::Placed { rank: Some(1) },
        ToWorker::Placed { rank: None },
        ToWorker::Probe { peers: vec![member(300, 1)] },
        ToWorker::Speak,
        ToWorker::Handover,
        ToWorker::DataHolders(DataHolders::default()),
        ToWorker::DataHolders(DataHolders {
            name: Some(DATA),
            holders: vec![member(1, 0)],
            neighbours: vec![member(300, 1)],
        }),
        ToWorker::ModelHolders(ModelHolders::default()),
        ToWorker::ModelHolders(ModelHolders { model: Some([4; 32]), holders: vec![member(1, 0)] }),
    ]
}

fn requests() -> Vec<EnrolRequest> {
    [Grounds::Token { id: TokenId([1; 8]), proof: [2; 32] }, Grounds::Renewal]
        .map(|grounds| EnrolRequest { grounds, request: vec![0x30; 200], site: "amsterdam".to_owned() })
        .to_vec()
}

fn replies() -> Vec<EnrolReply> {
    let refusals = [
        EnrolRefusal::Token(TokenRefusal::Unknown),
        EnrolRefusal::Token(TokenRefusal::WrongSecret),
        EnrolRefusal::Token(TokenRefusal::Revoked),
        EnrolRefusal::Token(TokenRefusal::Expired),
        EnrolRefusal::Token(TokenRefusal::UsedUp),
        EnrolRefusal::NoCertificate,
        EnrolRefusal::Revoked,
        EnrolRefusal::BadRequest("damaged".to_owned()),
        EnrolRefusal::SiteName,
        EnrolRefusal::Full,
    ];
    let admitted = EnrolReply::Admitted { certificate: vec![0x30; 500], authority: vec![0x30; 400] };
    refusals.into_iter().map(EnrolReply::Refused).chain([admitted]).collect()
}

/// Checks that messages survive a round trip, that every cut is an error, and that every flipped bit gives a
/// message or an error.
fn check<T: ControlMessage + PartialEq + std::fmt::Debug>(messages: &[T]) {
    for message in messages {
        let bytes = encode(message).unwrap();
        assert!(bytes.len() <= T::BYTES_MAX);
        assert_eq!(decode::<T>(&bytes).as_ref(), Ok(message));
        for at in 0..bytes.len() {
            assert!(decode::<T>(&bytes[..at]).is_err(), "{message:?} cut to {at} bytes");
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                // A sequence cannot be longer than its bytes, whatever its length field.
                if let Ok(other) = decode::<T>(&flipped) {
                    assert!(encode(&other).unwrap().len() <= bytes.len());
                }
            }
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(decode::<T>(&longer), Err(DecodeError::Trailing { bytes: 1 }));
    }
}

#[test]
fn every_message_to_the_coordinator_survives_the_wire() {
    check(&to_coordinator());
}

#[test]
fn every_message_to_a_worker_survives_the_wire() {
    check(&to_worker());
}

#[test]
fn every_message_of_an_enrolment_survives_the_wire() {
    check(&requests());
    check(&replies());
}

#[test]
fn every_message_at_the_desk_survives_the_wire() {
    let probes = [ProbeRequest::Echo, ProbeRequest::Upload].map(ToDesk::Probe);
    check(&requests().into_iter().map(ToDesk::Enrol).chain(probes).collect::<Vec<_>>());
    let results = [
        ProbeReply::Echo { unix_ms: u64::MAX },
        ProbeReply::Uploaded { bytes: 2 << 20, span_us: 300_000 },
        ProbeReply::Busy,
    ];
    check(
        &replies().into_iter().map(FromDesk::Enrol).chain(results.map(FromDesk::Probe)).collect::<Vec<_>>(),
    );
}

#[test]
fn messages_are_the_golden_bytes() {
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    // By postcard's specification: a varint for the variant's place, then the fields; 300 = 0xac 0x02. An
    // option is a zero, or a one and the value; 2.75f32 = 0x40300000, little-endian.
    let finished = |validation_loss, validation_accuracy| ToCoordinator::Finished {
        next_round: Round(300),
        validation_loss,
        validation_accuracy,
    };
    assert_eq!(hex(encode(&finished(None, None)).unwrap()), "06ac020000");
    assert_eq!(hex(encode(&finished(Some(2.75), None)).unwrap()), "06ac02010000304000");
    assert_eq!(hex(encode(&finished(Some(2.75), Some(0.5))).unwrap()), "06ac020100003040010000003f");
    let scores = vec![TaskScore { kind: TaskKind::HellaSwag, right: [2, 300], questions: 301 }];
    let scores = ToCoordinator::Scores { next_round: Round(300), scores };
    assert_eq!(hex(encode(&scores).unwrap()), "07ac02010102ac02ad02");
    assert_eq!(hex(encode(&ToCoordinator::Leaving).unwrap()), "08");
    // Step, tokens, selected tokens, seven doubles of seconds, six counts, 2.75f32, and an option of two
    // floats.
    let heartbeat = ToCoordinator::Heartbeat(Heartbeat {
        step: 300,
        tokens: 7,
        selected_tokens: 5,
        time: TimeSpent {
            compute_s: 0.5,
            wait_s: 0.0,
            data_wait_s: 0.5,
            checkpoint_s: 0.0,
            encode_s: 0.5,
            encode_wait_s: 0.0,
            bubble_s: 0.5,
        },
        traffic: Traffic {
            wan_sent_bytes: 1,
            wan_received_bytes: 2,
            lan_sent_bytes: 3,
            dense_bytes: 300,
            data_wan_bytes: 301,
            data_lan_bytes: 4,
        },
        loss: 2.75,
        encoding: Some(Encoding { density: 0.5, value_bits: 4.0 }),
    });
    let (zero, half) = ("0000000000000000", "000000000000e03f");
    let expected = format!(
        "02ac020705{half}{zero}{half}{zero}{half}{zero}{half}010203ac02ad020400003040010000003f00008040"
    );
    assert_eq!(hex(encode(&heartbeat).unwrap()), expected);
    let report = ToCoordinator::RoundApplied(RoundReport {
        generation: Generation(2),
        round: Round(300),
        loss: None,
        gradient_norm: Some(0.5),
        samples: 32,
        sites: vec![SiteId(1)],
        residual_ratio: None,
        state_hash: [4; 32],
        skipped: Vec::new(),
        validation_loss: None,
        validation_accuracy: None,
        refused: refusals()[2..].to_vec(),
        refused_beyond: 300,
        measured: Some(Measured { step_s: 2.75, round_trip_s: 0.5, bit_s: 0.25, spare_cores: 2.0 }),
        audit: Audit { fragments: 3, worst: 0.5 },
    });
    // Two refusals: site, round, fragment, the reason's place; of the norm 2.75f32 and 32. Then the number of
    // others.
    let refused = "02".to_owned() + "01ac020202" + "01ac02020300003040" + "20" + "ac02";
    // One, and four floats.
    let measured = "01".to_owned() + "00003040" + "0000003f" + "0000803e" + "00000040";
    let audit = "03".to_owned() + "0000003f";
    let expected = "0302ac0200010000003f20010100".to_owned()
        + &"04".repeat(32)
        + "000000"
        + &refused
        + &measured
        + &audit;
    assert_eq!(hex(encode(&report).unwrap()), expected);
    let (ones, twos) = ("01".repeat(32), "02".repeat(32));
    let data = ToCoordinator::Data(DataAt::Fetched(DATA));
    assert_eq!(hex(encode(&data).unwrap()), "1102".to_owned() + &ones + &twos);
    let holders = DataHolders { name: Some(DATA), ..DataHolders::default() };
    let holders = encode(&ToWorker::DataHolders(holders)).unwrap();
    assert_eq!(hex(holders), "0c01".to_owned() + &ones + &twos + "0000");
    assert_eq!(
        hex(encode(&ToCoordinator::Model(ModelAt::Here([1; 32]))).unwrap()),
        "1201".to_owned() + &ones
    );
    let holders = ModelHolders { model: Some([2; 32]), holders: Vec::new() };
    assert_eq!(hex(encode(&ToWorker::ModelHolders(holders)).unwrap()), "0e01".to_owned() + &twos + "00");
    assert_eq!(hex(encode(&ToWorker::Settle { generation: Generation(3) }).unwrap()), "0303");
    assert_eq!(hex(encode(&ToWorker::Prepare(Start::Fresh)).unwrap()), "0100");
    assert_eq!(hex(encode(&ToWorker::Placed { rank: Some(300) }).unwrap()), "0701ac02");
    // One entry of the list is present: two doubles, 0.5 = 0x3fe0…
    let half = MeasuredLink { bytes_per_s: 0.5, round_trip_s: 0.5 };
    let links = ToCoordinator::Links(vec![None, Some(half)]);
    assert_eq!(hex(encode(&links).unwrap()), "0b020001".to_owned() + &"000000000000e03f".repeat(2));
    let ways = ToCoordinator::SeenLinks(vec![SeenLink { to: SiteId(300), link: half }]);
    assert_eq!(hex(encode(&ways).unwrap()), "0c01ac02".to_owned() + &"000000000000e03f".repeat(2));
    let kept = CheckpointOffer {
        next_round: Round(300),
        state_hash: [3; 32],
        private: false,
        rank: 1,
        parts: 2,
        generation: Generation(300),
    };
    let expected = "0d01ac02".to_owned() + &"03".repeat(32) + "000102ac02";
    assert_eq!(hex(encode(&ToCoordinator::Kept(Some(kept))).unwrap()), expected);
    assert_eq!(hex(encode(&ToCoordinator::Archived(Vec::new())).unwrap()), "0e00");
    let out_of_reach = ToCoordinator::OutOfReach(vec![WorkerId(2), WorkerId(300)]);
    assert_eq!(hex(encode(&out_of_reach).unwrap()), "100202ac02");
    assert_eq!(hex(encode(&ToWorker::Prepare(Start::Held(Vec::new()))).unwrap()), "010200");
    assert_eq!(hex(encode(&ToWorker::Dismiss { reason: "done".to_owned() }).unwrap()), "0504646f6e65");
    assert_eq!(
        hex(encode(&EnrolReply::Refused(EnrolRefusal::Token(TokenRefusal::Expired))).unwrap()),
        "010003"
    );
    assert_eq!(hex(encode(&ToDesk::Probe(ProbeRequest::Upload)).unwrap()), "0101");
    let uploaded = ProbeReply::Uploaded { bytes: 300, span_us: 7 };
    assert_eq!(hex(encode(&FromDesk::Probe(uploaded)).unwrap()), "0101ac0207");
}

/// Steps of 15, and of 20 from round 6 on, in two turns.
#[test]
fn the_bytes_of_a_schedule_with_a_change_of_pace_are_pinned() {
    let schedule = SCHEDULE.changed_at(Round(6), Pace { overlap: 20, groups: 2, every: 20 });
    let bytes = postcard::to_allocvec(&schedule).unwrap();
    assert_eq!(bytes, [2, 1, 15, 15, 1, 1, 0x94, 0x23, 0, 1, 6, 62, 20, 2, 20]);
    assert_eq!(postcard::from_bytes::<RoundSchedule>(&bytes).unwrap(), schedule);
    let too_many = [&bytes[..9], &[17], &[6, 62, 20, 2, 20].repeat(17)[..]].concat();
    assert!(postcard::from_bytes::<RoundSchedule>(&too_many).is_err());
}

#[test]
fn the_start_of_the_largest_run_fits_into_a_frame() {
    let layout = FragmentLayout { values: FRAGMENTS_MAX.into(), fragment_values: 1 };
    let holders: Vec<_> = (0..256).map(WorkerId).collect();
    let results = layout
        .fragments()
        .map(|fragment| Adopted { fragment, hash: [0xff; 32], holders: holders.clone() })
        .collect();
    let members = (0..256).map(|worker| member(worker, worker % 64)).collect();
    let start = ToWorker::Begin(Arc::new(GenerationStart {
        membership: Membership::assign(Generation(1 << 40), members, layout, 1),
        settlement: Some(Settlement { open_round: Round(1 << 40), complete_at: holders.clone(), results }),
        first_round: Round(1 << 40),
        active_before: holders.into(),
        assignments: vec![Arc::new(assignment())],
        until: Round(1 << 41),
        schedule: SCHEDULE,
        replica: None,
        checkpoint: false,
    }));
    let bytes = encode(&start).unwrap().len();
    assert!(bytes < CONTROL_FRAME_BYTES_MAX / 2, "{bytes} bytes leave no room for growth");
    assert!(bytes > CONTROL_FRAME_BYTES_MAX / 8, "{bytes} bytes: the limit is needlessly loose");
}

#[test]
fn the_heartbeat_of_the_largest_site_is_a_short_message() {
    let sign = SignOfLife { worker: WorkerId(10_000), incarnation: u64::MAX, age_ms: 1000 };
    let own = Heartbeat::default();
    let bytes = encode(&ToCoordinator::SiteHeartbeat { own, others: vec![sign; SIGNS_MAX] }).unwrap().len();
    assert!(bytes < 16 << 10, "{bytes}");
}

proptest! {
    #[test]
    fn random_bytes_do_not_make_a_decoder_panic(bytes: Vec<u8>) {
        let _ = decode::<ToCoordinator>(&bytes);
        let _ = decode::<ToWorker>(&bytes);
        let _ = decode::<EnrolRequest>(&bytes);
        let _ = decode::<EnrolReply>(&bytes);
        let _ = decode::<ToDesk>(&bytes);
        let _ = decode::<FromDesk>(&bytes);
    }

    #[test]
    fn messages_with_random_bytes_inside_do_not_make_a_decoder_panic(
        which in 0usize..10, at: prop::sample::Index, noise in prop::collection::vec(any::<u8>(), 1..16),
    ) {
        let mut bytes = encode(&to_worker()[which]).unwrap();
        let at = at.index(bytes.len());
        bytes.splice(at..at, noise);
        if let Ok(message) = decode::<ToWorker>(&bytes) {
            prop_assert!(encode(&message).is_ok());
        }
    }
}
