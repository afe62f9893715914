//! Adafactor (Shazeer & Stern 2018, "Adafactor: adaptive learning rates with sublinear memory cost", arXiv 1804.04235), with the run's learning rate: without
//! relative step sizes and without scaling by the parameters' root mean square.

use longhaul_common::config::{AdafactorConfig, TrainConfig};
use longhaul_common::model::ParameterSpec;
use tch::{Device, Kind, TchError, Tensor};

use super::{Memory, Rule, decays, descend, divided, one_each, zeros};

/// With β₂ = 1 − t^−c: R and C are running means of the rows and columns of g² + ε; u = g / √(R·C / mean(R)), over max(1, RMS(u) / d). Vectors have a whole
/// second moment.
#[derive(Debug)]
pub(super) struct Adafactor {
    config: AdafactorConfig,
    decays: Vec<f64>,
    /// Running means of the updates, with β₁.
    first: Vec<Tensor>,
    second: Vec<Second>,
    updates: u64,
}

/// A tensor's second moment.
#[derive(Debug)]
enum Second {
    /// Means over the last dimension [.., rows], and over the one before [.., columns].
    Factored {
        rows: Tensor,
        columns: Tensor,
    },
    Whole(Tensor),
}

impl Second {
    fn new(shape: &[u64], device: Device) -> Result<Self, TchError> {
        let shape: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        let zeros = |shape: &[i64]| Tensor::f_zeros(shape, (Kind::Float, device));
        let [outer @ .., rows, columns] = shape.as_slice() else { return Ok(Self::Whole(zeros(&shape)?)) };
        // Of a single row or column, the factors are all of it.
        if *rows.min(columns) < 2 {
            return Ok(Self::Whole(zeros(&shape)?));
        }
        Ok(Self::Factored {
            rows: zeros(&[outer, &[*rows]].concat())?,
            columns: zeros(&[outer, &[*columns]].concat())?,
        })
    }

    /// Takes in squared gradients, and returns their inverse root.
    fn inverse_root(&mut self, squares: &Tensor, beta2: f64) -> Result<Tensor, TchError> {
        let take = |mean: &mut Tensor, new: Tensor| {
            mean.f_mul_scalar_(beta2)?.f_add_(&new.f_mul_scalar(1.0 - beta2)?).map(drop)
        };
        match self {
            Self::Whole(mean) => {
                take(mean, squares.shallow_clone())?;
                mean.f_rsqrt()
            }
            Self::Factored { rows, columns } => {
                take(rows, squares.f_mean_dim([-1].as_slice(), false, Kind::Float)?)?;
                take(columns, squares.f_mean_dim([-2].as_slice(), false, Kind::Float)?)?;
                let mean = rows.f_mean_dim([-1].as_slice(), true, Kind::Float)?; // [.., 1]
                let of_rows = rows.f_div(&mean)?.f_rsqrt()?.f_unsqueeze(-1)?; // [.., rows, 1]
                of_rows.f_mul(&columns.f_rsqrt()?.f_unsqueeze(-2)?) // [.., rows, columns]
            }
        }
    }

    fn tensors(&self) -> Vec<Tensor> {
        match self {
            Self::Factored { rows, columns } => vec![rows.shallow_clone(), columns.shallow_clone()],
            Self::Whole(mean) => vec![mean.shallow_clone()],
        }
    }
}

impl Adafactor {
    pub fn new(train: &TrainConfig, tensors: &[ParameterSpec], device: Device) -> Result<Self, TchError> {
        let config = train.adafactor.clone().unwrap_or_default();
        let first = if config.beta1 > 0.0 { zeros(tensors, device)? } else { Vec::new() };
        let second = tensors.iter().map(|tensor| Second::new(&tensor.shape, device));
        let second = second.collect::<Result<_, _>>()?;
        Ok(Self { config, decays: decays(train, tensors), first, second, updates: 0 })
    }
}

impl Rule for Adafactor {
    fn update(
        &mut self,
        parameters: &[Tensor],
        gradients: &[Tensor],
        learning_rate: f64,
        divisor: Option<&Tensor>,
    ) -> Result<(), TchError> {
        self.updates += 1;
        let AdafactorConfig { decay_rate, clip_threshold, epsilon, beta1 } = self.config;
        let beta2 = 1.0 - (self.updates as f64).powf(-decay_rate);
        for (at, second) in self.second.iter_mut().enumerate() {
            let gradient = divided(&gradients[at], divisor)?;
            let squares = gradient.f_square()?.f_add_scalar_(epsilon)?;
            let mut update = second.inverse_root(&squares, beta2)?.f_mul_(&gradient)?;
            let rms = update.f_norm()?.f_div_scalar((update.numel() as f64).sqrt())?; // []
            let mut update = update.f_div_(&rms.f_div_scalar(clip_threshold)?.f_clamp_min(1.0)?)?;
            let Some(first) = self.first.get_mut(at) else {
                descend(&parameters[at], &update, learning_rate, self.decays[at])?;
                continue;
            };
            // As in transformers, the mean is of updates with their learning rates.
            let scaled = update.f_mul_scalar_(learning_rate * (1.0 - beta1))?;
            let _ = first.f_mul_scalar_(beta1)?.f_add_(&scaled)?;
            let mut parameter = parameters[at].shallow_clone();
            let _ = parameter.f_mul_scalar_(1.0 - learning_rate * self.decays[at])?.f_sub_(first)?;
        }
        Ok(())
    }

    fn memory(&self) -> Memory {
        Memory { first: one_each(&self.first), second: self.second.iter().map(Second::tensors).collect() }
    }

    fn updates(&self) -> u64 {
        self.updates
    }

    fn loaded(&mut self, updates: u64) {
        self.updates = updates;
    }
}
