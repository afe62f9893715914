//! The owner's deadline for late sites.

use std::collections::VecDeque;
use std::time::Duration;

use longhaul_common::id::Round;

/// Rounds whose spreads are kept: a few minutes to an hour of a run, so that the deadline follows the network
/// through the day.
pub const SPREADS_KEPT: usize = 64;

/// Minimum rounds before the deadline drops below the ceiling; a median of fewer is unreliable.
pub const SPREADS_NEEDED: usize = 8;

/// Bounds and margin of the adaptive deadline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeadlineConfig {
    /// Minimum wait.
    pub floor: Duration,
    /// Maximum wait.
    pub ceiling: Duration,
    /// Median absolute deviations added to the median.
    pub mads: f64,
    /// Every n-th round forms a class of its own: where most fragments leave while they are computed and some
    /// as a whole, a site's whole contribution is not late. 1: one class.
    pub apart_every: u64,
}

/// The wait after a fragment's first contribution, from the spreads (last arrival − first) of past rounds.
#[derive(Debug)]
pub(super) struct Deadline {
    config: DeadlineConfig,
    /// Histories of both classes of rounds.
    histories: [History; 2],
}

#[derive(Debug, Default)]
struct History {
    /// At most [`SPREADS_KEPT`], oldest first.
    spreads: VecDeque<Duration>,
    /// Newest round, and its largest spread over the fragments so far.
    newest: Option<(Round, Duration)>,
}

impl Deadline {
    pub fn new(config: DeadlineConfig) -> Self {
        Self { config, histories: Default::default() }
    }

    /// Returns median + k·MAD of rounds of the same class, between floor and ceiling.
    pub fn wait(&self, round: Round) -> Duration {
        let spreads = &self.histories[self.kind(round)].spreads;
        if spreads.len() < SPREADS_NEEDED {
            return self.config.ceiling;
        }
        let middle = median(spreads.iter().map(Duration::as_secs_f64).collect());
        let deviation = median(spreads.iter().map(|spread| (spread.as_secs_f64() - middle).abs()).collect());
        let wait = middle + self.config.mads * deviation;
        let ceiling = self.config.ceiling.as_secs_f64();
        // The ceiling wins over a higher floor, and over a product that is NaN.
        Duration::from_secs_f64(wait.max(self.config.floor.as_secs_f64()).min(ceiling))
    }

    /// Records the spread of one fragment. A round counts with its largest, once a newer one of its class
    /// appears.
    pub fn record(&mut self, round: Round, spread: Duration) {
        let History { spreads, newest } = &mut self.histories[self.kind(round)];
        match newest {
            Some((newest, _)) if round < *newest => {}
            Some((newest, largest)) if round == *newest => *largest = spread.max(*largest),
            newest => {
                if let Some((_, spread)) = newest.replace((round, spread)) {
                    if spreads.len() == SPREADS_KEPT {
                        spreads.pop_front();
                    }
                    spreads.push_back(spread);
                }
            }
        }
    }

    fn kind(&self, round: Round) -> usize {
        usize::from(self.config.apart_every > 1 && round.0.is_multiple_of(self.config.apart_every))
    }
}

/// Returns the middle value, or the mean of the two; the list is not empty.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn after(spreads_ms: &[u64]) -> Deadline {
        let config = DeadlineConfig { floor: MS(100), ceiling: MS(9_000), mads: 4.0, apart_every: 1 };
        let mut deadline = Deadline::new(config);
        for (round, &spread) in spreads_ms.iter().enumerate() {
            deadline.record(Round(round as u64), MS(spread));
        }
        // A round counts once the next one appears.
        deadline.record(Round(spreads_ms.len() as u64), MS(0));
        deadline
    }

    #[test]
    fn the_ceiling_holds_until_there_is_history() {
        assert_eq!(after(&[1; 7]).wait(Round(99)), MS(9_000));
        assert_eq!(after(&[200; 8]).wait(Round(99)), MS(200));
    }

    #[test]
    fn it_is_the_median_and_four_deviations() {
        // Median 450; deviations 350 250 150 50 50 150 250 350, their median 200.
        assert_eq!(after(&[100, 200, 300, 400, 500, 600, 700, 800]).wait(Round(99)), MS(450 + 4 * 200));
    }

    #[test]
    fn floor_and_ceiling_bound_it() {
        assert_eq!(after(&[1; 8]).wait(Round(99)), MS(100));
        assert_eq!(after(&[60_000; 8]).wait(Round(99)), MS(9_000));
    }

    #[test]
    fn one_round_in_a_while_that_is_late_changes_nothing() {
        assert_eq!(after(&[200, 200, 200, 9_000, 200, 200, 200, 200, 200]).wait(Round(99)), MS(200));
    }

    #[test]
    fn rounds_apart_are_judged_by_their_like() {
        let config = DeadlineConfig { floor: MS(100), ceiling: MS(9_000), mads: 4.0, apart_every: 4 };
        let mut deadline = Deadline::new(config);
        let spread = |round| if round % 4 == 0 { MS(3_000) } else { MS(200) };
        for round in 0..20 {
            deadline.record(Round(round), spread(round));
        }
        assert_eq!(
            [4, 5].map(|round| deadline.wait(Round(round))),
            [MS(9_000), MS(200)],
            "five of a kind are too few"
        );
        for round in 20..40 {
            deadline.record(Round(round), spread(round));
        }
        assert_eq!([40, 41].map(|round| deadline.wait(Round(round))), [MS(3_000), MS(200)]);
    }

    #[test]
    fn a_round_counts_once_with_its_largest_spread_and_old_rounds_are_forgotten() {
        let mut deadline = after(&[]);
        for round in 0..200 {
            for spread in [150, if round < 100 { 8_000 } else { 300 }, 10] {
                deadline.record(Round(round), MS(spread));
            }
        }
        assert_eq!(deadline.histories[0].spreads.len(), SPREADS_KEPT);
        assert_eq!(deadline.wait(Round(99)), MS(300));
    }
}
