//! Refusals of owners, and their notices.

use longhaul_common::id::{FragmentId, SiteId};
use longhaul_proto::control::message::{REFUSALS_REPORTED_MAX, Refusal, RefusalReason};

use super::*;

/// Worker 2 reports a refusal of the first site's contribution.
fn report_refusals(story: &mut Story, round: u64, refused: Vec<Refusal>, refused_beyond: u32) {
    story.say(2, ToCoordinator::RoundApplied(RoundReport { refused, refused_beyond, ..report(round, 9) }));
}

fn refusal(site: u32, round: u64, reason: RefusalReason) -> Refusal {
    Refusal { site: SiteId(site), round: Round(round), fragment: FragmentId(0), reason }
}

const NORM: RefusalReason = RefusalReason::Norm { times: 83.0, of: 32 };

fn notices(story: &Story) -> Vec<String> {
    let events = story.run.status(0).events;
    events.into_iter().map(|event| event.text).filter(|text| text.contains("refused")).collect()
}

#[test]
fn people_hear_once_in_a_while_whose_update_was_refused_by_whom_and_why() {
    let mut story = Story::training();
    for round in 0..4 {
        report_refusals(&mut story, round, vec![refusal(0, round, NORM), refusal(0, round, NORM)], 0);
    }
    let told = notices(&story);
    assert_eq!(
        told,
        [
            "site site-1's update of f0 for r0 was refused by w2: its norm is 83 times the median of the last 32"
        ]
    );
    report_refusals(&mut story, 4, vec![refusal(0, 4, RefusalReason::NotFinite)], 0);
    assert_eq!(notices(&story).len(), 2, "another cause is news");
    for second in 1..=600 {
        story.now = Duration::from_secs(second);
        [1, 2].into_iter().for_each(|worker| story.say(worker, heartbeat(second)));
    }
    report_refusals(&mut story, 5, vec![refusal(0, 5, NORM)], 0);
    assert!(
        notices(&story)[2].ends_with("the last 32 (7 more since the last time)"),
        "{:?}",
        notices(&story)
    );
    assert_eq!(story.run.status(0).accounting.refused.iter().map(|refused| refused.count).sum::<u64>(), 10);
}

#[test]
fn the_status_counts_by_site_and_reason_and_a_repeated_report_not_at_all() {
    let mut story = Story::training();
    for _ in 0..2 {
        report_refusals(
            &mut story,
            0,
            vec![refusal(0, 0, NORM), refusal(1, 0, RefusalReason::Undecodable)],
            7,
        );
    }
    let status = story.run.status(0);
    let counts: Vec<_> = status
        .accounting
        .refused
        .iter()
        .map(|refused| (refused.site.as_str(), refused.reason.name(), refused.count))
        .collect();
    assert_eq!(counts, [("site-1", "norm", 1), ("site-2", "undecodable", 1)]);
    assert_eq!(status.accounting.refused_unnamed, 7);
}

#[test]
fn a_report_that_names_too_many_or_sites_that_do_not_exist_fills_nothing() {
    let mut story = Story::training();
    report_refusals(&mut story, 0, (0..10_000).map(|site| refusal(site, 0, NORM)).collect(), 0);
    assert_eq!(story.run.status(0).accounting.refused.len(), 2, "the run has two sites");
    report_refusals(&mut story, 1, vec![refusal(0, 1, NORM); 10_000], 0);
    assert_eq!(story.run.status(0).accounting.refused[0].count, 1 + REFUSALS_REPORTED_MAX as u64);
}
