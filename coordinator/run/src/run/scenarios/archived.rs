//! Runs whose checkpoints outlive all disks.

use super::*;

fn offer(next_round: u64, hash: u8) -> CheckpointOffer {
    CheckpointOffer {
        next_round: Round(next_round),
        state_hash: [hash; 32],
        private: false,
        rank: 0,
        parts: 1,
        generation: WRITTEN_IN,
    }
}

/// A begun run with all machines new.
fn begun_anew() -> Story {
    let mut config = config();
    config.checkpoint.to = Some("s3://bucket".parse().unwrap());
    let state = Story::of(config.clone()).trained().run.state().clone();
    let mut story = Story::of_state(config, state);
    // The run no longer waits for earlier workers.
    story.now = Duration::from_secs(3600);
    story.handle(Event::Timer);
    story
}

#[test]
fn new_machines_go_on_from_the_archive_and_not_from_the_beginning() {
    let mut story = begun_anew();
    for worker in [3, 4] {
        story.join(worker, &[]);
    }
    story.say(3, ToCoordinator::Archived(vec![offer(1, 9), offer(0, 7)]));
    assert!(
        (3..=4).all(|worker| !story.told(worker).iter().any(|told| matches!(told, ToWorker::Prepare(_)))),
        "the other one has yet to say what it reaches"
    );
    story.say(4, ToCoordinator::Archived(vec![offer(1, 9)]));
    for worker in [3, 4] {
        assert_eq!(story.told(worker).last(), Some(&ToWorker::Prepare(Start::Checkpoint(offer(1, 9)))));
    }
}

#[test]
fn where_the_archive_has_nothing_the_run_begins_again_and_says_so() {
    let mut story = begun_anew();
    for worker in [3, 4] {
        story.join(worker, &[]);
    }
    for worker in [3, 4] {
        story.say(worker, ToCoordinator::Archived(Vec::new()));
    }
    assert_eq!(story.told(4).last(), Some(&ToWorker::Prepare(Start::Fresh)));
    let events = story.run.status(0).events;
    assert!(events.iter().any(|event| event.text.contains("starts from the beginning")), "{events:?}");
}

#[test]
fn a_run_that_never_began_does_not_wait_for_the_archive() {
    let mut config = config();
    config.checkpoint.to = Some("s3://bucket".parse().unwrap());
    Story::of(config).trained();
}

#[test]
fn what_a_worker_has_on_its_own_disk_is_not_less_for_being_in_the_archive() {
    let mut story = begun_anew();
    let own = CheckpointOffer { private: true, ..offer(1, 9) };
    for worker in [3, 4] {
        story.join(worker, std::slice::from_ref(&own));
    }
    // It is repeated after a lost connection.
    for worker in [3, 3, 4] {
        story.say(worker, ToCoordinator::Archived(vec![offer(1, 9)]));
    }
    assert_eq!(story.told(3).last(), Some(&ToWorker::Prepare(Start::Checkpoint(own))));
}

/// Its own disk has it from a generation before the run went back behind it, and came by it again.
#[test]
fn a_state_that_is_in_the_archive_from_a_later_generation_was_not_given_up() {
    let mut story = begun_anew();
    story.run.core.state.lineage.rewinds.note((0, 1), Generation(4), Round(0));
    let own = CheckpointOffer { generation: Generation(3), private: true, ..offer(1, 9) };
    story.join(3, std::slice::from_ref(&own));
    story.join(4, &[offer(0, 7)]);
    story.say(3, ToCoordinator::Archived(vec![CheckpointOffer { generation: Generation(4), ..offer(1, 9) }]));
    story.say(4, ToCoordinator::Archived(Vec::new()));
    let own = CheckpointOffer { generation: Generation(4), ..own };
    assert_eq!(story.told(3).last(), Some(&ToWorker::Prepare(Start::Checkpoint(own))));
}
