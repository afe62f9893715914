//! Drawing the next token.

use std::collections::BTreeSet;

use rand::Rng;

/// Options of drawing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits; 0 takes the most probable token.
    pub temperature: f64,
    /// Number of most probable tokens to draw from; `None`: all.
    pub top_k: Option<usize>,
    /// Least probability of the tokens to draw from, together: the most probable ones that reach it (Holtzman et al. 2019, "nucleus sampling"); 1: all.
    pub top_p: f64,
    /// Divisor of the positive logits of tokens that the window has, and factor of the negative ones (Keskar et al. 2019, "CTRL"); 1: none.
    pub repetition_penalty: f64,
    /// The same seed draws the same tokens.
    pub seed: u64,
}

impl Default for Sampling {
    /// All tokens, by the model's own distribution.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: None, top_p: 1.0, repetition_penalty: 1.0, seed: 0 }
    }
}

/// Changes the logits of tokens that are in `window`, each once.
pub(super) fn penalise(logits: &mut [f32], window: &[i64], sampling: Sampling) {
    if sampling.repetition_penalty == 1.0 {
        return;
    }
    let factor = sampling.repetition_penalty as f32;
    for token in window.iter().collect::<BTreeSet<_>>() {
        if let Some(logit) = usize::try_from(*token).ok().and_then(|token| logits.get_mut(token)) {
            *logit = if *logit > 0.0 { *logit / factor } else { *logit * factor };
        }
    }
}

/// Draws an index with probability softmax(logits / temperature), among the `top_k` largest, and of those among the first that have `top_p`.
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
    let weights = nucleus(&weights, sampling.top_p);
    let mut rest = rng.random::<f64>() * weights.iter().sum::<f64>();
    for (&index, weight) in order.iter().zip(weights) {
        if rest < *weight {
            return index;
        }
        rest -= weight;
    }
    // Reached by rounding alone: it consumed the last one's weight.
    order[weights.len() - 1]
}

/// Returns the first of these falling weights, as few as have this share of all.
fn nucleus(weights: &[f64], share: f64) -> &[f64] {
    let wanted = share * weights.iter().sum::<f64>();
    let mut sum = 0.0;
    let enough = weights.iter().position(|weight| {
        sum += weight;
        sum >= wanted
    });
    &weights[..enough.map_or(weights.len(), |last| last + 1)]
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
        let drawn = frequencies(Sampling { temperature: 0.5, ..Sampling::default() });
        let sum: f64 = LOGITS.iter().map(|&l| (f64::from(l) / 0.5).exp()).sum();
        for (frequency, logit) in drawn.iter().zip(LOGITS) {
            let expected = (f64::from(logit) / 0.5).exp() / sum;
            // Four standard deviations of a share of 40,000 draws are 0.01 at most.
            assert!((frequency - expected).abs() < 0.01, "{frequency} for {expected}");
        }
    }

    #[test]
    fn top_p_leaves_the_fewest_that_reach_it() {
        // Softmax of the logits: 0.087, 0.644, 0.237, 0.032.
        for (top_p, left) in [(0.5, [1].as_slice()), (0.8, &[1, 2]), (0.9, &[0, 1, 2]), (1.0, &[0, 1, 2, 3])]
        {
            let drawn = frequencies(Sampling { top_p, ..Sampling::default() });
            let found: Vec<usize> = (0..4).filter(|&index| drawn[index] > 0.0).collect();
            assert_eq!(found, left, "{top_p}");
        }
        let both = frequencies(Sampling { top_p: 0.8, ..Sampling::default() });
        assert!((both[1] - 0.644 / 0.881).abs() < 0.01, "{both:?}");
    }

    #[test]
    fn tokens_of_the_window_are_less_probable() {
        let mut logits = LOGITS;
        let penalty = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
        penalise(&mut logits, &[1, 3, 1], penalty);
        assert_eq!(logits, [0.0, 1.0, 1.0, -2.0]);
    }

    #[test]
    fn top_k_and_temperature_zero_leave_only_the_most_probable() {
        let two = frequencies(Sampling { top_k: Some(2), ..Sampling::default() });
        assert!(two[0] == 0.0 && two[3] == 0.0 && two[2] > 0.2);
        let one = frequencies(Sampling { temperature: 0.0, ..Sampling::default() });
        assert!((one[1] - 1.0).abs() < 1e-9);
    }
}
