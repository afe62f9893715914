//! AdamW (Loshchilov & Hutter 2019, "Decoupled weight decay regularization") on flat vectors, with PyTorch's order of
//! operations.

use longhaul_common::config::TrainConfig;
use tch::{Device, TchError, Tensor};

/// Values that go through all operations of an update together, on a CPU. Five pieces of this size fit a core's
/// second-level cache, so that each value comes from memory once and not once for each operation; and the calls cost
/// little beside the work.
const PIECE_VALUES_CPU: i64 = 1 << 15;

/// The optimiser's memory, and the pieces in which an update is made.
#[derive(Debug)]
pub(super) struct AdamW {
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    weight_decay: f64,
    first: Tensor,  // [P]
    second: Tensor, // [P]
    updates: u64,
    pieces: Vec<Piece>,
}

/// The same slice of each vector.
#[derive(Debug)]
struct Piece {
    parameters: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    scratch: Tensor,
    decayed: bool,
}

/// The factors of one update.
struct Factors {
    gradient: f64,
    decay: f64,
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    /// 1/√(1 − β₂ᵗ)
    second_correction: f64,
    /// −γ/(1 − β₁ᵗ)
    step: f64,
}

impl AdamW {
    /// An optimiser that reads `gradient` and changes `parameters`, both `[P]`, in place. The first `decayed` values are
    /// subject to weight decay.
    pub(super) fn new(
        train: &TrainConfig,
        parameters: &Tensor,
        gradient: &Tensor,
        decayed: u64,
    ) -> Result<Self, TchError> {
        let (first, second) = (gradient.f_zeros_like()?, gradient.f_zeros_like()?);
        let len = parameters.size()[0];
        let piece_len = if parameters.device() == Device::Cpu { PIECE_VALUES_CPU } else { len.max(1) };
        let scratch = parameters.f_narrow(0, 0, piece_len.min(len))?.f_zeros_like()?;
        let decayed = decayed as i64;
        let mut pieces = Vec::new();
        let mut start = 0;
        while start < len {
            let end = if start < decayed { decayed } else { len };
            let size = piece_len.min(end - start);
            pieces.push(Piece {
                parameters: parameters.f_narrow(0, start, size)?,
                gradient: gradient.f_narrow(0, start, size)?,
                first: first.f_narrow(0, start, size)?,
                second: second.f_narrow(0, start, size)?,
                scratch: scratch.f_narrow(0, 0, size)?,
                decayed: start < decayed,
            });
            start += size;
        }
        let TrainConfig { beta1, beta2, epsilon, weight_decay, .. } = *train;
        Ok(Self { beta1, beta2, epsilon, weight_decay, first, second, updates: 0, pieces })
    }

    /// One update with the gradient times `gradient_factor`. The gradient is scaled in place.
    pub(super) fn update(&mut self, learning_rate: f64, gradient_factor: f64) -> Result<(), TchError> {
        self.updates += 1;
        let corrected = |beta: f64| 1.0 - beta.powf(self.updates as f64);
        let factors = Factors {
            gradient: gradient_factor,
            decay: 1.0 - learning_rate * self.weight_decay,
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            second_correction: corrected(self.beta2).sqrt().recip(),
            step: -learning_rate / corrected(self.beta1),
        };
        self.pieces.iter_mut().try_for_each(|piece| piece.update(&factors))
    }

    pub(super) fn first(&self) -> &Tensor {
        &self.first
    }

    pub(super) fn second(&self) -> &Tensor {
        &self.second
    }

    pub(super) fn updates(&self) -> u64 {
        self.updates
    }

    pub(super) fn load(&mut self, first: &Tensor, second: &Tensor, updates: u64) -> Result<(), TchError> {
        self.first.f_copy_(first)?;
        self.second.f_copy_(second)?;
        self.updates = updates;
        Ok(())
    }

    pub(super) fn reset(&mut self) -> Result<(), TchError> {
        let _ = self.first.f_zero_()?;
        let _ = self.second.f_zero_()?;
        self.updates = 0;
        Ok(())
    }
}

impl Piece {
    fn update(&mut self, factors: &Factors) -> Result<(), TchError> {
        if factors.gradient != 1.0 {
            let _ = self.gradient.f_mul_scalar_(factors.gradient)?;
        }
        if self.decayed && factors.decay != 1.0 {
            let _ = self.parameters.f_mul_scalar_(factors.decay)?; // θ ← θ·(1 − γλ)
        }
        let _ = self.first.f_lerp_(&self.gradient, 1.0 - factors.beta1)?; // m ← β₁m + (1 − β₁)g
        let square = self.gradient.f_square_out(&self.scratch)?;
        let _ = self.second.f_lerp_(&square, 1.0 - factors.beta2)?; // v ← β₂v + (1 − β₂)g²
        let mut root = self.second.f_sqrt_out(&self.scratch)?;
        let denominator = root.f_mul_scalar_(factors.second_correction)?.f_add_scalar_(factors.epsilon)?; // √v̂ + ε
        let mut change = self.first.f_div_out(&self.scratch, &denominator)?;
        let _ = self.parameters.f_add_(&change.f_mul_scalar_(factors.step)?)?; // θ ← θ − γ·m̂/(√v̂ + ε)
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    /// The formulas of the paper in f64, against several pieces of both kinds over many updates.
    #[test]
    fn updates_follow_the_formulas_in_f64() {
        let train = TrainConfig { weight_decay: 0.3, epsilon: 1e-6, ..TrainConfig::default() };
        let (len, decayed) = (3 * PIECE_VALUES_CPU as usize + 17, PIECE_VALUES_CPU as usize + 5);
        let wave = |i: usize, t: usize| ((i * 37 + t * 101) % 997) as f64 / 500.0 - 1.0;
        let start: Vec<f32> = (0..len).map(|i| wave(i, 0) as f32).collect();
        let parameters = Tensor::from_slice(&start);
        let mut gradient = Tensor::zeros([len as i64], (Kind::Float, Device::Cpu));
        let mut adamw = AdamW::new(&train, &parameters, &gradient, decayed as u64).unwrap();

        let mut theta: Vec<f64> = start.iter().map(|&x| f64::from(x)).collect();
        let (mut m, mut v) = (vec![0.0; len], vec![0.0; len]);
        for t in 1..=20 {
            let (rate, factor) = (0.01 / t as f64, if t % 2 == 0 { 1.0 } else { 0.5 });
            let g: Vec<f32> = (0..len).map(|i| wave(i, t) as f32).collect();
            gradient.copy_(&Tensor::from_slice(&g));
            adamw.update(rate, factor).unwrap();
            for i in 0..len {
                let g = f64::from(g[i]) * factor;
                let decay = if i < decayed { 0.3 } else { 0.0 };
                theta[i] *= 1.0 - rate * decay;
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.95 * v[i] + 0.05 * g * g;
                let (m_hat, v_hat) =
                    (m[i] / (1.0 - 0.9f64.powi(t as i32)), v[i] / (1.0 - 0.95f64.powi(t as i32)));
                theta[i] -= rate * m_hat / (v_hat.sqrt() + 1e-6);
            }
        }
        let result: Vec<f32> = Vec::try_from(&parameters).unwrap();
        for (i, (value, expected)) in result.iter().zip(&theta).enumerate() {
            // Twenty roundings of f32, each within 6e-8 of values below 2.
            assert!((f64::from(*value) - expected).abs() < 2e-6, "{value} for {expected} at {i}");
        }
    }

    #[test]
    fn a_rate_of_zero_changes_only_the_moments() {
        let parameters = Tensor::from_slice(&[1.0f32, -2.0, 0.0]);
        let gradient = Tensor::from_slice(&[0.5f32, 0.0, -1.0]);
        let mut adamw = AdamW::new(&TrainConfig::default(), &parameters, &gradient, 2).unwrap();
        adamw.update(0.0, 1.0).unwrap();
        assert_eq!(Vec::<f32>::try_from(&parameters).unwrap(), [1.0, -2.0, 0.0]);
        let first = Vec::<f32>::try_from(adamw.first()).unwrap();
        assert!(first.iter().zip([0.05f32, 0.0, -0.1]).all(|(m, expected)| (m - expected).abs() < 1e-7));
    }
}
