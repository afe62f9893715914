//! Parts of the model that go from disk to disk.

use longhaul_proto::control::message::{CheckpointReport, HeldPart};

use super::pipelines::{in_parts, lineup, rank_in, ready_with, training};
use super::*;

pub(super) fn offer(next_round: u64, rank: u32, private: bool) -> CheckpointOffer {
    CheckpointOffer {
        next_round: Round(next_round),
        state_hash: [40 + rank as u8; 32],
        private,
        rank,
        parts: 2,
        generation: WRITTEN_IN,
    }
}

/// Workers whose disks a worker is to begin from.
pub(super) fn held(story: &Story, worker: u32) -> Vec<HeldPart> {
    let told = story.told(worker);
    match told.last() {
        Some(ToWorker::Prepare(Start::Held(parts))) => parts.clone(),
        _ => panic!("{told:?}"),
    }
}

pub(super) fn written(next_round: u64, rank: u8) -> ToCoordinator {
    ToCoordinator::Checkpoint(CheckpointReport {
        next_round: Round(next_round),
        generation: WRITTEN_IN,
        path: String::new(),
        outcome: Ok([40 + rank; 32]),
    })
}

/// Two workers that have one copy of the model, and a third one without a slot, at the site of the second.
pub(super) fn one_copy() -> Story {
    let mut story = Story::of(parsed(&in_parts().workers(2)));
    story.join_from(1, "a");
    story.join_from(2, "b");
    story.say(1, ready_with(0, 0, 7));
    story.say(2, ready_with(1, 0, 8));
    assert_eq!(lineup(&story), [[1, 2]]);
    story.join_from(3, "b");
    story
}

/// The part that a worker is to keep, and its holders.
pub(super) fn keeps(story: &Story, worker: u32) -> Vec<(u32, Vec<u32>)> {
    let part = |message: ToWorker| match message {
        ToWorker::Keep(HeldPart { offer, holders }) => {
            Some((offer.rank, holders.into_iter().map(|holder| holder.worker.0).collect()))
        }
        _ => None,
    };
    story.told(worker).into_iter().filter_map(part).collect()
}

#[test]
fn what_one_worker_alone_has_another_one_keeps_a_copy_of() {
    let mut story = one_copy();
    story.say(2, written(4, 1));
    assert_eq!(keeps(&story, 3), [(1, vec![2])], "who is at the same site, and has no slot");
    // It has not answered.
    story.say(1, written(4, 0));
    assert_eq!((keeps(&story, 3), keeps(&story, 2)), (vec![], vec![(0, vec![1])]));
    story.say(2, written(6, 1));
    assert_eq!((keeps(&story, 3), keeps(&story, 1)), (vec![], vec![(1, vec![2])]));
    story.say(3, ToCoordinator::Kept(Some(offer(4, 1, false))));
    story.say(2, written(8, 1));
    assert_eq!(keeps(&story, 3), [(1, vec![2])]);

    // Two copies of the model are copies of each other.
    let mut story = training();
    story.say(1, written(4, 0));
    assert!((1..=4).all(|worker| keeps(&story, worker).is_empty()));
}

/// The third worker has no part of the state, the first one both: its own, and a copy of that of the one that is lost.
#[test]
fn who_takes_the_part_of_a_lost_worker_fetches_it_from_who_has_a_copy() {
    let mut story = Story::of(one_copy().run.core.config);
    story.join(1, &[offer(4, 1, false), offer(4, 0, true)]);
    story.join(3, &[]);
    assert_eq!((rank_in(&story.told(1)), rank_in(&story.told(3))), (Some(0), Some(1)));
    assert_eq!(story.told(1).last(), Some(&ToWorker::Prepare(Start::Checkpoint(offer(4, 0, true)))));
    let told = story.told(3);
    let Some(ToWorker::Prepare(Start::Held(parts))) = told.last() else { panic!("{told:?}") };
    let [HeldPart { offer: part, holders }] = parts.as_slice() else { panic!("{parts:?}") };
    assert_eq!((part, holders[0].worker), (&offer(4, 1, false), WorkerId(1)));
    story.say(1, ready_with(0, 4, 40));
    // The fetched state must be exactly that one.
    story.say(3, ready_with(1, 4, 99));
    assert!(story.run.state().generations.present.is_none());
    story.say(3, ready_with(1, 4, 41));
    assert_eq!((lineup(&story), story.begun(3).first_round), (vec![vec![1, 3]], Round(4)));
    let lost = story.run.state().residuals.lost;
    assert_eq!(
        (lost.contributions, lost.results),
        (1, 0),
        "what the lost one had yet to send of its fragment"
    );
}

/// Of a run that had the whole model on each worker.
#[test]
fn a_checkpoint_of_other_parts_is_cut_anew_by_all() {
    let whole = CheckpointOffer { parts: 1, ..offer(4, 0, true) };
    let mut story = Story::of(one_copy().run.core.config);
    story.join(1, std::slice::from_ref(&whole));
    story.join(3, &[]);
    for (worker, holders) in [(1, 0), (3, 1)] {
        let told = story.told(worker);
        let Some(ToWorker::Prepare(Start::Held(parts))) = told.last() else { panic!("{told:?}") };
        assert_eq!((parts[0].offer.parts, parts[0].holders.len(), parts.len()), (1, holders, 1));
    }
    story.say(1, ready_with(0, 4, 1));
    story.say(3, ready_with(1, 4, 2));
    assert_eq!((lineup(&story), story.begun(3).first_round), (vec![vec![1, 3]], Round(4)));
}
