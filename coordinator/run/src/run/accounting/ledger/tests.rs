use longhaul_common::schedule::Changes;

use super::*;

const W1: WorkerId = WorkerId(1);
const W2: WorkerId = WorkerId(2);

/// Ten rounds of two steps, four samples a step, shared by two workers from round 0.
fn books() -> Ledger {
    let schedule = RoundSchedule {
        warmup_rounds: 0,
        warmup_every: 1,
        every: 2,
        overlap: 2,
        groups: 1,
        exchanges: 1,
        steps: 20,
        changes: Changes::NONE,
    };
    let mut ledger = Ledger::new(schedule, 4);
    ledger.assign(Round(0), vec![W1, W2], Vec::new());
    ledger
}

/// One share was lost and is given out again before the fork, one after it, and one waits in a residual.
#[test]
fn a_fork_that_goes_on_in_the_samples_gives_out_those_that_did_not_count() {
    let mut there = books();
    let mut late = Late::default();
    there.lose(Round(0), W2);
    there.assign(Round(2), vec![W1, W2], Vec::new());
    there.lose(Round(2), W2);
    late.applied(Round(3), &[(W1, true), (W2, false)]);
    there.count_through(Round(5));
    there.assign(Round(5), vec![W1], Vec::new());
    there.count_through(Round(7));
    let at = |round| (there.schedule, 4, Round(round));
    let mut fork = Ledger::continuing(at(4), (&there, &late, Round(4))).unwrap();
    assert_eq!((fork.counted().len(), fork.waiting().len(), fork.given_out()), (20, 8, 28));
    assert!(is_balanced(&fork));
    fork.assign(Round(4), vec![W1, W2], Vec::new());
    fork.count_through(Round(5));
    assert!(fork.counted().iter().eq(std::iter::once(0..28)), "{:?}", fork.counted());
    assert!(fork.cut_back(Round(4)) && is_balanced(&fork));
    fork.assign(Round(4), vec![W1], Vec::new());
    fork.count_through(Round(10));
    assert!(fork.counted().iter().eq(std::iter::once(0..28 + 5 * 8)));
    assert_eq!((fork.duplicates(), fork.pending()), (0, 0));
    // A fork of it, from where it began.
    let again = Ledger::continuing(at(4), (&fork, &Late::default(), Round(4))).unwrap();
    assert_eq!((again.counted().len(), again.waiting().len(), again.given_out()), (20, 8, 28));
    assert_eq!(Ledger::continuing(at(5), (&there, &late, Round(4))), None, "another step");
    assert_eq!(Ledger::continuing(at(3), (&fork, &late, Round(3))), None, "from before its books");
}

fn flat(positions: Vec<Positions>) -> Vec<u64> {
    let mut all: Vec<u64> = positions.into_iter().flatten().collect();
    all.sort_unstable();
    all
}

#[test]
fn a_lost_share_does_not_count_and_is_given_out_first_in_the_next_assignment() {
    let mut ledger = books();
    assert!(ledger.lose(Round(1), W2));
    assert!(!ledger.lose(Round(1), W2), "the same share is lost only once");
    assert_eq!(ledger.pending(), 4);
    assert_eq!(flat(ledger.counted_in(Round(1))), [8, 9, 12, 13]);
    ledger.assign(Round(2), vec![W1], Vec::new());
    assert_eq!(ledger.pending(), 0);
    assert_eq!(flat(ledger.counted_in(Round(2))), [10, 11, 14, 15, 16, 17, 18, 19]);
    ledger.count_through(Round(3));
    assert!(ledger.counted().iter().eq(std::iter::once(0..20)));
}

#[test]
fn a_feed_that_is_replaced_before_it_began_loses_nothing() {
    let mut ledger = books();
    ledger.lose(Round(1), W2);
    ledger.assign(Round(3), vec![W1], Vec::new());
    ledger.assign(Round(2), vec![W1], Vec::new());
    ledger.count_through(Round(3));
    assert!(ledger.counted().iter().eq(std::iter::once(0..20)));
}

/// A generation that was to begin at round 3 goes with the only member that had the rounds before; another one makes them all.
#[test]
fn what_was_lost_of_rounds_that_are_assigned_anew_is_given_out_once() {
    let mut ledger = books();
    ledger.count_through(Round(1));
    ledger.lose(Round(0), W2);
    ledger.lose(Round(1), W2);
    ledger.lose(Round(2), W2);
    ledger.assign(Round(3), vec![W1], Vec::new());
    ledger.assign(Round(1), vec![W2], Vec::new());
    ledger.count_through(Round(4));
    assert_eq!((ledger.duplicates(), ledger.pending()), (0, 0));
    assert!(ledger.counted().iter().eq(std::iter::once(0..28)));
}

#[test]
fn a_loss_that_is_learnt_of_late_is_taken_out_of_what_counted() {
    let mut ledger = books();
    ledger.count_through(Round(2));
    ledger.lose(Round(0), W1);
    assert_eq!(flat(ledger.counted().iter().collect()), [2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    ledger.assign(Round(2), vec![W1, W2], Vec::new());
    ledger.count_through(Round(3));
    assert!(ledger.counted().iter().eq(std::iter::once(0..20)));
}

#[test]
fn a_position_that_is_given_out_twice_is_noticed() {
    let mut ledger = books();
    let feed = SampleFeed { first_step: 4, backlog: vec![0..2, 2..3], cursor: 16 };
    ledger.timeline.push(Assignment::evenly(feed, vec![W1]));
    ledger.count_through(Round(2));
    assert_eq!((ledger.duplicates(), ledger.counted().len()), (0, 16));
    ledger.count_through(Round(3));
    assert_eq!((ledger.duplicates(), ledger.counted().len()), (3, 16 + 5));
}

/// Whether each position that was given out counts or waits.
fn is_balanced(ledger: &Ledger) -> bool {
    ledger.counted().len() + ledger.waiting().len() == ledger.given_out()
}

#[test]
fn each_position_that_was_given_out_counts_or_waits_until_it_is_given_out_again() {
    let mut ledger = books();
    let told = |ledger: &Ledger| (ledger.counted().len(), ledger.waiting().len(), ledger.given_out());
    ledger.count_through(Round(2));
    ledger.lose(Round(1), W2);
    assert_eq!(told(&ledger), (12, 4, 16), "it waits for another assignment");
    ledger.lose(Round(2), W2);
    assert_eq!(told(&ledger), (12, 4, 16), "shares of rounds that are not applied do not wait");
    ledger.assign(Round(4), vec![W1], Vec::new());
    assert_eq!(told(&ledger), (12, 4, 16), "it waits for the steps that it is assigned to");
    ledger.count_through(Round(4));
    assert_eq!(told(&ledger), (24, 8, 32));
    ledger.count_through(Round(5));
    assert_eq!(told(&ledger), (32, 0, 32));
    assert!(ledger.cut_back(Round(1)) && is_balanced(&ledger));
}

#[test]
fn books_with_a_gap_do_not_balance() {
    let mut ledger = books();
    ledger.lose(Round(1), W2);
    ledger.assign(Round(2), vec![W1], Vec::new());
    ledger.count_through(Round(3));
    assert!(is_balanced(&ledger));
    ledger.counted.remove(3..4);
    assert!(!is_balanced(&ledger));
}

#[test]
fn cutting_back_restores_the_books_of_that_round() {
    let mut ledger = books();
    ledger.lose(Round(0), W1);
    ledger.assign(Round(4), vec![W1], Vec::new());
    ledger.count_through(Round(4));
    let reference = ledger.counted().clone();
    ledger.lose(Round(5), W1);
    ledger.assign(Round(6), vec![W2], Vec::new());
    ledger.count_through(Round(8));
    assert!(ledger.cut_back(Round(4)));
    assert_eq!(*ledger.counted(), reference);
    assert_eq!(ledger.pending(), 4, "the feed that began at round 4 handed nothing out after all");
    ledger.assign(Round(4), vec![W2], Vec::new());
    ledger.count_through(Round(5));
    assert!(ledger.counted().iter().eq(std::iter::once(0..36)));
}

#[test]
fn old_assignments_are_forgotten_and_old_checkpoints_with_them() {
    let schedule = RoundSchedule {
        warmup_rounds: 0,
        warmup_every: 1,
        every: 1,
        overlap: 1,
        groups: 1,
        exchanges: 1,
        steps: 5000,
        changes: Changes::NONE,
    };
    let mut ledger = Ledger::new(schedule, 2);
    for round in (0..3000).map(Round) {
        ledger.count_through(round);
        ledger.assign(round, vec![W1, W2], Vec::new());
        ledger.lose(round, W2);
    }
    assert!(ledger.timeline.assignments().len() <= ASSIGNMENTS_KEPT_MAX);
    assert!(ledger.losses.len() <= ASSIGNMENTS_KEPT_MAX);
    assert!(!ledger.reaches(Round(3)) && !ledger.cut_back(Round(3)));
    assert!(ledger.reaches(Round(2900)) && ledger.cut_back(Round(2900)));
    assert!(ledger.counted().iter().eq(std::iter::once(0..2900)));
}
