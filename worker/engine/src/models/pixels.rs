//! Input and output of classifiers of images: pixels as numbers, classes as indices, and layers between them.

use longhaul_data::CLASS_BYTES;
use tch::{Kind, TchError, Tensor};

use super::parameters::Parameters;
use super::precision::{Matrix, Products};

/// Black and white.
const BLACK: f64 = -1.0;
const WHITE: f64 = 1.0;
/// Byte of white.
const WHITE_BYTE: f64 = 255.0;

/// Returns pixels `[B, C·H·W]` (uint8) as numbers from −1 to 1 (f32): scaled to `[0, 1]`, less a mean of ½, over a deviation of ½, for all channels.
pub(super) fn normalised(pixels: &Tensor) -> Result<Tensor, TchError> {
    let scale = (WHITE - BLACK) / WHITE_BYTE;
    pixels.f_to_kind(Kind::Float)?.f_mul_scalar(scale)?.f_add_scalar(BLACK) // [B, C·H·W]
}

/// Returns the pixels `[B, C·H·W]` of samples `[B, C·H·W + 2]`.
pub(super) fn pixels_of(samples: &Tensor) -> Result<Tensor, TchError> {
    samples.f_narrow(1, 0, samples.size()[1] - CLASS_BYTES as i64)
}

/// Returns the classes `[B]` (int64) of samples `[B, C·H·W + 2]`, from the last two bytes, little-endian.
pub(super) fn classes_of(samples: &Tensor) -> Result<Tensor, TchError> {
    const BYTE: i64 = 256;
    let byte = |at: i64| samples.f_select(1, at)?.f_to_kind(Kind::Int64); // [B]
    byte(-1)?.f_mul_scalar(BYTE)?.f_add(&byte(-2)?)
}

#[derive(Debug)]
pub(super) struct Linear {
    weight: Matrix, // [out, in]
    bias: Tensor,   // [out]
}

impl Linear {
    pub fn new(parameters: &Parameters, name: &str, products: &Products) -> Self {
        let weight = products.matrix(parameters, &format!("{name}.weight"));
        Self { weight, bias: parameters.view(&format!("{name}.bias")) }
    }

    /// Returns x·Wᵀ + b for x `[B, in]`.
    pub fn forward(&self, x: &Tensor, products: &Products) -> Result<Tensor, TchError> {
        products.affine(x, &self.weight, &self.bias) // [B, out]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_pixels_and_a_class() {
        let samples = Tensor::from_slice(&[0_u8, 255, 51, 7, 0, 9, 9, 9, 1, 2]).view([2, 5]);
        let pixels = normalised(&pixels_of(&samples).unwrap()).unwrap();
        let expected = Tensor::from_slice(&[-1.0_f32, 1.0, -0.6]);
        assert!(pixels.select(0, 0).allclose(&expected, 1e-6, 1e-6, false), "{pixels:?}");
        assert_eq!(Vec::<i64>::try_from(classes_of(&samples).unwrap()).unwrap(), [7, 1 + 2 * 256]);
    }
}
