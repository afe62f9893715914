//! Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; Liu et al. 2025, arXiv 2502.16982; as inner optimiser: arXiv
//! 2505.23725).

use longhaul_common::config::{MuonConfig, MuonScale, Precision, TrainConfig};
use longhaul_common::model::{ModelSpec, ParameterSpec, Product};
use tch::{Device, Kind, TchError, Tensor};

use super::momentum::descended;
use super::{AdamW, Memory, Rule, descend, divided, zeros};

/// Coefficients of the quintic iteration, which brings singular values near 1 (about 0.7 to 1.2) in five steps.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
/// Least divisor of a momentum by its norm.
const NORM_FLOOR: f64 = 1e-7;
/// Columns over rows from which products of Gram matrices are fewer.
const GRAM_RATIO: i64 = 2;
/// Most iterations before A is computed from X again, in f32 and in bf16. In bf16 five iterations as three and two are as close to f64 as without Gram
/// matrices or closer (`docs/optimisers.md`).
const GRAM_STEPS: u32 = 5;
const GRAM_STEPS_BF16: u32 = 3;
/// Root mean square of AdamW's usual updates (arXiv 2502.16982).
const ADAMW_RMS: f64 = 0.2;

/// M ← μ·M + G; O is G + μ·M (with Nesterov momentum) or M, made nearly orthogonal; W ← (1 − ηλ)·W − η·s·O. Other tensors are AdamW's.
#[derive(Debug)]
pub(super) struct Muon {
    config: MuonConfig,
    /// Learning rate of matrices over that of the other tensors.
    rate_ratio: f64,
    weight_decay: f64,
    /// Number format of the iteration's products.
    kind: Kind,
    matrices: Vec<Matrix>,
    /// Indices of AdamW's tensors among the parameters.
    others: Vec<usize>,
    adamw: AdamW,
}

#[derive(Debug)]
struct Matrix {
    /// Index among the parameters.
    at: usize,
    momentum: Tensor,
    /// s
    scale: f64,
}

impl Muon {
    pub fn new(train: &TrainConfig, spec: &ModelSpec, device: Device) -> Result<Self, TchError> {
        let config = train.muon.clone().unwrap_or_default();
        let (tensors, products) = (spec.parameters(), spec.hidden_products());
        let product = |tensor: &ParameterSpec| products.iter().find(|product| product.weight == tensor.name);
        let (mut matrices, mut others, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (tensor, momentum)) in tensors.iter().zip(zeros_for(&tensors, product, device)?).enumerate()
        {
            match product(tensor).zip(momentum) {
                Some((product, momentum)) => {
                    matrices.push(Matrix { at, momentum, scale: scale_of(config.scale, product) });
                }
                None => {
                    others.push(at);
                    rest.push(tensor.clone());
                }
            }
        }
        let adamw = AdamW::new(train, &rest, device)?;
        let rate_ratio = config.learning_rate(train) / train.learning_rate;
        let default = if multiplies_bf16(device) { Precision::Bf16 } else { train.precision };
        let kind = match config.precision.unwrap_or(default) {
            Precision::Bf16 => Kind::BFloat16,
            Precision::F32 => Kind::Float,
        };
        Ok(Self { config, rate_ratio, weight_decay: train.weight_decay, kind, matrices, others, adamw })
    }

    fn of_others(&self, tensors: &[Tensor]) -> Vec<Tensor> {
        self.others.iter().map(|&at| tensors[at].shallow_clone()).collect()
    }
}

/// Whether a device has instructions for products in bf16.
fn multiplies_bf16(device: Device) -> bool {
    if device != Device::Cpu {
        return true;
    }
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx512bf16");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("bf16");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

/// Returns the momenta of matrices that are weights of products; `None`: AdamW's.
fn zeros_for<'a>(
    tensors: &[ParameterSpec],
    product: impl Fn(&ParameterSpec) -> Option<&'a Product>,
    device: Device,
) -> Result<Vec<Option<Tensor>>, TchError> {
    let momentum = |tensor: &ParameterSpec| {
        let own = product(tensor).map(|_| zeros(std::slice::from_ref(tensor), device)).transpose()?;
        Ok(own.and_then(|mut own| own.pop()))
    };
    tensors.iter().map(momentum).collect()
}

fn scale_of(scale: MuonScale, product: &Product) -> f64 {
    let (inputs, outputs) = (product.inputs as f64, product.outputs as f64);
    match scale {
        MuonScale::MatchRmsAdamw => ADAMW_RMS * inputs.max(outputs).sqrt(),
        MuonScale::Original => (outputs / inputs).max(1.0).sqrt(),
    }
}

/// Returns U·Vᵀ of a matrix U·S·Vᵀ, nearly: its norm divided out, X ← a·X + (b·A + c·A²)·X with A = X·Xᵀ, so many times. The result of a transposed matrix
/// is transposed.
pub(super) fn orthogonal(matrix: &Tensor, steps: u32, kind: Kind) -> Result<Tensor, TchError> {
    let [a, b, c] = COEFFICIENTS;
    let [rows, columns] = *matrix.size().as_slice() else {
        return Err(TchError::Shape(format!("Muon has no update of a tensor {:?}", matrix.size())));
    };
    let scaled = matrix.f_div(&matrix.f_norm()?.f_clamp_min(NORM_FLOOR)?)?.f_to_kind(kind)?;
    // The smaller of X·Xᵀ and Xᵀ·X.
    let is_tall = rows > columns;
    let mut x = if is_tall { scaled.f_transpose(0, 1)?.f_contiguous()? } else { scaled };
    if rows.max(columns) >= GRAM_RATIO * rows.min(columns) {
        let at_once = if kind == Kind::BFloat16 { GRAM_STEPS_BF16 } else { GRAM_STEPS };
        for from in (0..steps).step_by(at_once as usize) {
            x = by_gram_matrices(&x, at_once.min(steps - from))?;
        }
    } else {
        for _ in 0..steps {
            let gram = x.f_matmul(&x.f_transpose(0, 1)?)?; // [n, n]
            let polynomial = gram.f_matmul(&gram)?.f_mul_scalar_(c)?.f_add_(&gram.f_mul_scalar(b)?)?;
            x = polynomial.f_matmul(&x)?.f_add_(&x.f_mul_scalar(a)?)?;
        }
    }
    let x = if is_tall { x.f_transpose(0, 1)? } else { x };
    x.f_to_kind(Kind::Float)
}

/// Returns the same for a wide matrix [n, m], with two products of n² · m in place of two an iteration. X after k iterations is Pₖ·…·P₁·X with
/// P = a·I + b·A + c·A², and A becomes P·A·P. Rounding makes tiny eigenvalues of A negative, and each iteration multiplies them by a²: in f32 they cost a
/// relative error below 1e-3 up to [`GRAM_STEPS`].
fn by_gram_matrices(x: &Tensor, steps: u32) -> Result<Tensor, TchError> {
    let [a, b, c] = COEFFICIENTS;
    let mut gram = x.f_matmul(&x.f_transpose(0, 1)?)?; // [n, n]
    let mut all: Option<Tensor> = None;
    for step in 1..=steps {
        let polynomial = gram.f_matmul(&gram)?.f_mul_scalar_(c)?.f_add_(&gram.f_mul_scalar(b)?)?;
        let _ = polynomial.f_diagonal(0, 0, 1)?.f_add_scalar_(a)?;
        if step < steps {
            gram = polynomial.f_matmul(&gram.f_matmul(&polynomial)?)?;
        }
        all = Some(match all {
            Some(before) => polynomial.f_matmul(&before)?,
            None => polynomial,
        });
    }
    all.map_or_else(|| Ok(x.shallow_clone()), |all| all.f_matmul(x))
}

impl Rule for Muon {
    fn update(
        &mut self,
        parameters: &[Tensor],
        gradients: &[Tensor],
        learning_rate: f64,
        divisor: Option<&Tensor>,
    ) -> Result<(), TchError> {
        let MuonConfig { momentum: beta, nesterov, steps, .. } = self.config;
        let rate = learning_rate * self.rate_ratio;
        for Matrix { at, momentum, scale } in &mut self.matrices {
            let gradient = divided(&gradients[*at], divisor)?;
            let direction = descended(momentum, &gradient, beta, nesterov)?;
            let direction = orthogonal(&direction, steps, self.kind)?.f_mul_scalar_(*scale)?;
            descend(&parameters[*at], &direction, rate, self.weight_decay)?;
        }
        let (parameters, gradients) = (self.of_others(parameters), self.of_others(gradients));
        self.adamw.update(&parameters, &gradients, learning_rate, divisor)
    }

    fn memory(&self) -> Memory {
        let count = self.matrices.len() + self.others.len();
        let mut memory = Memory::default();
        memory.first.resize_with(count, Vec::new);
        memory.second.resize_with(count, Vec::new);
        for Matrix { at, momentum, .. } in &self.matrices {
            memory.first[*at].push(momentum.shallow_clone());
        }
        let [first, second] = self.adamw.moments();
        for (&at, (first, second)) in self.others.iter().zip(first.iter().zip(second)) {
            memory.first[at].push(first.shallow_clone());
            memory.second[at].push(second.shallow_clone());
        }
        memory
    }

    fn updates(&self) -> u64 {
        self.adamw.updates()
    }

    fn loaded(&mut self, updates: u64) {
        self.adamw.loaded(updates);
    }
}
