//! Slowly varying delay.

use std::time::Duration;

use rand::Rng;

/// Additional delay that varies between 0 and a maximum and never reorders.
///
/// It follows a line through random points, twice the maximum apart in time, so its slope is at most ½: of
/// two packets the later one always arrives later. A queue elsewhere on the path behaves like this, unlike
/// independent draws per packet, which reorder or, once sorted, become a constant.
#[derive(Clone, Debug, Default)]
pub(super) struct JitterProcess {
    segment: Option<Segment>,
}

#[derive(Clone, Debug)]
struct Segment {
    maximum: Duration,
    start: Duration,
    from: f64,
    to: f64,
}

impl JitterProcess {
    /// Returns the additional delay of a packet that leaves the queue at `departure`; departures never
    /// decrease.
    pub(super) fn at<R: Rng + ?Sized>(
        &mut self,
        departure: Duration,
        maximum: Duration,
        rng: &mut R,
    ) -> Duration {
        if maximum.is_zero() {
            self.segment = None;
            return Duration::ZERO;
        }
        let length = maximum * 2;
        let segment = match self.segment.take() {
            Some(old) if old.maximum == maximum && departure < old.start + length => old,
            Some(old) if old.maximum == maximum && departure < old.start + 2 * length => {
                Segment { start: old.start + length, from: old.to, to: rng.random(), maximum }
            }
            _ => Segment { start: departure, from: rng.random(), to: rng.random(), maximum },
        };
        let progress = (departure - segment.start).div_duration_f64(length);
        let level = segment.from + (segment.to - segment.from) * progress;
        self.segment = Some(segment);
        maximum.mul_f64(level)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn jitter_stays_within_its_maximum_averages_half_of_it_and_keeps_the_order() {
        let maximum = Duration::from_millis(4);
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut process = JitterProcess::default();
        let mut last_arrival = Duration::ZERO;
        let mut sum = Duration::ZERO;
        const PACKETS: u32 = 200_000;
        for packet in 0..PACKETS {
            let departure = Duration::from_micros(100) * packet;
            let extra = process.at(departure, maximum, &mut rng);
            assert!(extra <= maximum);
            assert!(departure + extra >= last_arrival);
            last_arrival = departure + extra;
            sum += extra;
        }
        let mean = sum.div_duration_f64(maximum) / f64::from(PACKETS);
        // 2,500 independent points of a uniform variable: 5 standard deviations are 5·0.29/√2500 = 0.03.
        assert!((mean - 0.5).abs() < 0.03, "mean {mean}");
    }
}
