//! Donors of the state.

use longhaul_proto::control::message::{MeasuredLink, SeenLink};

use super::*;

/// Members of sites 1, 2, 3 and 4; the last one has reported the distances of the others.
#[test]
fn a_joiner_asks_its_own_site_first_and_then_the_nearest_of_the_others() {
    let mut four = config();
    (four.run.workers, four.train.batch) = (4, 8);
    let mut story = Story::of(four);
    for worker in 1..=4 {
        story.join(worker, &[]);
    }
    for worker in 1..=4 {
        story.say(worker, ready(0, 7));
    }
    assert_eq!(story.run.state().phase, Phase::Training);
    let way = |to: u32, round_trip_s| SeenLink {
        to: SiteId(to),
        link: MeasuredLink { bytes_per_s: 1e6, round_trip_s },
    };
    // Sites are numbered in order of arrival. The distance of the third is unknown.
    story.say(4, ToCoordinator::SeenLinks(vec![way(0, 0.2), way(1, 0.05)]));
    story.join_from(5, "site-4");
    let [ToWorker::Welcome(_), ToWorker::Heal { donors }] = &story.told(5)[..] else {
        panic!("{:?}", story.told(5))
    };
    let asked: Vec<_> = donors.iter().map(|donor| donor.worker.0).collect();
    assert_eq!(asked, [4, 2, 1, 3]);
}
