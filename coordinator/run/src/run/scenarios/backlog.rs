//! Backlog of error feedback, as reported by members.

use super::*;

#[test]
fn what_waits_is_in_the_status_and_told() {
    let mut story = Story::training();
    assert_eq!(story.run.status(0).training.residual_ratio, None);
    for (worker, residual_ratio) in [(1, Some(0.5)), (2, Some(3.5))] {
        story.say(worker, ToCoordinator::RoundApplied(RoundReport { residual_ratio, ..report(0, 9) }));
    }
    let status = story.run.status(0);
    assert_eq!(status.training.residual_ratio, Some(3.5), "where most wait");
    let says = |text: &str| status.events.iter().any(|event| event.text.contains(text));
    assert!(says("a backlog of 3.5 exchanges"), "{:#?}", status.events);
    // A round without reports leaves it unchanged.
    for worker in [1, 2] {
        story.applied(worker, 1, 9);
    }
    assert_eq!(story.run.status(0).training.residual_ratio, Some(3.5));
}
