//! Members reported as falling behind.

use super::super::Health;
use super::*;

/// Four rounds whose results name these sites.
fn after_rounds_with(sites: &[u32]) -> Story {
    let mut story = Story::training();
    for round in 0..4 {
        for worker in [1, 2] {
            let sites = sites.iter().copied().map(SiteId).collect();
            story.say(worker, ToCoordinator::RoundApplied(RoundReport { sites, ..report(round, 9) }));
        }
    }
    assert_eq!(story.run.status(0).progress.round, 4);
    story
}

/// Notices about it, and the members' health.
fn told(story: &Story) -> (Vec<String>, Vec<Health>) {
    let status = story.run.status(0);
    let events = status.events.into_iter().map(|event| event.text).filter(|text| text.contains("is slow"));
    (events.collect(), status.cluster.members.iter().map(|member| member.work.health).collect())
}

#[test]
fn who_is_missing_in_half_of_the_results_is_slow() {
    let text = "is slow: 4 of its last 8 contributions were not in their round's result".to_owned();
    assert_eq!(told(&after_rounds_with(&[0])), (vec![text], vec![Health::Steady, Health::Slow]));
    assert_eq!(told(&after_rounds_with(&[0, 1])), (vec![], vec![Health::Steady; 2]));
}

/// Where contributions are masked and one is missing, none can be taken.
#[test]
fn nobody_is_slow_for_rounds_that_count_nobody() {
    assert_eq!(told(&after_rounds_with(&[])), (vec![], vec![Health::Steady; 2]));
}
