//! Single situations of a run, event by event.

mod absence;
mod absent_holders;
mod archived;
mod backlog;
mod base_model;
mod catching_up;
mod data;
mod evaluations;
mod extended;
mod forks;
mod gradients;
mod handovers;
mod healing;
mod moves;
mod operate;
mod pace;
mod pipelines;
mod planning;
mod privacy;
mod problems;
mod punctuality;
mod reach;
mod refusals;
mod replanning;
mod scores;
mod shares;
mod slow_joiners;
mod spoken_for;
mod tensor_groups;
mod together;
mod warmup;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::testing::{Story, config, finished, heartbeat, parsed, ready, report, run_toml};
use longhaul_common::config::RunConfig;
use longhaul_common::id::{FragmentId, Generation, Round, SiteId, WorkerId};
use longhaul_proto::control::message::{
    CheckpointOffer, GenerationStart, HeldResult, Member, Ready, RoundReport, Settled, Start, ToCoordinator,
    ToWorker,
};
use longhaul_run_toml::{Gpt2, RunToml};

use super::{Command, ConnectionId, Event, LedgerStatus, Phase, ResidualsLost, Run, RunState, Severity};

/// Later than any generation of these runs began: nothing that these checkpoints have was undone since.
const WRITTEN_IN: Generation = Generation(1000);

#[test]
fn an_unspecified_address_becomes_the_one_that_the_coordinator_sees() {
    let story = Story::training();
    let lineup = story.run.state().generations.present.as_ref().unwrap();
    assert_eq!(lineup.members().next().unwrap().lan_address, SocketAddr::from((Ipv4Addr::LOCALHOST, 70)));
}

#[test]
fn a_worker_with_other_data_is_refused_and_told_what_differs() {
    type Change = fn(&mut Ready);
    let changes: [(Change, [&str; 2]); 4] = [
        (|other| other.samples = 99, ["99 samples, the run's has 100", "data.path"]),
        (|other| other.data_hash = [4; 32], ["training data differs from the run's", "data.path"]),
        (|other| other.evaluation.held_out = [4; 32], ["held-out data differs", "data.validation"]),
        (|other| other.evaluation.questions = [4; 32], ["questions differ", "evaluate.tasks"]),
    ];
    for (change, words) in changes {
        let mut story = Story::new();
        story.join(1, &[]);
        story.join(2, &[]);
        story.say(1, ready(0, 7));
        let ToCoordinator::Ready(mut other) = ready(0, 7) else { unreachable!() };
        change(&mut other);
        story.say(2, ToCoordinator::Ready(other));
        let told = story.told(2);
        let [ToWorker::Refused { reason }] = told.as_slice() else { panic!("{told:?}") };
        assert!(words.iter().all(|words| reason.contains(words)), "{reason}");
        assert_eq!(story.run.state().phase, Phase::Gathering);
    }
}

#[test]
fn whoever_starts_with_another_state_heals_from_the_lowest_numbered_worker() {
    let mut story = Story::new();
    story.join(1, &[]);
    story.join(2, &[]);
    story.say(2, ready(0, 8));
    story.say(1, ready(0, 7));
    let told = story.told(2);
    let [ToWorker::Heal { donors }] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!(donors.iter().map(|donor| donor.worker).collect::<Vec<_>>(), [WorkerId(1)]);
    story.say(2, ready(0, 7));
    assert_eq!(story.begun(2).first_round, Round(0));
}

#[test]
fn a_cold_start_takes_the_newest_checkpoint_and_the_others_heal_from_its_holder() {
    let offer = |next_round, hash| CheckpointOffer {
        next_round: Round(next_round),
        state_hash: [hash; 32],
        private: false,
        rank: 0,
        parts: 1,
        generation: WRITTEN_IN,
    };
    let mut story = Story::new();
    story.join(1, &[offer(4, 4)]);
    story.join(2, &[offer(6, 6), offer(4, 4)]);
    assert_eq!(story.told(2).last(), Some(&ToWorker::Prepare(Start::Checkpoint(offer(6, 6)))));
    assert!(story.told(1).is_empty());
    // An answer to something that was asked before does not count.
    story.say(2, ready(0, 7));
    assert!(story.told(1).is_empty());
    story.say(2, ready(6, 6));
    assert!(matches!(story.told(1).as_slice(), [ToWorker::Heal { .. }]));
    story.say(1, ready(6, 6));
    assert_eq!(story.begun(1).first_round, Round(6));
}

/// A checkpoint of no parts would be complete for any holder, and of no use.
#[test]
fn a_checkpoint_of_no_parts_or_of_a_part_that_there_is_not_is_none() {
    let mut story = Story::new();
    let offer = |rank, parts| CheckpointOffer {
        next_round: Round(6),
        state_hash: [6; 32],
        private: false,
        rank,
        parts,
        generation: WRITTEN_IN,
    };
    story.join(1, &[offer(0, 0), offer(2, 2)]);
    story.join(2, &[]);
    assert_eq!(story.told(1).last(), Some(&ToWorker::Prepare(Start::Fresh)));
}

#[test]
fn a_silent_member_is_taken_out_and_its_share_is_given_out_again() {
    let mut story = Story::training();
    story.pass_to(Duration::from_secs(3));
    story.applied(1, 0, 9);
    story.pass_to(Duration::from_secs(6));
    assert_eq!(story.run.next_timeout(), Some(Duration::from_secs(6)));
    assert_eq!(story.run.status(0).cluster.members.len(), 2);
    story.handle(Event::Timer);
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(2) }]);
    story.settled(1, 2, 1, 2);
    let start = story.begun(1);
    assert_eq!((start.first_round, &*start.active_before), (Round(3), &[WorkerId(1)][..]));
    // Rounds 1 and 2, two steps each, two samples a step.
    let redo: u64 =
        start.assignments.last().unwrap().feed.backlog.iter().map(|range| range.end - range.start).sum();
    assert_eq!(redo, 8);
}

/// A worker that heals while the membership changes: the survivors' open round is 1.
fn healing_while_a_donor_dies() -> Story {
    let mut story = Story::training();
    story.join(3, &[]);
    assert!(matches!(story.told(3).last(), Some(ToWorker::Heal { .. })), "{:?}", story.told(3));
    story.handle(Event::Closed { connection: ConnectionId(2) });
    story.settled(1, 2, 1, 2);
    assert_eq!(story.begun(1).settlement.unwrap().open_round, Round(1));
    story
}

#[test]
fn a_healed_state_with_rounds_that_are_done_again_is_fetched_anew() {
    let mut story = healing_while_a_donor_dies();
    // The dead donor alone had completed rounds 1 and 2.
    story.say(3, ready(3, 8));
    let told = story.told(3);
    let [ToWorker::Heal { donors }] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!(donors.iter().map(|donor| donor.worker).collect::<Vec<_>>(), [WorkerId(1)]);
    assert!(story.told(1).is_empty(), "no generation begins for it");
    story.say(3, ready(3, 7));
    assert_eq!(
        story.told(1),
        [ToWorker::Settle { generation: Generation(3) }],
        "what it fetched since counts"
    );
}

#[test]
fn a_healed_state_that_ends_before_the_open_round_is_taken() {
    let mut story = healing_while_a_donor_dies();
    story.say(3, ready(1, 8));
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(3) }]);
}

#[test]
fn a_joiner_that_was_ready_before_the_settle_is_held_to_the_round_that_it_leaves_open() {
    let mut story = Story::training();
    story.join(3, &[]);
    story.say(3, ready(2, 8));
    story.settled(1, 2, 1, 1);
    story.settled(2, 2, 1, 1);
    assert_eq!(story.begun(1).membership.members().len(), 2);
    assert!(matches!(story.told(3).as_slice(), [ToWorker::Heal { .. }]), "{:?}", story.told(3));
}

#[test]
fn who_is_ready_waits_a_little_for_others_that_heal() {
    for is_in_time in [true, false] {
        let mut story = Story::training();
        [3, 4].into_iter().for_each(|worker| story.join(worker, &[]));
        story.say(3, ready(0, 7));
        assert!(story.told(1).is_empty(), "{:?}", story.told(1));
        let ready_at = story.now;
        if is_in_time {
            story.now += Duration::from_millis(499);
            story.say(4, ready(0, 7));
        } else {
            assert_eq!(story.run.next_timeout(), Some(ready_at + Duration::from_millis(500)));
            story.now += Duration::from_millis(500);
            story.handle(Event::Timer);
        }
        assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(2) }]);
        [1, 2].into_iter().for_each(|worker| story.settled(worker, 2, 1, 2));
        assert_eq!(story.begun(1).membership.members().len(), 3 + usize::from(is_in_time));
    }
}

#[test]
fn all_survivors_are_active_before_the_first_round_of_new_members_even_those_that_have_not_begun() {
    let mut story = Story::training();
    story.join(3, &[]);
    story.say(3, ready(0, 7));
    story.settled(1, 2, 1, 2);
    story.settled(2, 2, 1, 2);
    let start = story.begun(3);
    assert_eq!((start.first_round, &*start.active_before), (Round(3), &[WorkerId(1), WorkerId(2)][..]));
    // Before w3 takes part, the membership changes again.
    story.handle(Event::Closed { connection: ConnectionId(2) });
    story.settled(1, 3, 1, 2);
    story.settled(3, 3, 1, 0);
    let start = story.begun(1);
    assert_eq!((start.first_round, &*start.active_before), (Round(3), &[WorkerId(1), WorkerId(3)][..]));
}

#[test]
fn new_members_begin_with_the_open_round_when_all_devices_are_behind_it() {
    let mut story = Story::training();
    story.handle(Event::Closed { connection: ConnectionId(2) });
    story.settled(1, 2, 5, 2);
    assert_eq!(story.begun(1).first_round, Round(5));
}

#[test]
fn nobody_begins_a_round_beyond_the_end() {
    let mut story = Story::training();
    story.handle(Event::Closed { connection: ConnectionId(2) });
    story.settled(1, 2, 9, 9);
    assert_eq!(story.begun(1).first_round, Round(10));
}

#[test]
fn a_member_whose_bits_differ_is_named_and_heals() {
    let mut story = Story::training();
    story.applied(1, 0, 9);
    story.applied(2, 0, 5);
    let told = story.told(2);
    assert!(matches!(told.as_slice(), [ToWorker::Heal { .. }]), "{told:?}");
    let loud =
        |command: &Command| matches!(command, Command::Report(notice) if notice.severity == Severity::Error);
    assert!(story.commands.iter().any(loud));
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(2) }]);
}

#[test]
fn a_drain_ends_with_the_rounds_that_are_begun() {
    let mut story = Story::training();
    story.handle(Event::Drain);
    story.settled(1, 2, 2, 3);
    story.settled(2, 2, 2, 2);
    assert_eq!(story.begun(1).until, Round(4));
    for worker in [1, 2] {
        story.say(worker, finished(4, None));
    }
    assert!(matches!(story.told(1).as_slice(), [ToWorker::Dismiss { .. }]));
    assert_eq!(story.run.state().phase, Phase::Finished);
    assert_eq!(story.run.state().rounds.ledger.counted().len(), 4 * 2 * 4);
}

#[test]
fn a_finished_run_still_tells_what_it_took_and_who_took_part() {
    let mut story = Story::training();
    for (worker, tokens) in [(1, 100), (2, 300)] {
        story.say(worker, heartbeat(tokens));
    }
    story.now = Duration::from_secs(4);
    for (worker, tokens) in [(1, 200), (2, 600)] {
        story.say(worker, heartbeat(tokens));
        story.applied(worker, 0, 9);
    }
    let before = story.run.status(0);
    story.handle(Event::Drain);
    for worker in [1, 2] {
        story.settled(worker, 2, 1, 0);
    }
    for (worker, loss) in [(1, Some(2.0)), (2, Some(3.0))] {
        story.say(worker, finished(1, loss));
    }
    let status = story.run.status(0);
    assert_eq!((status.run.phase, status.training.validation_loss), (Phase::Finished, Some(2.5)));
    assert_eq!(
        (status.throughput.tokens, status.traffic.wan_bytes, status.traffic.dense_bytes),
        (800, 8_000, 80_000)
    );
    assert_eq!(
        (status.traffic.bytes_ratio, status.throughput.share_of_local_speed_mean),
        (Some(10.0), Some(0.75))
    );
    assert_eq!((status.overhead.data_wait_ms, status.overhead.data_wait_share), (800_000.0, Some(0.2)));
    assert_eq!(
        (status.throughput.tokens_per_s_mean, status.throughput.tokens_per_s),
        (Some(200.0), before.throughput.tokens_per_s)
    );
    let members: Vec<_> = status.cluster.members.iter().map(|member| member.work.state.as_str()).collect();
    assert_eq!(members, ["finished", "finished"]);
    assert!(
        status
            .cluster
            .members
            .iter()
            .all(|member| member.work.state_hash.as_deref() == Some(&"09".repeat(32)))
    );
    let books = LedgerStatus { positions_applied: 8, given_out: 8, ..LedgerStatus::default() };
    assert_eq!(status.samples.ledger, books);
    // A restarted coordinator sends the same.
    let again = Run::new(config(), story.run.state().clone(), Duration::ZERO).unwrap().status(0);
    assert_eq!(
        (again.cluster.members, again.throughput.tokens_per_s, again.cluster.parity),
        (status.cluster.members, status.throughput.tokens_per_s, status.cluster.parity)
    );
}

#[test]
fn what_a_worker_did_before_it_was_restarted_counts_once() {
    let mut story = Story::training();
    story.say(1, heartbeat(100));
    story.say(2, heartbeat(100));
    story.handle(Event::Closed { connection: ConnectionId(2) });
    assert_eq!(story.run.status(0).throughput.tokens, 200);
    story.join(2, &[]);
    story.say(2, heartbeat(0));
    story.say(2, heartbeat(50));
    assert_eq!(story.run.status(0).throughput.tokens, 250);
}

#[test]
fn a_coordinator_that_is_started_again_counts_nothing_twice() {
    let mut story = Story::training();
    story.say(1, heartbeat(100));
    story.run = Run::new(config(), story.run.state().clone(), Duration::ZERO).unwrap();
    story.resume(1, Generation(1));
    story.say(1, heartbeat(150));
    assert_eq!(story.run.status(0).throughput.tokens, 150);
}

#[test]
fn a_run_in_which_a_round_was_skipped_says_by_how_many_samples_it_is_short() {
    let mut story = Story::training();
    story.applied(1, 0, 9);
    story.say(
        2,
        ToCoordinator::RoundApplied(RoundReport {
            generation: Generation(1),
            round: Round(0),
            loss: None,
            gradient_norm: None,
            samples: 0,
            sites: vec![SiteId(0)],
            residual_ratio: None,
            state_hash: [9; 32],
            skipped: vec![Round(0)],
            validation_loss: None,
            validation_accuracy: None,
            refused: Vec::new(),
            refused_beyond: 0,
            measured: None,
            audit: Default::default(),
        }),
    );
    story.handle(Event::Drain);
    for worker in [1, 2] {
        story.settled(worker, 2, 1, 0);
    }
    for worker in [1, 2] {
        story.say(worker, finished(1, None));
    }
    let status = story.run.status(0);
    // A round has two steps of four samples, half of them the second worker's.
    assert_eq!((status.progress.step, status.samples.counted), (2, 4));
    let says = |text: &str| status.events.iter().any(|event| event.text.contains(text));
    assert!(says("4 of 8 samples were not trained on"), "{:#?}", status.events);
}

/// Samples that count never decrease: late ones count with the result that contains them.
#[test]
fn what_waits_for_a_later_result_counts_with_it_or_is_given_out_again() {
    let books = |story: &Story| {
        let status = story.run.status(0);
        (status.samples.counted, status.samples.late, status.samples.pending)
    };
    let with = |sites: Vec<SiteId>, round| {
        let mut story = Story::training();
        for round in 0..=round {
            for worker in [1, 2] {
                let report = RoundReport {
                    sites: if round == 0 { vec![SiteId(0)] } else { sites.clone() },
                    ..report(round, 9)
                };
                story.say(worker, ToCoordinator::RoundApplied(report));
            }
        }
        story
    };
    // Of eight samples, four are the second worker's.
    assert_eq!(books(&with(Vec::new(), 0)), (4, 4, 0));
    assert_eq!(books(&with(vec![SiteId(0), SiteId(1)], 1)), (16, 0, 0));
    let mut story = with(vec![SiteId(0)], 1);
    assert_eq!(books(&story), (8, 8, 0));
    story.handle(Event::Closed { connection: ConnectionId(2) });
    story.settled(1, 2, 2, 2);
    let (counted, late, _) = books(&story);
    assert_eq!((counted, late), (8, 0));
    assert_eq!(story.run.state().rounds.ledger.counted().len(), 8, "lost samples do not count");
}

#[test]
fn a_settle_starts_over_with_a_new_number_when_somebody_dies_in_it() {
    let mut story = Story::training();
    story.handle(Event::Drain);
    story.settled(1, 2, 1, 1);
    story.handle(Event::Closed { connection: ConnectionId(2) });
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(3) }]);
    story.settled(1, 2, 1, 1);
    assert!(story.told(1).is_empty(), "an answer to the first settle is none to the second");
    story.settled(1, 3, 1, 1);
    assert_eq!(story.begun(1).membership.generation, Generation(3));
}

#[test]
fn who_breaks_the_protocol_is_taken_out() {
    let mut story = Story::training();
    story.applied(1, 10, 9);
    assert!(matches!(&story.commands[0], Command::Close { reason, .. } if reason.contains("not begun")));
    let mut story = Story::new();
    story.handle(Event::Opened {
        connection: ConnectionId(1),
        worker: WorkerId(1),
        address: Ipv4Addr::LOCALHOST.into(),
    });
    story.say(1, ToCoordinator::Leaving);
    assert!(
        matches!(&story.commands[0], Command::Close { reason, .. } if reason.contains("before it joined"))
    );
}

/// A member that was cut off with it, and comes back, has the others' state.
#[test]
fn a_round_whose_results_all_count_is_not_of_a_past_that_was_given_up() {
    let result = HeldResult { fragment: FragmentId(0), hash: [1; 32], sites: vec![SiteId(0), SiteId(1)] };
    for (results, last_that_counts) in [(vec![result], 4), (Vec::new(), 3)] {
        let mut story = Story::training();
        story.handle(Event::Closed { connection: ConnectionId(2) });
        let (generation, open_round, computing) = (Generation(2), Round(3), Round(3));
        story.say(1, ToCoordinator::Settled(Settled { generation, open_round, computing, results }));
        assert_eq!(story.begun(1).settlement.unwrap().open_round, open_round);
        let is_undone = |next_round: u64| {
            let written = CheckpointOffer {
                next_round: Round(next_round),
                state_hash: [7; 32],
                private: true,
                rank: 0,
                parts: 1,
                generation: Generation(1),
            };
            story.run.state().lineage.rewinds.have_undone(&written)
        };
        let first_undone = (0..10).find(|next| is_undone(*next));
        assert_eq!(first_undone, Some(last_that_counts + 1));
    }
}
