//! Muon in f64 (Jordan et al. 2024), with AdamW for the tensors that are no weights of products within blocks.

use longhaul_common::config::MuonScale;
use tch::Tensor;

use super::adamw::{State, Step, clipped};

const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];

impl State {
    /// M ← μ·M + G, O = G + μ·M or M, W ← (1 − ηλ)·W − η·s·orthogonal(O), with the gradient clipped.
    pub fn muon(&mut self, step: &Step<'_>, gradient: &[f64]) {
        let (train, mut own) = (step.train, self.clone());
        let config = train.muon.clone().unwrap_or_default();
        self.adamw(step, gradient);
        let gradient = clipped(gradient, train.gradient_clip);
        let rate = step.rate * config.learning_rate(train) / train.learning_rate;
        for tensor in step.tensors {
            let (Some([rows, columns]), Some([inputs, outputs])) = (tensor.shape, tensor.product) else {
                continue;
            };
            let (momenta, gradient) = (&mut own.first[tensor.range.clone()], &gradient[tensor.range.clone()]);
            momenta.iter_mut().zip(gradient).for_each(|(m, g)| *m = config.momentum * *m + g);
            let ahead = |(m, g): (&f64, &f64)| if config.nesterov { g + config.momentum * m } else { *m };
            let direction: Vec<f64> = momenta.iter().zip(gradient).map(ahead).collect();
            let (inputs, outputs) = (inputs as f64, outputs as f64);
            let scale = match config.scale {
                MuonScale::MatchRmsAdamw => 0.2 * inputs.max(outputs).sqrt(),
                MuonScale::Original => (outputs / inputs).max(1.0).sqrt(),
            };
            let direction = orthogonal(&direction, [rows, columns], config.steps);
            let values = own.parameters[tensor.range.clone()].iter_mut().zip(&direction);
            values.for_each(|(w, o)| *w = (1.0 - rate * train.weight_decay) * *w - rate * scale * o);
            self.parameters[tensor.range.clone()].copy_from_slice(&own.parameters[tensor.range.clone()]);
            self.first[tensor.range.clone()].copy_from_slice(&own.first[tensor.range.clone()]);
            self.second[tensor.range.clone()].fill(0.0);
        }
    }
}

/// X ← a·X + (b·A + c·A²)·X with A = X·Xᵀ, of X / ‖X‖_F. torch multiplies, in f64.
fn orthogonal(x: &[f64], [rows, columns]: [usize; 2], steps: u32) -> Vec<f64> {
    let x = Tensor::from_slice(x).reshape([rows as i64, columns as i64]);
    let mut x = &x / x.norm();
    let [a, b, c] = COEFFICIENTS;
    for _ in 0..steps {
        let gram = x.matmul(&x.tr());
        let more = (b * &gram + c * gram.matmul(&gram)).matmul(&x);
        x = a * x + more;
    }
    Vec::try_from(x.reshape([-1])).unwrap()
}
