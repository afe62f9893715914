//! Bits per value with which a round's exchange ends when its result is due, as a pure function of measurements.

use std::time::Duration;

use longhaul_proto::round::LATENCY_ROUND_TRIPS;

/// A member's measurements of a round to which it contributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundTiming {
    /// Bits sent per exchanged value, averaged over all members, because they share the links.
    pub bits: f64,
    /// Of them, those of this member.
    pub own_bits: f64,
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
    /// Weighted sums over rounds: of 1, x, y, x², x·y, and of x as this member alone sent it.
    sums: [f64; 6],
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
    fn through(x: f64, y: f64, own: f64, latency: f64) -> Self {
        Self { sums: [1.0, x, y, x * x, x * y, own], latency, deviation: y / 2.0, surprise: None }
    }

    /// Returns the time of an empty round and the time per unit of x, in seconds.
    fn terms(&self) -> (f64, f64) {
        let [n, x, y, xx, xy, _] = self.sums;
        let count = n + PRIOR_WEIGHT;
        let (mean_x, mean_y) = (x / count, (y + PRIOR_WEIGHT * self.latency) / count);
        let variance = xx / count - mean_x * mean_x;
        let slope = ((xy / count - mean_x * mean_y) / variance).max(0.0);
        ((mean_y - slope * mean_x).max(0.0), slope)
    }

    /// Returns a lower bound of the time per unit of x, from rounds alone: 0 if other causes explain their times. `None`: all sent about the same.
    fn slope_at_least(&self) -> Option<f64> {
        let [n, x, y, xx, xy, _] = self.sums;
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

    /// Returns the most that this member may send where waiting fills the window: more than all did, and the less of it the more it already exceeds them.
    fn most(&self) -> f64 {
        let exceeds = (self.sums[5] / self.sums[1]).max(1.0);
        BEYOND_ALL_MAX / exceeds.powi(3) * self.sent()
    }

    /// Returns the line after another round.
    fn with(mut self, x: f64, y: f64, own: f64, latency: f64) -> Self {
        self.latency = latency;
        let (at_nothing, slope) = self.terms();
        let expected = at_nothing + slope * x;
        let error = y - expected;
        if error.abs() > SURPRISE * self.deviation.max(DEVIATION_LEAST * expected) {
            let side = if error > 0.0 { Side::Above } else { Side::Below };
            if self.surprise == Some(side) {
                return Self::through(x, y, own, latency);
            }
            return Self { surprise: Some(side), ..self };
        }
        self.surprise = None;
        self.deviation += DEVIATION_WEIGHT * (error.abs() - self.deviation);
        let round = [1.0, x, y, x * x, x * y, own];
        self.sums.iter_mut().zip(round).for_each(|(sum, term)| *sum = MEMORY * *sum + term);
        self
    }
}

/// Least share of the window for sending. If latency and slower members fill the window, the device waits anyway; bits then stay low only if they prove to be
/// the cause.
const SENDING_SHARE_MIN: f64 = 0.25;
/// There, most bits as a multiple of the mean of the last twenty rounds, in which all owners take turns. Otherwise members without a clear slope would send
/// ever more, and all would wait. One that rises alone stays within 1.5^(1/4) = 1.11 times the mean ([`Line::most`]).
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
        let RoundTiming { bits, own_bits, share, .. } = timing;
        let [taken, window, round_trip] =
            [timing.taken, timing.window, timing.round_trip].map(|time| time.as_secs_f64());
        let (sent, latency) = (bits * share, LATENCY_ROUND_TRIPS * round_trip);
        if !(sent > 0.0 && taken > 0.0) {
            return None;
        }
        let line = match self.line {
            Some(line) => line.with(sent, taken, own_bits * share, latency),
            None => Line::through(sent, taken, own_bits * share, latency),
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
                        Some(slope) => (least / slope / share).min(line.most() / share),
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
mod tests;
