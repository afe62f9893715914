//! A convolutional net (LeCun et al. 1998, "Gradient-based learning applied to document recognition") with ReLU and 2 × 2 max pooling, without dropout.

use longhaul_common::model::Classifier;
use tch::{TchError, Tensor};

use super::mlp::Mlp;
use super::parameters::Parameters;
use super::pixels::normalised;
use super::precision::Products;

/// Convolutions, and a perceptron behind them.
#[derive(Debug)]
pub struct Cnn {
    image: [i64; 3], // C, H, W
    convolutions: Vec<Convolution>,
    perceptron: Mlp,
    products: Products,
}

#[derive(Debug)]
struct Convolution {
    weight: Tensor, // [out, in, 3, 3]
    bias: Tensor,   // [out]
}

impl Cnn {
    pub(super) fn new(classifier: &Classifier, parameters: &Parameters, products: Products) -> Self {
        let convolution = |at| {
            let part = |part: &str| parameters.view(&format!("convolutions.{at}.{part}"));
            Convolution { weight: part("weight"), bias: part("bias") }
        };
        Self {
            image: [classifier.channels, classifier.height, classifier.width].map(i64::from),
            convolutions: (0..classifier.convolutions.len()).map(convolution).collect(),
            perceptron: Mlp::new(classifier, parameters, products.clone()),
            products,
        }
    }

    /// Returns images `[B, C, H, W]` before the first layer, for pixels `[B, C·H·W]`.
    pub(super) fn embed(&self, pixels: &Tensor) -> Result<Tensor, TchError> {
        let [channels, height, width] = self.image;
        normalised(pixels)?.f_view([-1, channels, height, width])
    }

    /// Returns the output of one of the layers, `[B, out, H / 2, W / 2]` or `[B, F]`, for its input; `None`: no such layer.
    pub(super) fn layer(&self, at: usize, x: &Tensor) -> Option<Result<Tensor, TchError>> {
        match self.convolutions.get(at) {
            Some(convolution) => Some(convolution.forward(x, &self.products)),
            None => self.perceptron.layer(at - self.convolutions.len(), x),
        }
    }

    /// Returns the output of the last hidden layer, for pixels `[B, C·H·W]`.
    pub(super) fn hidden(&self, pixels: &Tensor) -> Result<Tensor, TchError> {
        let mut x = self.embed(pixels)?;
        for at in 0.. {
            match self.layer(at, &x) {
                Some(behind) => x = behind?,
                None => break,
            }
        }
        Ok(x)
    }

    /// Returns logits `[B, K]`, for the output of the last hidden layer.
    pub(super) fn logits(&self, x: &Tensor) -> Result<Tensor, TchError> {
        self.perceptron.logits(x)
    }
}

impl Convolution {
    /// For x `[B, in, H, W]`.
    fn forward(&self, x: &Tensor, products: &Products) -> Result<Tensor, TchError> {
        let (x, weight, bias) = (products.cast(x)?, products.cast(&self.weight)?, products.cast(&self.bias)?);
        let x = x.f_conv2d(&weight, Some(&bias), [1, 1], [1, 1], [1, 1], 1)?.f_relu()?; // [B, out, H, W]
        x.f_max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false) // [B, out, H / 2, W / 2]
    }
}
