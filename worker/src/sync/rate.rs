//! How many bits a value may take, so that a round's exchange is over when its result is due: a pure function of what was measured.

use std::time::Duration;

/// What a member saw of a round that it contributed to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundTiming {
    /// Bits for each value exchanged, as it was sent, both ways on average.
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
/// A round takes `latency + bits·share·slope`. The latency is that of a contribution and a result, one way each, and of the hand-over
/// between them; the slope, seconds for a bit of each value of the model, is the link's rate as this group of sites uses it, and is estimated from
/// every round with its deviation, of which two are kept free. Bits fall at once when the link has become slower, and rise by [`RISE_MAX`] a round at most; a change smaller than [`DEAD_BAND`]
/// is not made, so that a steady link has a steady stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateController {
    bounds: RateBounds,
    bits: f64,
    /// Seconds for a bit of each value of the model; none before the first round.
    slope: Option<Slope>,
}

/// An estimate, and how far off it usually is (Jacobson 1988, "Congestion avoidance and control", for round trips).
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slope {
    mean: f64,
    deviation: f64,
}

impl Slope {
    /// After another measurement. One that is far above all that was seen is believed at once: the link has become slower.
    fn with(self, measured: f64) -> Self {
        let error = measured - self.mean;
        if error > SURPRISE * self.deviation.max(DEVIATION_LEAST * self.mean) {
            return Self { mean: measured, ..self };
        }
        Self {
            mean: self.mean + MEAN_WEIGHT * error,
            deviation: self.deviation + DEVIATION_WEIGHT * (error.abs() - self.deviation),
        }
    }

    /// What few rounds exceed.
    fn cautious(self) -> f64 {
        self.mean + CAUTION * self.deviation
    }
}

/// Round trips that a round takes besides sending: half of one for the contribution, half of one for the result, and half of one for what is
/// waited for on the way.
const LATENCY_ROUND_TRIPS: f64 = 1.5;
/// The least share of a round that is put down to sending: with a smaller one, the slope would be noise.
const SENDING_SHARE_MIN: f64 = 0.1;
/// Bits grow by this factor from one round to the next at most: a wrong estimate then costs a wait of one more window.
const RISE_MAX: f64 = 2.0;
/// Relative changes of the bits below this are not worth another chain.
const DEAD_BAND: f64 = 0.08;
/// The weight of a new slope in the mean, and of its error in the deviation.
const MEAN_WEIGHT: f64 = 0.25;
const DEVIATION_WEIGHT: f64 = 0.25;
/// So many deviations above the mean are planned for: a late round makes the device wait, an early one only leaves bits unsent.
const CAUTION: f64 = 2.0;
/// So many are no accident.
const SURPRISE: f64 = 4.0;
/// The least deviation that is believed, as a share of the mean: even a steady link has some.
const DEVIATION_LEAST: f64 = 0.05;

impl RateController {
    /// A controller that begins with so many bits.
    #[must_use]
    pub fn new(bounds: RateBounds, bits: f64) -> Self {
        Self { bounds, bits: bits.clamp(bounds.bits_min, bounds.bits_max), slope: None }
    }

    /// Bits for each value in the next round.
    #[must_use]
    pub fn bits(&self) -> f64 {
        self.bits
    }

    /// Seconds that it takes to exchange a bit of each value of the model; none before the first round.
    #[must_use]
    pub fn bit_s(&self) -> Option<f64> {
        self.slope.map(|slope| slope.mean)
    }

    /// Takes in a round; the bits from now on when they change.
    pub fn observe(&mut self, timing: RoundTiming) -> Option<f64> {
        let taken = timing.taken.as_secs_f64();
        let latency = LATENCY_ROUND_TRIPS * timing.round_trip.as_secs_f64();
        let sending = (taken - latency).max(SENDING_SHARE_MIN * taken);
        if timing.bits <= 0.0 || timing.share <= 0.0 || sending <= 0.0 {
            return None;
        }
        let measured = sending / (timing.bits * timing.share);
        let first = Slope { mean: measured, deviation: 0.0 };
        let slope = self.slope.map_or(first, |known| known.with(measured));
        self.slope = Some(slope);
        let window = self.bounds.target_utilisation * timing.window.as_secs_f64();
        let left = (window - latency).max(SENDING_SHARE_MIN * window);
        let wanted = (left / (slope.cautious() * timing.share))
            .min(self.bits.max(timing.bits) * RISE_MAX)
            .clamp(self.bounds.bits_min, self.bounds.bits_max);
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

    /// Every ten rounds, the link has a fifth of its rate for ten rounds: a round is late once at each fall, and never otherwise.
    #[test]
    fn a_rate_that_swings_fivefold_costs_one_late_round_at_each_fall() {
        let mut controller = RateController::new(BOUNDS, 1.0);
        let (mut late, mut changes, mut falls) = (0, 0, 0);
        for round in 0..400 {
            let slow = round / 10 % 2 == 1;
            falls += usize::from(slow && round % 10 == 0);
            let link = Link { slope: if slow { 0.5 } else { 0.1 }, round_trip: 0.05, window: 1.0 };
            let (used, changed) = link.round(&mut controller);
            late += usize::from(used > 1.0);
            changes += usize::from(changed.is_some());
        }
        assert!(late <= falls, "{late} late rounds of 400, with {falls} falls");
        assert!(changes < 250, "{changes} changes in 400 rounds");
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
