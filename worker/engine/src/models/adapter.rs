//! Adapters beside frozen matrices.

use longhaul_common::model::{Lora, adapter_names, magnitude_name};
use tch::{Kind, TchError, Tensor};

use super::parameters::Parameters;
use super::precision::Products;

/// A low-rank matrix beside a frozen one: scale·B·A (Hu et al. 2021, "LoRA", arXiv 2106.09685).
#[derive(Debug)]
pub(super) struct Adapter {
    down: Tensor, // A: [R, in]
    up: Tensor,   // B: [out, R]
    scale: f64,
    /// The trained length of each row of W + scale·B·A, which gives its direction alone (Liu et al. 2024, "DoRA", arXiv 2402.09353): [out].
    magnitude: Option<Tensor>,
    /// Number of its dropout.
    number: u64,
}

impl Adapter {
    /// Returns the adapter of a weight, if it has one.
    pub(super) fn of(parameters: &Parameters, name: &str, lora: &Lora) -> Option<Self> {
        let [down, up] = adapter_names(name).map(|name| parameters.trained(&name));
        let magnitude = parameters.trained(&magnitude_name(name));
        // Equal in each part of a model.
        let number = lora.weights.iter().position(|weight| weight == name)? as u64;
        Some(Self { down: down?, up: up?, scale: lora.scale(), magnitude, number })
    }

    /// Whether it changes the product of the weight itself.
    pub(super) fn rescales(&self) -> bool {
        self.magnitude.is_some()
    }

    /// Returns the product with the adapter's, for x [.., in] in the format of products and the weight's product [.., out] without a bias if
    /// [`Self::rescales`]. `weight`: its values, [out, in] in f32.
    pub(super) fn added_to(
        &self,
        product: &Tensor,
        x: &Tensor,
        products: &Products,
        weight: impl Fn() -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let x = products.dropped(x, self.number)?; // [.., in]
        let inner = x.f_linear::<Tensor>(&products.cast(&self.down)?, None)?; // [.., R]
        let outer = inner.f_linear::<Tensor>(&products.cast(&self.up)?, None)?; // [.., out]
        let sum = product.f_add(&outer.f_mul_scalar(self.scale)?)?; // [.., out]
        match &self.magnitude {
            Some(magnitude) => {
                // The paper (4.3) treats the lengths of the sum as constants.
                let lengths = tch::no_grad(|| self.lengths(&weight()?))?;
                sum.f_mul(&products.cast(&magnitude.f_div(&lengths)?)?)
            }
            None => Ok(sum),
        }
    }

    /// Returns the lengths of the rows of W + s·B·A, [out], without forming it: ‖w‖² + 2s·w·(bA) + s²‖bA‖².
    fn lengths(&self, weight: &Tensor) -> Result<Tensor, TchError> {
        let across = weight.f_matmul(&self.down.f_tr()?)?.f_mul(&self.up)?; // [out, R]
        let inner = self.up.f_matmul(&self.down.f_matmul(&self.down.f_tr()?)?)?.f_mul(&self.up)?; // [out, R]
        let sum = |x: Tensor| x.f_sum_dim_intlist(&[1_i64][..], false, Kind::Float);
        let squares = squares_of(weight)?.f_add(&sum(across)?.f_mul_scalar(2.0 * self.scale)?)?;
        squares.f_add(&sum(inner)?.f_mul_scalar(self.scale * self.scale)?)?.f_clamp_min(TINY)?.f_sqrt()
    }
}

/// Least squared length of a row: one of zeros has no direction, and stays zeros.
const TINY: f64 = 1e-30;

/// Returns the squared lengths of a matrix's rows.
pub(super) fn squares_of(weight: &Tensor) -> Result<Tensor, TchError> {
    weight.f_square()?.f_sum_dim_intlist(&[1_i64][..], false, Kind::Float)
}
