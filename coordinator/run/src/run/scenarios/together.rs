//! Copies that cannot join others while those train.

use super::moves::{offer, written};
use super::pipelines::{in_parts, lineup, ready_with, training_of};
use super::*;

/// A copy that came apart, and could not join while others train: all begin anew together, and not more often than it is worth.
#[test]
fn a_copy_that_cannot_join_while_others_train_comes_in_when_all_begin_anew() {
    let mut story = training_of(parsed(&in_parts().set("sync.warmup_rounds", 9)));
    let alive = |story: &mut Story, workers: &[u32], until: Duration| {
        while story.now < until {
            story.now = (story.now + Duration::from_millis(500)).min(until);
            for &worker in workers {
                story.say(worker, heartbeat(0));
                if story.told(3).iter().any(|message| matches!(message, ToWorker::Settle { .. })) {
                    return;
                }
            }
        }
    };
    story.handle(Event::Closed { connection: ConnectionId(2) });
    story.settled(3, 2, 0, 0);
    story.settled(4, 2, 0, 0);
    alive(&mut story, &[1, 3, 4], Duration::from_secs(60));
    assert_eq!(story.now, Duration::from_secs(60), "one worker is no copy");
    story.join(5, &[]);
    alive(&mut story, &[1, 3, 4, 5], Duration::from_secs(70));
    assert_eq!(story.now, Duration::from_secs(62), "more may come");
    let told = story.run.status(0).events;
    assert!(told.iter().any(|event| event.text.contains("w1, w5 can get a part")), "{told:?}");
    for worker in [3, 4] {
        story.settled(worker, 3, 0, 0);
    }
    assert_eq!(story.begun(3).until, Round(1));
    for (worker, rank) in [(3, 0), (4, 1)] {
        story.say(worker, written(1, rank));
        story.say(worker, finished(1, None));
    }
    assert_eq!(story.run.state().phase, Phase::Gathering);
    for (worker, offers) in [(1, vec![]), (3, vec![offer(1, 0, true)]), (4, vec![offer(1, 1, true)])] {
        story.join(worker, &offers);
    }
    assert_eq!(story.run.state().phase, Phase::Gathering, "all are waited for");
    story.join(5, &[]);
    for (worker, rank) in [(3, 0), (4, 1), (1, 0), (5, 1)] {
        story.say(worker, ready_with(rank, 1, 40 + rank as u8));
    }
    assert_eq!(lineup(&story).len(), 2);
    assert_eq!(story.begun(3).first_round, Round(1));
}
