//! The exponential moving average of the synchronised parameters.

use std::sync::Arc;

use longhaul_common::id::Round;
use longhaul_common::schedule::RoundSchedule;

/// A moving average on the host (Polyak & Juditsky 1992): e ← dⁿ·e + (1 − dⁿ)·θ after a round of n steps. Every member computes the same one, unless it takes
/// the results of several rounds at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Average {
    /// d
    decay: f64,
    values: Arc<Vec<f32>>,
    /// First round that is not in it.
    next_round: Round,
}

impl Average {
    /// Creates an average that includes all rounds before this one.
    #[must_use]
    pub fn new(decay: f64, values: Vec<f32>, next_round: Round) -> Self {
        Self { decay, values: Arc::new(values), next_round }
    }

    /// Returns the average.
    #[must_use]
    pub fn values(&self) -> &Arc<Vec<f32>> {
        &self.values
    }

    /// Takes in the parameters after a round's result.
    pub fn take(&mut self, schedule: &RoundSchedule, round: Round, parameters: &[f32]) {
        // The last exchange of a step changes the parameters.
        if round < self.next_round || schedule.exchange_of(round.next()) > 0 {
            return;
        }
        let (first, end) = (schedule.steps_of(self.next_round).start, schedule.steps_of(round).end);
        let kept = self.decay.powf(end.saturating_sub(first) as f64);
        self.next_round = round.next();
        for (average, parameter) in Arc::make_mut(&mut self.values).iter_mut().zip(parameters) {
            let (old, new) = (f64::from(*average), f64::from(*parameter));
            *average = (new + kept * (old - new)) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::schedule::Changes;

    use super::*;

    fn schedule(every: u64, exchanges: u32) -> RoundSchedule {
        let changes = Changes::NONE;
        RoundSchedule {
            warmup_rounds: 0,
            warmup_every: 1,
            every,
            overlap: every,
            groups: 1,
            exchanges,
            steps: 90,
            changes,
        }
    }

    #[test]
    fn rounds_of_many_steps_weigh_as_many_steps() {
        let mut average = Average::new(0.9, vec![1.0, -2.0], Round(0));
        let mut exact = [1.0f64, -2.0];
        for round in 0..4 {
            let parameters = [round as f32, 5.0 - round as f32];
            average.take(&schedule(3, 1), Round(round), &parameters);
            for (exact, parameter) in exact.iter_mut().zip(parameters) {
                (0..3).for_each(|_| *exact = 0.9 * *exact + 0.1 * f64::from(parameter));
            }
        }
        for (value, exact) in average.values().iter().zip(exact) {
            assert!((f64::from(*value) - exact).abs() < 1e-6, "{value} for {exact}");
        }
    }

    /// Low-rank gradients take two rounds a step; a member that was away takes two rounds at once.
    #[test]
    fn each_step_counts_once_whatever_the_exchanges_and_the_gaps() {
        let mut average = Average::new(0.5, vec![0.0], Round(0));
        average.take(&schedule(1, 2), Round(0), &[8.0]);
        assert_eq!(average.values()[0], 0.0);
        average.take(&schedule(1, 2), Round(1), &[8.0]);
        assert_eq!(average.values()[0], 4.0);
        average.take(&schedule(1, 2), Round(5), &[8.0]);
        assert_eq!(average.values()[0], 7.0);
        average.take(&schedule(1, 2), Round(5), &[0.0]);
        assert_eq!(average.values()[0], 7.0, "a round that is taken again counts for nothing");
    }
}
