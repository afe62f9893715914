//! Notices of the privacy spent by a run.

use super::*;

#[test]
fn the_status_tells_what_was_spent_and_counts_what_a_new_generation_repeats() {
    let mut config = config();
    let privacy =
        longhaul_common::config::PrivacyConfig { clip: 1.0, noise: 10.0, delta: 1e-6, report_loss: false };
    config.privacy = Some(privacy.clone());
    let mut story = Story::of(config).trained();
    let told = |story: &Story| story.run.status(0).accounting.privacy.unwrap();
    assert_eq!((told(&story).releases, told(&story).epsilon_at_the_end), (1, privacy.epsilon(10)));
    for round in 0..3 {
        [1, 2].into_iter().for_each(|worker| story.applied(worker, round, 1));
    }
    let status = told(&story);
    assert_eq!((status.releases, status.epsilon, status.delta), (4, privacy.epsilon(4), 1e-6));

    // A third worker comes: the open round is contributed in both generations.
    story.join(3, &[]);
    story.say(3, ready(3, 1));
    [1, 2].into_iter().for_each(|worker| story.settled(worker, 2, 3, 3));
    assert_eq!(story.run.state().generations.present.as_ref().unwrap().generation, Generation(2));
    let status = told(&story);
    assert_eq!((status.releases, status.epsilon_at_the_end), (5, privacy.epsilon(11)));
}

#[test]
fn a_run_without_privacy_says_nothing_of_it() {
    assert_eq!(Story::training().run.status(0).accounting.privacy, None);
}
