//! Random selection of the values of a gradient to send, unbiased (Wangni et al. 2018, "Gradient sparsification for communication-efficient distributed
//! optimization", with the
//! optimal probabilities of that paper).

/// Keeps at most `keep` non-zero values of each `chunk`. A value is kept with a probability proportional to its magnitude and then set to the *threshold*, its
/// magnitude over this probability. Values above the
/// threshold are kept unchanged. All values are finite.
pub(super) fn draw(values: &mut [f32], chunk: usize, keep: usize, seed: u64) {
    for (at, values) in (0..).zip(values.chunks_mut(chunk)) {
        if keep < values.len() {
            let threshold = threshold(values, keep);
            draw_above(values, threshold, start_of(seed, at));
        }
    }
}

/// Returns the magnitude t with Σ min(1, |v| / t) = `keep`, or the least non-zero magnitude if fewer values are non-zero.
fn threshold(values: &[f32], keep: usize) -> f32 {
    let mut threshold = f32::INFINITY;
    loop {
        // Values above the last threshold are certain. The threshold never rises.
        let certain = values.iter().filter(|value| value.abs() >= threshold).count();
        let rest: f64 = values
            .iter()
            .map(|value| f64::from(value.abs()))
            .filter(|&size| size < f64::from(threshold))
            .sum();
        let next = (rest / keep.saturating_sub(certain) as f64) as f32;
        if rest == 0.0 || next >= threshold {
            return threshold;
        }
        threshold = next;
    }
}

/// Systematic sampling (Madow 1949, "On the theory of systematic sampling, II"): each whole number beyond `start` along the sum of probabilities selects a
/// value, so the number of draws is exact.
fn draw_above(values: &mut [f32], threshold: f32, start: f64) {
    let mut sum = start;
    for value in values {
        let size = value.abs();
        if size < threshold {
            let before = sum;
            sum += f64::from(size) / f64::from(threshold);
            *value = if sum.floor() > before.floor() { threshold.copysign(*value) } else { 0.0 };
        }
    }
}

/// Returns a number from 0 to 1, derived from the seed and the chunk's number.
fn start_of(seed: u64, chunk: u64) -> f64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"drawn").update(&seed.to_le_bytes()).update(&chunk.to_le_bytes());
    let mut word = [0; 8];
    hasher.finalize_xof().fill(&mut word);
    // An f64 holds 53 bits below 1.
    (u64::from_le_bytes(word) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of both signs and several magnitudes, some zero.
    fn gradient(len: usize) -> Vec<f32> {
        (0..len)
            .map(|i| if i % 7 == 3 { 0.0 } else { (i as f32 * 0.7).sin().powi(3) * (1 + i % 5) as f32 })
            .collect()
    }

    #[test]
    fn as_many_are_drawn_as_are_to_be_sent_and_the_large_ones_stay_as_they_are() {
        let gradient = gradient(100);
        for (keep, seed) in [1, 3, 10, 40].into_iter().zip(0..) {
            let mut drawn = gradient.clone();
            draw(&mut drawn, 50, keep, seed);
            for (drawn, given) in drawn.chunks(50).zip(gradient.chunks(50)) {
                let sent = drawn.iter().filter(|&&value| value != 0.0).count();
                assert!(sent.abs_diff(keep) <= 1, "{sent} of {keep}");
                let threshold = bisected(given, keep);
                for (&drawn, &given) in drawn.iter().zip(given) {
                    if given.abs() > threshold * 1.001 {
                        assert_eq!(drawn, given);
                    } else if drawn != 0.0 {
                        assert!(
                            (drawn / threshold.copysign(given) - 1.0).abs() < 1e-3,
                            "{drawn}: {threshold}"
                        );
                    }
                }
            }
        }
    }

    /// The definition, by bisection.
    fn bisected(values: &[f32], keep: usize) -> f32 {
        let expected = |t: f64| values.iter().map(|v| (f64::from(v.abs()) / t).min(1.0)).sum::<f64>();
        let (mut low, mut high) = (1e-9, 1e9);
        for _ in 0..200 {
            let middle = f64::midpoint(low, high);
            if expected(middle) > keep as f64 { low = middle } else { high = middle }
        }
        high as f32
    }

    /// The mean over many draws is the value: a draw's standard deviation is √(|v|·(t − |v|)), at most t / 2.
    #[test]
    fn what_arrives_is_right_on_average() {
        const DRAWS: u32 = 4000;
        let given = gradient(64);
        let threshold = f64::from(bisected(&given, 8));
        let mut means = vec![0.0; given.len()];
        for seed in 0..DRAWS {
            let mut drawn = given.clone();
            draw(&mut drawn, 64, 8, seed.into());
            for (mean, drawn) in means.iter_mut().zip(&drawn) {
                *mean += f64::from(*drawn) / f64::from(DRAWS);
            }
        }
        let tolerance = 5.0 * threshold / 2.0 / f64::from(DRAWS).sqrt();
        for (mean, given) in means.iter().zip(given) {
            assert!((mean - f64::from(given)).abs() < tolerance, "{mean} for {given}");
        }
    }

    #[test]
    fn where_few_are_not_zero_or_all_are_wanted_nothing_changes() {
        for (len, keep) in [(20, 19), (20, 20), (20, 25)] {
            let (given, mut drawn) = (gradient(len), gradient(len));
            draw(&mut drawn, 64, keep, 1);
            assert_eq!(drawn, given, "{keep}");
        }
        let mut none = vec![0.0; 10];
        draw(&mut none, 10, 3, 1);
        assert_eq!(none, [0.0; 10]);
    }
}
