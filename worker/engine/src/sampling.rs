//! Drawing the next token.

use rand::Rng;

/// Options of drawing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits; 0 takes the most probable token.
    pub temperature: f64,
    /// Number of most probable tokens to draw from; `None`: all.
    pub top_k: Option<usize>,
    /// The same seed draws the same tokens.
    pub seed: u64,
}

/// Draws an index with probability softmax(logits / temperature), among the `top_k` largest.
pub(super) fn draw(logits: &[f32], sampling: Sampling, rng: &mut impl Rng) -> usize {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_unstable_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if sampling.temperature <= 0.0 {
        return order[0];
    }
    order.truncate(sampling.top_k.unwrap_or(order.len()).max(1));
    let largest = f64::from(logits[order[0]]);
    let weights: Vec<f64> =
        order.iter().map(|&i| ((f64::from(logits[i]) - largest) / sampling.temperature).exp()).collect();
    let mut rest = rng.random::<f64>() * weights.iter().sum::<f64>();
    for (&index, weight) in order.iter().zip(&weights) {
        if rest < *weight {
            return index;
        }
        rest -= weight;
    }
    // Reached by rounding alone: it consumed the last one's weight.
    order[order.len() - 1]
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    const LOGITS: [f32; 4] = [0.0, 2.0, 1.0, -1.0];

    fn frequencies(sampling: Sampling) -> [f64; 4] {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut counts = [0.0; 4];
        for _ in 0..40_000 {
            counts[draw(&LOGITS, sampling, &mut rng)] += 1.0 / 40_000.0;
        }
        counts
    }

    #[test]
    fn tokens_are_drawn_with_their_softmax_probabilities() {
        let drawn = frequencies(Sampling { temperature: 0.5, top_k: None, seed: 0 });
        let sum: f64 = LOGITS.iter().map(|&l| (f64::from(l) / 0.5).exp()).sum();
        for (frequency, logit) in drawn.iter().zip(LOGITS) {
            let expected = (f64::from(logit) / 0.5).exp() / sum;
            // Four standard deviations of a share of 40,000 draws are 0.01 at most.
            assert!((frequency - expected).abs() < 0.01, "{frequency} for {expected}");
        }
    }

    #[test]
    fn top_k_and_temperature_zero_leave_only_the_most_probable() {
        let two = frequencies(Sampling { temperature: 1.0, top_k: Some(2), seed: 0 });
        assert!(two[0] == 0.0 && two[3] == 0.0 && two[2] > 0.2);
        let one = frequencies(Sampling { temperature: 0.0, top_k: None, seed: 0 });
        assert!((one[1] - 1.0).abs() < 1e-9);
    }
}
