//! Holders of the run's data, and their announcement.

use longhaul_common::id::{Generation, WorkerId};
use longhaul_proto::control::message::{
    DATA_HOLDERS_MAX, DataAt, DataHolders, DataName, ToCoordinator, ToWorker,
};

use crate::run::{ConnectionId, Event, Severity};
use crate::testing::{Story, config, ready};

/// Data of the run, with this catalogue. `ready` names the same.
fn name(catalogue: u8) -> DataName {
    DataName { data: [3; 32], catalogue: [catalogue; 32] }
}

/// The last announcement to a worker, if any.
fn holders(story: &Story, worker: u32) -> Option<DataHolders> {
    story.told(worker).into_iter().rev().find_map(|message| match message {
        ToWorker::DataHolders(holders) => Some(holders),
        _ => None,
    })
}

fn numbers(members: &[longhaul_common::plan::Member]) -> Vec<u32> {
    members.iter().map(|member| member.worker.0).collect()
}

fn say(story: &mut Story, worker: u32, at: DataAt) {
    story.say(worker, ToCoordinator::Data(at));
}

fn run_of(workers: u32) -> Story {
    let mut config = config();
    (config.run.workers, config.train.batch) = (workers, 2 * workers);
    Story::of(config)
}

#[test]
fn who_has_nothing_is_told_of_those_who_have_its_own_site_first_and_of_each_who_comes_and_goes() {
    let mut story = run_of(5);
    for (worker, site) in [(1, "a"), (2, "b"), (3, "b"), (4, "b"), (5, "c")] {
        story.join_from(worker, site);
    }
    say(&mut story, 4, DataAt::Nowhere);
    assert_eq!(holders(&story, 4), Some(DataHolders::default()));
    say(&mut story, 1, DataAt::Here(name(1)));
    assert_eq!(numbers(&holders(&story, 4).unwrap().holders), [1]);
    assert_eq!(holders(&story, 4).unwrap().name, Some(name(1)));
    say(&mut story, 3, DataAt::Here(name(1)));
    assert_eq!(numbers(&holders(&story, 4).unwrap().holders), [3, 1]);
    assert_eq!(numbers(&holders(&story, 1).unwrap().holders), [1, 3]);
    // A fetching worker is named to its own site alone.
    say(&mut story, 4, DataAt::Fetched(name(1)));
    assert_eq!(numbers(&holders(&story, 4).unwrap().neighbours), [4]);
    // Few have all of it: workers that have fetched some come after them.
    assert_eq!(numbers(&holders(&story, 4).unwrap().holders), [3, 1, 4]);
    assert_eq!(
        (
            holders(&story, 3).map(|of| numbers(&of.neighbours)),
            holders(&story, 1).map(|of| numbers(&of.neighbours))
        ),
        (Some(vec![4]), Some(Vec::new()))
    );
    // A repeated report, perhaps of another session, is answered again.
    say(&mut story, 4, DataAt::Fetched(name(1)));
    assert!(holders(&story, 4).is_some() && holders(&story, 3).is_none());
    story.handle(Event::Closed { connection: ConnectionId(3) });
    assert_eq!(numbers(&holders(&story, 4).unwrap().holders), [1, 4]);
    // Without other holders, a worker gets those that have fetched some.
    story.handle(Event::Closed { connection: ConnectionId(1) });
    assert_eq!(numbers(&holders(&story, 4).unwrap().holders), [4]);
    say(&mut story, 5, DataAt::Nowhere);
    assert_eq!(numbers(&holders(&story, 5).unwrap().holders), [4]);
    // The worker without a report received nothing.
    assert!(holders(&story, 2).is_none());
}

#[test]
fn what_most_have_counts_until_members_train_and_then_what_they_train_on() {
    let mut story = run_of(4);
    for worker in 1..=4 {
        story.join(worker, &[]);
    }
    say(&mut story, 1, DataAt::Here(name(9)));
    say(&mut story, 2, DataAt::Here(name(1)));
    say(&mut story, 4, DataAt::Nowhere);
    say(&mut story, 3, DataAt::Here(name(1)));
    assert_eq!(holders(&story, 4).unwrap().name, Some(name(1)));
    // So it is where the data itself is another one.
    let other = DataName { data: [8; 32], catalogue: [8; 32] };
    say(&mut story, 1, DataAt::Here(other));
    say(&mut story, 4, DataAt::Nowhere);
    assert_eq!(holders(&story, 4).unwrap().name, Some(name(1)), "the lowest number alone decides");
    assert_eq!(numbers(&holders(&story, 4).unwrap().holders), [2, 3]);
    // Of two, the lower number.
    story.handle(Event::Closed { connection: ConnectionId(3) });
    assert_eq!(holders(&story, 4).unwrap().name, Some(other));
    let mut story = Story::training();
    say(&mut story, 1, DataAt::Here(DataName { data: [8; 32], catalogue: [8; 32] }));
    assert_eq!(holders(&story, 1).unwrap().name, None, "that is not what the run trains on");
    say(&mut story, 2, DataAt::Here(name(1)));
    assert_eq!(holders(&story, 1).unwrap().name, Some(name(1)));
    assert_eq!(numbers(&holders(&story, 1).unwrap().holders), [2]);
}

#[test]
fn a_coordinator_that_begins_again_names_nobody_until_it_knows_again_who_there_is() {
    let mut before = Story::training();
    say(&mut before, 1, DataAt::Here(name(1)));
    say(&mut before, 2, DataAt::Fetched(name(1)));
    assert_eq!(numbers(&holders(&before, 2).unwrap().holders), [1, 2]);
    let state = before.run.state().clone();
    let mut story = Story::of_state(config(), state.clone());
    story.resume(2, Generation(1));
    say(&mut story, 2, DataAt::Fetched(name(1)));
    assert!(holders(&story, 2).is_none(), "it is told that worker 1 is gone");
    story.resume(1, Generation(1));
    assert!(holders(&story, 2).is_none());
    say(&mut story, 1, DataAt::Here(name(1)));
    assert_eq!(numbers(&holders(&story, 2).unwrap().holders), [1, 2]);
    // The run does not wait for an absent worker.
    let mut story = Story::of_state(config(), state);
    story.resume(2, Generation(1));
    say(&mut story, 2, DataAt::Fetched(name(1)));
    story.handle(Event::Kick { worker: WorkerId(1) });
    assert_eq!(numbers(&holders(&story, 2).unwrap().holders), [2]);
}

#[test]
fn a_run_of_workers_that_all_have_nothing_is_told_to_people_once_and_goes_on_with_one_who_has_it() {
    let mut story = Story::new();
    story.join(1, &[]);
    say(&mut story, 1, DataAt::Nowhere);
    let problems = |story: &Story| story.run.status(0).problems.join("\n");
    assert!(problems(&story).contains("`--data remote`"), "{}", problems(&story));
    let told = |story: &Story| {
        let events = story.run.status(0).events;
        events
            .iter()
            .filter(|event| {
                event.severity == Severity::Error && event.text.contains("none has the run's data")
            })
            .count()
    };
    assert_eq!(told(&story), 0, "another one is to come");
    story.join(2, &[]);
    say(&mut story, 2, DataAt::Nowhere);
    say(&mut story, 1, DataAt::Nowhere);
    assert_eq!(told(&story), 1);
    assert_eq!(story.run.status(0).cluster.members[0].work.data.as_deref(), Some("none"));
    story.join(3, &[]);
    say(&mut story, 3, DataAt::Here(name(1)));
    assert!(!problems(&story).contains("`--data remote`"));
    assert_eq!(numbers(&holders(&story, 1).unwrap().holders), [3]);
    for worker in [1, 2, 3] {
        story.say(worker, ready(0, 7));
    }
    assert_eq!(told(&story), 1);
}

#[test]
fn no_more_are_named_than_a_message_has_room_for_and_of_all_sites() {
    let mut story = run_of(60);
    for worker in 1..=60 {
        let site = match worker {
            1..=10 => "large",
            11 => "single",
            12..=20 => "other",
            _ => "near",
        };
        story.join_from(worker, site);
        say(&mut story, worker, DataAt::Here(name(1)));
    }
    let told = holders(&story, 60).unwrap();
    assert_eq!(told.holders.len(), DATA_HOLDERS_MAX);
    let expected = [21, 22, 23, 24, 25, 26, 27, 28, 1, 11, 12, 2, 13, 3, 14, 4];
    assert_eq!(numbers(&told.holders), expected);
    say(&mut story, 11, DataAt::Here(name(1)));
    let alone = holders(&story, 11).unwrap();
    assert_eq!(numbers(&alone.holders)[..4], [11, 1, 12, 21]);
    assert_eq!(alone.holders.len(), DATA_HOLDERS_MAX);
}

#[test]
fn who_says_now_this_and_now_that_leaves_others_their_place_among_the_events() {
    let mut story = run_of(2);
    story.join(1, &[]);
    story.join(2, &[]);
    for _ in 0..50 {
        say(&mut story, 1, DataAt::Nowhere);
        say(&mut story, 1, DataAt::Fetched(name(1)));
    }
    say(&mut story, 2, DataAt::Nowhere);
    let events = story.run.status(0).events;
    let of = |worker| {
        let worker = Some(WorkerId(worker).to_string());
        events.iter().filter(|event| event.worker == worker && event.text.contains("data")).count()
    };
    assert_eq!((of(1), of(2)), (8, 1));
}
