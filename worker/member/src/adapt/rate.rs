//! How many bits a value may take, so that a round's exchange is over when its result is due: a pure function of what was measured.

use std::time::Duration;

use longhaul_proto::round::LATENCY_ROUND_TRIPS;

/// What a member saw of a round that it contributed to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundTiming {
    /// Bits for each value exchanged, as it was sent, by all members on average: they share the links.
    pub bits: f64,
    /// The share of the model's values that were exchanged.
    pub share: f64,
    /// From the contribution to the last result.
    pub taken: Duration,
    /// From the contribution to the step that needs the results, computing all the while.
    pub window: Duration,
    /// The longest round trip to a member of another site, without queues.
    pub round_trip: Duration,
}

/// The user's bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateBounds {
    /// The share of the window that communication may fill.
    pub target_utilisation: f64,
    /// Bits for each value, at least.
    pub bits_min: f64,
    /// Bits for each value, at most.
    pub bits_max: f64,
}

/// Sees to it that communication fills the time that computing leaves it, and no more.
///
/// A round takes `latency + bits·share·slope`. The latency is that of a contribution and a result, one way each, of the hand-over between
/// them, and of waiting for members whose steps end later, on which bits have no influence. The slope, seconds for a bit of each value of the model,
/// is the link's rate as this group of sites uses it. Both come from a line through what the last rounds took; of the usual deviation from it, two are
/// kept free. Bits are at most twice what was sent last; a change smaller than [`DEAD_BAND`] is not made, so that a steady link has a steady stream.
///
/// A round far from the line is an accident, or the link has changed: one such round halves the bits where it was too slow, and a second
/// one in a row begins the line anew.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateController {
    bounds: RateBounds,
    bits: f64,
    /// None before the first round.
    line: Option<Line>,
}

/// A line through what rounds took, by what they sent: least squares, in which older rounds count for less.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    /// Sums over rounds, weighted: of 1, x, y, x², x·y.
    sums: [f64; 5],
    /// What a round takes that sends nothing, as far as round trips tell: counts as [`PRIOR_WEIGHT`] rounds.
    latency: f64,
    /// How far off it usually is (Jacobson 1988, "Congestion avoidance and control", for round trips).
    deviation: f64,
    /// Whether the last round was far above it or far below.
    surprise: Option<Side>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Above,
    Below,
}

impl Line {
    /// Through one round, of which nobody knows how usual it is.
    fn through(x: f64, y: f64, latency: f64) -> Self {
        Self { sums: [1.0, x, y, x * x, x * y], latency, deviation: y / 2.0, surprise: None }
    }

    /// What a round takes that sends nothing, and what each unit of x adds, in seconds.
    fn terms(&self) -> (f64, f64) {
        let [n, x, y, xx, xy] = self.sums;
        let count = n + PRIOR_WEIGHT;
        let (mean_x, mean_y) = (x / count, (y + PRIOR_WEIGHT * self.latency) / count);
        let variance = xx / count - mean_x * mean_x;
        let slope = ((xy / count - mean_x * mean_y) / variance).max(0.0);
        ((mean_y - slope * mean_x).max(0.0), slope)
    }

    /// What each unit of x adds at least, by rounds alone: nothing where they took what they took for other reasons. None: all of them sent about the same.
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

    /// What rounds sent, on average.
    fn sent(&self) -> f64 {
        self.sums[1] / self.sums[0]
    }

    /// After another round.
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

/// The least share of the window that is for sending: where round trips and slower members take up all of it, the device waits, and would not
/// wait much less if nothing were sent. There, bits fall for long only when it shows that they are what takes long.
const SENDING_SHARE_MIN: f64 = 0.25;
/// There, bits are at most so many times those of the last twenty rounds' results, in which all owners take turns: who sees no pattern in them would else send ever more, and all
/// would wait for it.
const BEYOND_ALL_MAX: f64 = 1.5;
/// Bits grow by this factor from one round to the next at most: a wrong estimate then costs a wait of one more window.
const RISE_MAX: f64 = 2.0;
/// Relative changes of the bits below this are not worth another chain.
const DEAD_BAND: f64 = 0.08;
/// What a round counts for after another one: twenty are remembered.
const MEMORY: f64 = 0.95;
/// A line needs two points, and bits may stay the same for long.
const PRIOR_WEIGHT: f64 = 1.0;
/// With fewer rounds than this, all that a round takes beyond round trips is put down to its bits.
const ROUNDS_NEEDED: f64 = 4.0;
/// Rounds that differ by less than this in what they sent say nothing of a slope.
const ALIKE: f64 = 0.05;
/// The weight of a new error in the deviation.
const DEVIATION_WEIGHT: f64 = 0.25;
/// So many deviations above the line are planned for: a late round makes the device wait, an early one only leaves bits unsent.
const CAUTION: f64 = 2.0;
/// So many are no accident, twice in a row.
const SURPRISE: f64 = 4.0;
/// The least deviation that is believed, as a share of what was expected: even a steady link has some.
const DEVIATION_LEAST: f64 = 0.05;

impl RateController {
    /// A controller that begins with so many bits.
    #[must_use]
    pub fn new(bounds: RateBounds, bits: f64) -> Self {
        Self { bounds, bits: bits.clamp(bounds.bits_min, bounds.bits_max), line: None }
    }

    /// Bits for each value in the next round.
    #[must_use]
    pub fn bits(&self) -> f64 {
        self.bits
    }

    /// Seconds that it takes to exchange a bit of each value of the model; none before the first round.
    #[must_use]
    pub fn bit_s(&self) -> Option<f64> {
        self.line.map(|line| line.terms().1)
    }

    /// Takes in a round; the bits from now on when they change.
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
                        // Other bits for a round will show what they cost: fewer, where there can be fewer.
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

    /// A link on which a value's bit takes `slope` seconds, and steps of a second.
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

    /// Every ten rounds, the link has a fifth of its rate for ten rounds: two rounds are late at each fall, as one alone may be an accident, and none
    /// otherwise.
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
        // Down at each fall, up at each rise, and nothing to and fro between them.
        assert!(turns <= 2 * falls, "{turns} turns, with {falls} falls");
    }

    /// On a machine that does other things as well, a round takes up to a third more or less than the last.
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

    /// Members whose steps end later make rounds long, and fewer bits would not make them shorter.
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
        assert!(few < 50, "in {few} rounds of 900, bits were below half of what the link carries");
    }

    /// Round trips take a step, and each bit of all values five: members that see only their own bits put what the others send down to waiting.
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

    /// As in a warm-up: all rounds send what they must, whatever the controller would, and each takes a hundred times its window.
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

    /// A stall takes the bits away; afterwards each round waits for others for longer than its window.
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

    /// Few fragments are due in a round, so its results are those of one owner or another and say nothing of what the others sent, and each bit of all values takes five steps. Who
    /// sees no pattern in that must not send ever more: all would wait for it. Each has its own least, as where too much waits in error feedback.
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
