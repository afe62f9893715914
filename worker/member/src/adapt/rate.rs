//! Bits per value with which a round's exchange ends when its result is due, as a pure function of measurements.

use std::time::Duration;

use longhaul_proto::round::LATENCY_ROUND_TRIPS;

/// A member's measurements of a round to which it contributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundTiming {
    /// Bits sent per exchanged value, averaged over all members, because they share the links.
    pub bits: f64,
    /// Share of the model's values exchanged.
    pub share: f64,
    /// Time from the contribution to the last result.
    pub taken: Duration,
    /// Time from the contribution to the step that needs the results, with uninterrupted computation.
    pub window: Duration,
    /// Longest round trip to a member of another site, without queues.
    pub round_trip: Duration,
}

/// The user's bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateBounds {
    /// Share of the window that communication may fill.
    pub target_utilisation: f64,
    /// Least bits per value.
    pub bits_min: f64,
    /// Most bits per value.
    pub bits_max: f64,
}

/// Makes communication fill the time left by computation, and no more.
///
/// A round takes `latency + bits·share·slope`. The latency covers a contribution and a result, one way each, the hand-over between them, and the wait for
/// slower members. The slope, in seconds per bit of each value of the model, is the links' rate as used by this group. Both come from a line through the
/// times of recent rounds; two usual deviations stay free. Bits are at most twice those sent last. Changes below [`DEAD_BAND`] are skipped, for a steady
/// stream.
///
/// A round far off the line is an accident or a change of the link: the first slow one halves the bits, a second one in a row begins the line anew.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateController {
    bounds: RateBounds,
    bits: f64,
    /// `None` before the first round.
    line: Option<Line>,
}

/// A least-squares line through times of rounds over sent bits, in which older rounds count less.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    /// Weighted sums over rounds: of 1, x, y, x², x·y.
    sums: [f64; 5],
    /// Estimated time of an empty round, from round trips; counts as [`PRIOR_WEIGHT`] rounds.
    latency: f64,
    /// Usual deviation (Jacobson 1988, "Congestion avoidance and control", for round trips).
    deviation: f64,
    /// Side of the last round, if it was far off the line.
    surprise: Option<Side>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Above,
    Below,
}

impl Line {
    /// Returns a line through one round of unknown deviation.
    fn through(x: f64, y: f64, latency: f64) -> Self {
        Self { sums: [1.0, x, y, x * x, x * y], latency, deviation: y / 2.0, surprise: None }
    }

    /// Returns the time of an empty round and the time per unit of x, in seconds.
    fn terms(&self) -> (f64, f64) {
        let [n, x, y, xx, xy] = self.sums;
        let count = n + PRIOR_WEIGHT;
        let (mean_x, mean_y) = (x / count, (y + PRIOR_WEIGHT * self.latency) / count);
        let variance = xx / count - mean_x * mean_x;
        let slope = ((xy / count - mean_x * mean_y) / variance).max(0.0);
        ((mean_y - slope * mean_x).max(0.0), slope)
    }

    /// Returns a lower bound of the time per unit of x, from rounds alone: 0 if other causes explain their times. `None`: all sent about the same.
    fn slope_at_least(&self) -> Option<f64> {
        let [n, x, y, xx, xy] = self.sums;
        if n < ROUNDS_NEEDED {
            return Some(self.terms().1);
        }
        let (mean_x, mean_y) = (x / n, y / n);
        let variance = xx / n - mean_x * mean_x;
        if variance <= (ALIKE * mean_x).powi(2) {
            return None;
        }
        let slope = (xy / n - mean_x * mean_y) / variance;
        Some((slope - self.deviation / (n * variance).sqrt()).max(0.0))
    }

    fn sent(&self) -> f64 {
        self.sums[1] / self.sums[0]
    }

    /// Returns the line after another round.
    fn with(mut self, x: f64, y: f64, latency: f64) -> Self {
        self.latency = latency;
        let (at_nothing, slope) = self.terms();
        let expected = at_nothing + slope * x;
        let error = y - expected;
        if error.abs() > SURPRISE * self.deviation.max(DEVIATION_LEAST * expected) {
            let side = if error > 0.0 { Side::Above } else { Side::Below };
            if self.surprise == Some(side) {
                return Self::through(x, y, latency);
            }
            return Self { surprise: Some(side), ..self };
        }
        self.surprise = None;
        self.deviation += DEVIATION_WEIGHT * (error.abs() - self.deviation);
        let round = [1.0, x, y, x * x, x * y];
        self.sums.iter_mut().zip(round).for_each(|(sum, term)| *sum = MEMORY * *sum + term);
        self
    }
}

/// Least share of the window for sending. If latency and slower members fill the window, the device waits anyway; bits then stay low only if they prove to be
/// the cause.
const SENDING_SHARE_MIN: f64 = 0.25;
/// There, most bits as a multiple of the mean of the last twenty rounds, in which all owners take turns. Otherwise members without a clear slope would send
/// ever more, and all would wait.
const BEYOND_ALL_MAX: f64 = 1.5;
/// Largest factor from one round's bits to the next: a wrong estimate then costs a wait of one more window.
const RISE_MAX: f64 = 2.0;
/// Least relative change of the bits that justifies another chain.
const DEAD_BAND: f64 = 0.08;
/// Weight of a round after another one: twenty are remembered.
const MEMORY: f64 = 0.95;
/// A line needs two points, and bits may stay the same for long.
const PRIOR_WEIGHT: f64 = 1.0;
/// With fewer rounds, all time beyond round trips is attributed to the bits.
const ROUNDS_NEEDED: f64 = 4.0;
/// Rounds whose sent bits differ by less than this determine no slope.
const ALIKE: f64 = 0.05;
/// Weight of a new error in the deviation.
const DEVIATION_WEIGHT: f64 = 0.25;
/// Deviations above the line kept free: a late round makes the device wait, an early one only leaves bits unsent.
const CAUTION: f64 = 2.0;
/// Deviations that are no accident, twice in a row.
const SURPRISE: f64 = 4.0;
/// Least credible deviation, as a share of the expected time: even a steady link has some.
const DEVIATION_LEAST: f64 = 0.05;

impl RateController {
    /// Creates a controller with these initial bits.
    #[must_use]
    pub fn new(bounds: RateBounds, bits: f64) -> Self {
        Self { bounds, bits: bits.clamp(bounds.bits_min, bounds.bits_max), line: None }
    }

    /// Returns the bits per value for the next round.
    #[must_use]
    pub fn bits(&self) -> f64 {
        self.bits
    }

    /// Returns the seconds per exchanged bit of each value of the model; `None` before the first round.
    #[must_use]
    pub fn bit_s(&self) -> Option<f64> {
        self.line.map(|line| line.terms().1)
    }

    /// Takes in a round; returns the new bits if they change.
    pub fn observe(&mut self, timing: RoundTiming) -> Option<f64> {
        let RoundTiming { bits, share, .. } = timing;
        let [taken, window, round_trip] =
            [timing.taken, timing.window, timing.round_trip].map(|time| time.as_secs_f64());
        let (sent, latency) = (bits * share, LATENCY_ROUND_TRIPS * round_trip);
        if !(sent > 0.0 && taken > 0.0) {
            return None;
        }
        let line = match self.line {
            Some(line) => line.with(sent, taken, latency),
            None => Line::through(sent, taken, latency),
        };
        self.line = Some(line);
        let window = self.bounds.target_utilisation * window;
        let highest = self.bits.max(bits);
        let wanted = match line.surprise {
            Some(Side::Above) if taken > window => self.bits / 2.0,
            Some(_) => self.bits,
            None => {
                let (at_nothing, slope) = line.terms();
                let left = window - at_nothing - CAUTION * line.deviation;
                let least = SENDING_SHARE_MIN * window;
                let wanted = if left > least {
                    left / slope / share
                } else {
                    match line.slope_at_least() {
                        Some(slope) => (least / slope / share).min(BEYOND_ALL_MAX * line.sent() / share),
                        // A round with other bits shows their cost: fewer bits, if possible.
                        None if self.bits <= self.bounds.bits_min => self.bits * RISE_MAX,
                        None => (least / slope / share).max(bits / RISE_MAX).min(self.bits),
                    }
                };
                wanted.min(highest * RISE_MAX)
            }
        };
        let wanted = wanted.clamp(self.bounds.bits_min, self.bounds.bits_max);
        let is_bound = wanted == self.bounds.bits_min || wanted == self.bounds.bits_max;
        if wanted == self.bits || !is_bound && (wanted / self.bits - 1.0).abs() < DEAD_BAND {
            return None;
        }
        self.bits = wanted;
        Some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};

    use super::*;

    const BOUNDS: RateBounds = RateBounds { target_utilisation: 0.97, bits_min: 0.01, bits_max: 32.0 };

    /// A link on which one bit per value takes `slope` seconds, with steps of a second.
    struct Link {
        slope: f64,
        round_trip: f64,
        window: f64,
    }

    impl Link {
        fn round(&self, controller: &mut RateController) -> (f64, Option<f64>) {
            let bits = controller.bits();
            let taken = 1.2 * self.round_trip + bits * self.slope;
            let changed = controller.observe(RoundTiming {
                bits,
                share: 1.0,
                taken: Duration::from_secs_f64(taken),
                window: Duration::from_secs_f64(self.window),
                round_trip: Duration::from_secs_f64(self.round_trip),
            });
            (taken / self.window, changed)
        }
    }

    fn settled(link: &Link, controller: &mut RateController) -> f64 {
        for _ in 0..60 {
            link.round(controller);
        }
        link.round(controller).0
    }

    #[test]
    fn it_fills_the_window_of_any_link_and_no_more() {
        for slope in [0.001, 0.01, 0.1, 1.0, 10.0] {
            for round_trip in [0.001, 0.05, 0.2] {
                let link = Link { slope, round_trip, window: 1.0 };
                let mut controller = RateController::new(BOUNDS, 2.0);
                let used = settled(&link, &mut controller);
                let at_bound = controller.bits() == BOUNDS.bits_max;
                assert!(used <= 1.0, "{slope} s/bit, {round_trip} s: a round takes {used} of its window");
                assert!(
                    used > 0.75 || at_bound,
                    "{slope} s/bit, {round_trip} s: {used} of the window is used"
                );
            }
        }
    }

    #[test]
    fn on_a_steady_link_it_settles_and_stays() {
        let link = Link { slope: 0.1, round_trip: 0.05, window: 1.0 };
        let mut controller = RateController::new(BOUNDS, 0.1);
        settled(&link, &mut controller);
        assert!((0..100).all(|_| link.round(&mut controller).1.is_none()));
    }

    /// Every ten rounds the link has a fifth of its rate for ten rounds. Two rounds are late at each fall, because a single one may be an accident.
    #[test]
    fn a_rate_that_swings_fivefold_costs_two_late_rounds_at_each_fall() {
        let mut controller = RateController::new(BOUNDS, 1.0);
        let (mut late, mut falls, mut turns) = (0, 0, 0);
        let (mut bits, mut direction) = (controller.bits(), 0.0);
        for round in 0..400 {
            let slow = round / 10 % 2 == 1;
            falls += usize::from(slow && round % 10 == 0);
            let link = Link { slope: if slow { 0.5 } else { 0.1 }, round_trip: 0.05, window: 1.0 };
            let (used, changed) = link.round(&mut controller);
            late += usize::from(used > 1.0);
            if let Some(changed) = changed {
                let towards = (changed - bits).signum();
                turns += usize::from(towards == -direction);
                (bits, direction) = (changed, towards);
            }
        }
        assert!(late <= 2 * falls, "{late} late rounds of 400, with {falls} falls");
        // Down at each fall, up at each rise, and no oscillation between.
        assert!(turns <= 2 * falls, "{turns} turns, with {falls} falls");
    }

    /// On a busy machine, a round takes up to a third more or less than the last.
    #[test]
    fn on_a_noisy_link_few_rounds_are_late() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(5);
        let mut controller = RateController::new(BOUNDS, 1.0);
        let mut link = Link { slope: 0.1, round_trip: 0.05, window: 1.0 };
        let (mut late, mut used) = (0, 0.0);
        for round in 0..1100 {
            link.slope = 0.1 * (1.0 + (rng.random::<f64>() + rng.random::<f64>() - 1.0) / 3.0);
            let (taken, _) = link.round(&mut controller);
            if round >= 100 {
                late += usize::from(taken > 1.0);
                used += taken / 1000.0;
            }
        }
        assert!(late < 50, "{late} late rounds of 1000");
        assert!(used > 0.7, "{used} of the time is used");
    }

    /// Members whose steps end later make rounds long; fewer bits would not make them shorter.
    #[test]
    fn waiting_for_others_takes_no_bits_away() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(6);
        let mut controller = RateController::new(BOUNDS, 1.0);
        let link = Link { slope: 0.02, round_trip: 0.3, window: 1.0 };
        let mut bits = Vec::new();
        for _ in 0..1000 {
            let taken = 1.2 * link.round_trip + controller.bits() * link.slope + 0.6 * rng.random::<f64>();
            controller.observe(RoundTiming {
                bits: controller.bits(),
                share: 1.0,
                taken: Duration::from_secs_f64(taken),
                window: Duration::from_secs_f64(link.window),
                round_trip: Duration::from_secs_f64(link.round_trip),
            });
            bits.push(controller.bits());
        }
        // A quarter of the window carries 12 bits.
        let few = bits[100..].iter().filter(|bits| **bits < 6.0).count();
        assert!(few < 50, "in {few} rounds of 900, bits were below half of the link's capacity");
    }

    /// Round trips take a step, and each bit of all values five. Members that see only their own bits would mistake the others' traffic for waiting.
    #[test]
    fn members_that_share_a_slow_link_do_not_drive_each_other_up() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        let mut members = [RateController::new(BOUNDS, 2.0); 4];
        let (mut waited, mut sent) = (0.0, 0.0);
        for round in 0..600 {
            let bits = members.iter().map(RateController::bits).sum::<f64>() / 4.0;
            for member in &mut members {
                let taken = 0.17 + 0.9 * bits + 0.2 * rng.random::<f64>();
                member.observe(RoundTiming {
                    bits,
                    share: 0.2,
                    taken: Duration::from_secs_f64(taken),
                    window: Duration::from_secs_f64(0.16),
                    round_trip: Duration::from_secs_f64(0.112),
                });
                if round >= 100 {
                    waited += (taken - 0.16) / 2000.0;
                    sent += bits / 2000.0;
                }
            }
        }
        assert!(waited < 0.23, "{waited} s of waiting a round, of which 0.11 s are for no bits");
        assert!(sent > 0.03, "{sent} bits a value, of which 0.04 take a quarter of the window");
    }

    /// As in a warm-up: all rounds send a fixed amount regardless of the controller, and each takes a hundred times its window.
    #[test]
    fn where_what_is_sent_is_given_bits_do_not_rise() {
        let mut controller = RateController::new(BOUNDS, 0.1);
        for _ in 0..100 {
            controller.observe(RoundTiming {
                bits: 4.14,
                share: 1.0,
                taken: Duration::from_secs(19),
                window: Duration::from_secs_f64(0.16),
                round_trip: Duration::from_secs_f64(0.112),
            });
            assert!(controller.bits() <= 0.1, "{} bits", controller.bits());
        }
    }

    /// A stall lowers the bits; afterwards each round waits for others longer than its window.
    #[test]
    fn bits_come_back_after_a_stall_though_rounds_wait_for_others() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(8);
        let mut controller = RateController::new(BOUNDS, 0.04);
        let mut sent = 0.0;
        for round in 0..600 {
            let stall = if (50..60).contains(&round) { 5.0 } else { 0.0 };
            let taken = 0.27 + 0.9 * controller.bits() + 0.02 * rng.random::<f64>() + stall;
            controller.observe(RoundTiming {
                bits: controller.bits(),
                share: 0.2,
                taken: Duration::from_secs_f64(taken),
                window: Duration::from_secs_f64(0.16),
                round_trip: Duration::from_secs_f64(0.112),
            });
            if round >= 300 {
                sent += controller.bits() / 300.0;
            }
        }
        // A quarter of the window carries 0.043 bits.
        assert!((0.02..0.1).contains(&sent), "{sent} bits");
    }

    /// Few fragments are due, so a round's results come from one owner or another and do not show the others' traffic; each bit of all values takes five
    /// steps. A member without a clear slope must not send ever more. Each has its own least, as with a large backlog.
    #[test]
    fn nobody_runs_away_from_the_others() {
        const LEAST: [f64; 4] = [0.13, 0.2, 0.23, 0.33];
        for seed in 0..20 {
            let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
            let mut members = [RateController::new(BOUNDS, 0.1); 4];
            let mut mean = 0.0;
            for round in 0..1500 {
                let mut sent = LEAST;
                for (sent, member) in sent.iter_mut().zip(&members) {
                    *sent = sent.max(member.bits());
                }
                let in_results = sent[round % 4];
                let taken = 0.1 + 0.25 * sent.iter().sum::<f64>() * rng.random::<f64>();
                for member in &mut members {
                    let waited = 0.4 * rng.random::<f64>();
                    member.observe(RoundTiming {
                        bits: in_results,
                        share: 0.2,
                        taken: Duration::from_secs_f64(taken + waited),
                        window: Duration::from_secs_f64(0.13),
                        round_trip: Duration::from_secs_f64(0.02),
                    });
                }
                if round >= 100 {
                    mean += sent.iter().sum::<f64>() / 5600.0;
                }
            }
            assert!(mean < 0.5, "seed {seed}: {mean} bits a value, where 0.22 are the least");
        }
    }

    #[test]
    fn a_round_that_measured_nothing_changes_nothing() {
        let mut controller = RateController::new(BOUNDS, 1.0);
        let nothing = RoundTiming {
            bits: 0.0,
            share: 1.0,
            taken: Duration::ZERO,
            window: Duration::from_secs(1),
            round_trip: Duration::ZERO,
        };
        assert_eq!(controller.observe(nothing), None);
        assert_eq!(controller.observe(RoundTiming { bits: 1.0, ..nothing }), None);
    }

    #[test]
    fn the_users_bounds_hold() {
        let bounds = RateBounds { bits_min: 0.5, bits_max: 4.0, ..BOUNDS };
        assert_eq!(RateController::new(bounds, 100.0).bits(), 4.0);
        for slope in [1e-6, 100.0] {
            let mut controller = RateController::new(bounds, 1.0);
            settled(&Link { slope, round_trip: 0.01, window: 1.0 }, &mut controller);
            assert_eq!(controller.bits(), if slope < 1.0 { 4.0 } else { 0.5 });
        }
    }
}
