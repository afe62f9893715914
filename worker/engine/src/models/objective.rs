//! Cross entropy, and what training adds to it.

use longhaul_common::config::TrainConfig;
use tch::{Kind, Reduction, TchError, Tensor};

/// The training loss of a prediction with logits l and target y: (1 − ε)·CE(y) + ε·mean over classes of CE, plus z·(log Σ exp l)² (label smoothing: Szegedy et
/// al. 2016, arXiv 1512.00567; z-loss: PaLM, Chowdhery et al. 2022, arXiv 2204.02311).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Objective {
    /// ε
    label_smoothing: f64,
    /// z
    z_loss: f64,
}

/// A target without a loss: libtorch's own default; no token has this index.
pub(crate) const IGNORED: i64 = -100;

/// Cross entropy alone: of evaluations.
pub(super) const PLAIN: Objective = Objective { label_smoothing: 0.0, z_loss: 0.0 };

impl Objective {
    pub fn new(train: &TrainConfig) -> Self {
        Self { label_smoothing: train.label_smoothing, z_loss: train.z_loss }
    }

    /// Whether it is cross entropy alone.
    pub fn is_plain(self) -> bool {
        self == PLAIN
    }

    /// For logits [.., V] and as many targets [N]: [], or [N] without reduction. Targets of [`IGNORED`] count nothing; a mean is over the others.
    pub(super) fn loss(
        self,
        logits: &Tensor,
        targets: &Tensor,
        reduction: Reduction,
    ) -> Result<Tensor, TchError> {
        let entries = logits.size().last().copied().unwrap_or(1);
        let logits = logits.f_view([-1, entries])?.f_to_kind(Kind::Float)?; // [N, V]
        let loss =
            logits.f_cross_entropy_loss::<Tensor>(targets, None, reduction, IGNORED, self.label_smoothing)?;
        if self.z_loss == 0.0 {
            return Ok(loss);
        }
        let counted = targets.f_ne(IGNORED)?.f_to_kind(Kind::Float)?; // [N]
        let squares = logits.f_logsumexp([-1].as_slice(), false)?.f_square()?.f_mul(&counted)?; // [N]
        let squares = match reduction {
            Reduction::Sum => squares.f_sum(Kind::Float)?,
            Reduction::Mean => squares.f_sum(Kind::Float)?.f_div(&counted.f_sum(Kind::Float)?)?,
            _ => squares,
        };
        loss.f_add(&squares.f_mul_scalar(self.z_loss)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::test_device;

    const CLASSES: usize = 7;
    const TARGETS: [i64; 4] = [2, 0, 6, 3];

    fn logit(n: usize, class: usize) -> f64 {
        ((n * 31 + class * 17) % 23) as f64 / 4.0 - 2.0
    }

    /// Loss of a prediction and its gradient by the logits.
    fn reference(n: usize, smoothing: f64, z: f64) -> (f64, Vec<f64>) {
        let sum: f64 = (0..CLASSES).map(|class| logit(n, class).exp()).sum();
        let log_sum = sum.ln();
        let share = |class: usize| {
            let own = if TARGETS[n] == class as i64 { 1.0 - smoothing } else { 0.0 };
            own + smoothing / CLASSES as f64
        };
        let entropy: f64 = (0..CLASSES).map(|class| share(class) * (log_sum - logit(n, class))).sum();
        let gradient = |class: usize| {
            let p = logit(n, class).exp() / sum;
            p - share(class) + 2.0 * z * log_sum * p
        };
        (entropy + z * log_sum * log_sum, (0..CLASSES).map(gradient).collect())
    }

    #[test]
    fn smoothing_and_z_loss_follow_their_formulas_in_f64_with_their_gradients() {
        for (smoothing, z) in [(0.0, 0.0), (0.1, 0.0), (0.0, 1e-2), (0.3, 0.05)] {
            let values: Vec<f32> =
                (0..TARGETS.len() * CLASSES).map(|i| logit(i / CLASSES, i % CLASSES) as f32).collect();
            let logits = Tensor::from_slice(&values).to_device(test_device()).view([2, 2, CLASSES as i64]);
            let logits = logits.set_requires_grad(true);
            let targets = Tensor::from_slice(&TARGETS).to_device(test_device());
            let objective = Objective { label_smoothing: smoothing, z_loss: z };
            let each = objective.loss(&logits, &targets, Reduction::None).unwrap();
            let mean = objective.loss(&logits, &targets, Reduction::Mean).unwrap();
            let gradient = Tensor::run_backward(&[&mean], &[&logits], false, false).remove(0);
            let gradient = Vec::<f32>::try_from(gradient.flatten(0, -1)).unwrap();
            let mut sum = 0.0;
            for (n, loss) in Vec::<f32>::try_from(each).unwrap().into_iter().enumerate() {
                let (expected, by_logit) = reference(n, smoothing, z);
                assert!((f64::from(loss) - expected).abs() < 1e-5, "{loss} for {expected}");
                sum += expected;
                for (class, expected) in by_logit.into_iter().enumerate() {
                    let given = f64::from(gradient[n * CLASSES + class]) * TARGETS.len() as f64;
                    assert!((given - expected).abs() < 1e-5, "{given} for {expected}");
                }
            }
            assert!((mean.double_value(&[]) - sum / TARGETS.len() as f64).abs() < 1e-5);
            // Without the second target, as in rows of conversations.
            let some = Tensor::from_slice(&[2, IGNORED, 6, 3]).to_device(test_device());
            let left = sum - reference(1, smoothing, z).0;
            for (reduction, expected) in [(Reduction::Sum, left), (Reduction::Mean, left / 3.0)] {
                let given = objective.loss(&logits, &some, reduction).unwrap().double_value(&[]);
                assert!((given - expected).abs() < 1e-5, "{given} for {expected}");
            }
        }
    }
}
