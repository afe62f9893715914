//! Accuracies with their standard errors.

use super::Choice;

/// A number of hits among trials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Hits.
    pub hits: u64,
    /// Trials.
    pub count: u64,
}

impl Share {
    /// Counts a trial.
    pub fn add(&mut self, is_hit: bool) {
        self.hits += u64::from(is_hit);
        self.count += 1;
    }

    /// Counts all trials of another.
    pub fn extend(&mut self, other: Self) {
        self.hits += other.hits;
        self.count += other.count;
    }

    /// Returns the mean; NaN without trials.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.hits as f64 / self.count as f64
    }

    /// Returns the standard error of the mean, from the sample's standard deviation (divisor n − 1); `None`: fewer than two trials.
    #[must_use]
    pub fn standard_error(&self) -> Option<f64> {
        let mean = self.mean();
        (self.count > 1).then(|| (mean * (1.0 - mean) / (self.count - 1) as f64).sqrt())
    }
}

/// Returns the standard error of the mean over several groups of trials, from their pooled variance; `None`: a group has fewer than two.
#[must_use]
pub fn pooled_error(groups: &[Share]) -> Option<f64> {
    let (mut sum, mut free, mut count) = (0.0, 0.0, 0.0);
    for group in groups {
        let size = group.count as f64;
        sum += (size - 1.0) * group.standard_error()?.powi(2) * size;
        free += size - 1.0;
        count += size;
    }
    (free > 0.0).then(|| (sum / free / count).sqrt())
}

impl Choice {
    /// Returns whether the answer of the greatest log-likelihood is the right one, and whether that of the greatest log-likelihood a character is. Of equals the
    /// first counts.
    #[must_use]
    pub fn judge(&self, likelihoods: &[f64]) -> [bool; 2] {
        let by_length: Vec<f64> = likelihoods
            .iter()
            .zip(&self.characters)
            .map(|(sum, characters)| sum / *characters as f64)
            .collect();
        [likelihoods, &by_length].map(|of| first_of_greatest(of) == Some(self.right))
    }
}

fn first_of_greatest(values: &[f64]) -> Option<usize> {
    (0..values.len()).reduce(|best, at| if values[at] > values[best] { at } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_those_of_the_sample_and_of_the_pool() {
        let share = |hits, count| Share { hits, count };
        // statistics.stdev([1, 1, 1, 0]) / 2
        assert!((share(3, 4).standard_error().unwrap() - 0.25).abs() < 1e-12);
        assert_eq!(share(1, 1).standard_error(), None);
        // lm_eval.api.metrics.pooled_sample_stderr([0.25, 0.2], [4, 6])
        let groups = [share(3, 4), share(2, 6)];
        let expected = ((3.0 * 0.0625 * 4.0 + 5.0 * (2.0 / 9.0 / 5.0) * 6.0) / 8.0_f64 / 10.0).sqrt();
        assert!((pooled_error(&groups).unwrap() - expected).abs() < 1e-12);
        assert_eq!(pooled_error(&[share(3, 4), share(1, 1)]), None);
    }

    #[test]
    fn long_answers_are_not_at_a_disadvantage_with_the_norm() {
        let choice = |right| Choice { pairs: Vec::new(), characters: vec![2, 10, 0], right };
        assert_eq!(choice(0).judge(&[-4.0, -6.0, -9.0]), [true, false]);
        assert_eq!(choice(1).judge(&[-4.0, -6.0, -9.0]), [false, true]);
        assert_eq!(choice(0).judge(&[-4.0, -20.0, -4.0]), [true, true]);
        assert_eq!(choice(2).judge(&[-4.0, -20.0, -4.0]), [false, false]);
    }
}
