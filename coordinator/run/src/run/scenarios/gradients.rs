//! The norm of gradients, as members report it.

use super::*;

#[test]
fn the_norm_of_gradients_is_in_the_status_and_told() {
    let mut story = Story::training();
    assert_eq!(story.run.status(0).training.gradient_norm, None);
    for (worker, norm) in [(1, 3.0), (2, 4.0)] {
        let report = RoundReport { gradient_norm: Some(norm), ..report(0, 9) };
        story.say(worker, ToCoordinator::RoundApplied(report));
    }
    let status = story.run.status(0);
    // √((3² + 4²) / 2)
    let expected = 12.5f32.sqrt();
    assert_eq!(status.training.gradient_norm, Some(expected));
    let says = |text: &str| status.events.iter().any(|event| event.text.contains(text));
    assert!(says("gradient norm 3.536"), "{:#?}", status.events);
    // A round without reports leaves it unchanged.
    for worker in [1, 2] {
        story.applied(worker, 1, 9);
    }
    assert_eq!(story.run.status(0).training.gradient_norm, Some(expected));
}
