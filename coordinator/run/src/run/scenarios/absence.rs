//! Members that are away.

use longhaul_proto::control::message::Join;

use super::*;

/// A run whose members' connections all broke, long after the grace.
fn cut_off() -> Story {
    let mut story = Story::training();
    for worker in [1, 2] {
        story.handle(Event::Closed { connection: ConnectionId(worker) });
    }
    story.now = Duration::from_secs(3600);
    story.handle(Event::Timer);
    story
}

#[test]
fn members_that_alone_hold_the_state_are_awaited_for_as_long_as_they_are_away() {
    let mut story = cut_off();
    assert_eq!(story.run.state().phase, Phase::Training);
    // The first one was restarted meanwhile, and has nothing.
    story.join(1, &[]);
    assert_eq!(story.run.state().phase, Phase::Training);
    story.resume(2, Generation(1));
    let told = story.told(2);
    assert!(matches!(&told[0], ToWorker::Welcome(welcome) if welcome.resumed), "{told:?}");
    assert!(matches!(told[1], ToWorker::Settle { .. }), "it goes on alone: {told:?}");
    assert!(matches!(story.told(1).as_slice(), [ToWorker::Heal { .. }]), "{:?}", story.told(1));
}

#[test]
fn members_that_are_away_are_given_up_for_a_checkpoint_or_for_enough_others() {
    let offer = CheckpointOffer {
        next_round: Round(0),
        state_hash: [7; 32],
        private: false,
        rank: 0,
        parts: 1,
        generation: WRITTEN_IN,
    };
    let mut story = cut_off();
    story.join(1, &[offer]);
    assert_eq!(story.run.state().phase, Phase::Gathering, "a state to go on from is here");

    let mut story = cut_off();
    for worker in [3, 4] {
        story.join(worker, &[]);
    }
    assert_eq!(story.told(4).last(), Some(&ToWorker::Prepare(Start::Fresh)));

    let mut story = cut_off();
    story.join(1, &[]);
    story.join(2, &[]);
    assert_eq!(story.told(2).last(), Some(&ToWorker::Prepare(Start::Fresh)), "nobody has anything");
}

/// It may have another address, or listen at another port.
#[test]
fn a_member_that_comes_back_from_elsewhere_is_where_it_says_in_the_next_generation() {
    let mut story = Story::training();
    let before = story.run.state().generations.present.clone().unwrap();
    let (elsewhere, second) = (SocketAddr::from((Ipv4Addr::LOCALHOST, 71)), ConnectionId(20));
    let (worker, address) = (WorkerId(2), Ipv4Addr::LOCALHOST.into());
    story.handle(Event::Opened { connection: second, worker, address });
    let held = Some((Generation(1), Round(0)));
    let join = Join { held, wan_address: elsewhere, ..crate::testing::joining(worker, "site-2") };
    story.handle(Event::Message { connection: second, message: ToCoordinator::Join(join) });
    let told = story.told(20);
    assert!(matches!(&told[0], ToWorker::Welcome(welcome) if welcome.resumed), "{told:?}");
    assert_eq!(
        told[1..],
        [ToWorker::Settle { generation: Generation(2) }],
        "others have to hear where it is"
    );
    story.handle(Event::Closed { connection: ConnectionId(2) });
    story.settled(1, 2, 1, 1);
    story.settled(20, 2, 1, 1);
    let membership = story.begun(1).membership;
    let members: Vec<_> =
        membership.members().iter().map(|member| (member.worker.0, member.wan_address)).collect();
    let first = before.members().find(|member| member.worker == WorkerId(1)).unwrap().wan_address;
    assert_eq!((membership.generation, members), (Generation(2), vec![(1, first), (2, elsewhere)]));
    story.handle(Event::Timer);
    assert_eq!(story.told(1), [], "once is enough");
}

/// Ten parameters are one fragment, of each of two sites.
#[test]
fn what_a_worker_that_leaves_had_yet_to_send_is_told_and_counted() {
    let mut story = Story::training();
    assert_eq!(story.run.status(0).accounting.residuals_lost, ResidualsLost::default());
    story.say(2, ToCoordinator::Leaving);
    story.settled(1, 2, 1, 1);
    assert_eq!(story.begun(1).membership.generation, Generation(2));
    let status = story.run.status(0);
    assert_eq!(
        status.accounting.residuals_lost,
        ResidualsLost { contributions: 1, ..ResidualsLost::default() }
    );
    let says = |text: &str| status.events.iter().any(|event| event.text.contains(text));
    assert!(says("unsent changes of w2 are lost"), "{:#?}", status.events);
}

/// The coordinator's machine was suspended when both were about to be missed.
#[test]
fn who_was_due_while_nobody_listened_is_heard_out() {
    let mut story = Story::training();
    story.pass_to(Duration::from_secs(6));
    assert_eq!(story.run.next_timeout(), Some(story.now), "they have said nothing since they came");
    story.now = Duration::from_secs(9);
    story.handle(Event::Timer);
    assert_eq!(story.run.status(0).cluster.members.len(), 2, "{:?}", story.commands);
    story.say(1, heartbeat(1));
    story.pass_to(Duration::from_secs(12));
    story.handle(Event::Timer);
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(2) }], "the other one is gone");
}

/// The silence that ends then is none, whichever worker is read first.
#[test]
fn the_first_to_be_heard_after_nobody_listened_was_not_silent() {
    let mut story = Story::training();
    let beat = |story: &mut Story, half_seconds: u64| {
        story.pass_to(Duration::from_millis(500 * half_seconds));
        [1, 2].into_iter().for_each(|worker| story.say(worker, heartbeat(1)));
    };
    (1..=200).for_each(|at| beat(&mut story, at));
    story.now = Duration::from_secs(160);
    story.say(2, heartbeat(1));
    (321..=322).for_each(|at| beat(&mut story, at));
    let of_second = &story.run.core.peers[&WorkerId(2)].silence;
    assert_eq!(
        of_second.over_at(&story.run.core.config.faults),
        Duration::from_secs(163),
        "two seconds later"
    );
}

/// It may be dead the next time, and nothing is known of its link.
#[test]
fn who_was_away_for_long_is_not_waited_for_as_long_when_it_is_back() {
    let mut story = Story::training();
    for worker in [1, 2] {
        story.handle(Event::Closed { connection: ConnectionId(worker) });
    }
    story.pass_to(Duration::from_secs(3600));
    story.resume(2, Generation(1));
    let back = story.now;
    for half_seconds in 1..=60u64 {
        story.pass_to(back + Duration::from_millis(500 * half_seconds));
        story.say(2, heartbeat(1));
    }
    story.pass_to(back + Duration::from_secs(33));
    let events = story.run.status(0).events;
    assert!(events.iter().any(|event| event.text.contains("is gone: silent for")), "{events:#?}");
}
