//! Image classifiers: a multi-layer perceptron, or a small convolutional net before one (LeCun et al. 1998,
//! "Gradient-based learning applied to document recognition", with ReLU).

use super::Cut;
use super::cost::{Block, BlockCost, bytes_of, cast_of};
use super::parameters::{InBlock, Initial, ParameterSpec};
use crate::config::{ImageConfig, ModelConfig, Precision};

/// Rows and columns of a convolution's kernel.
const KERNEL: u64 = 3;
/// Bytes of the position of each maximum of a pooling, a 64-bit index.
const PLACE_BYTES: u64 = 8;
/// Weight of the last layer.
pub(super) const OUTPUT: &str = "output.weight";

/// Structure of a classifier, without its classes, which are the vocabulary of its
/// [`ModelSpec`](super::ModelSpec).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classifier {
    /// Channels of an image, C.
    pub channels: u32,
    /// Rows of an image, H.
    pub height: u32,
    /// Columns of an image, W.
    pub width: u32,
    /// Channels after each convolution; empty for a perceptron.
    pub convolutions: Vec<u32>,
    /// Widths of the hidden linear layers.
    pub hidden: Vec<u32>,
}

/// A layer with parameters: block 1 is the first one, and the last one is the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageLayer {
    /// Prefix of its parameters' names: `hidden.0` for `hidden.0.weight` and `hidden.0.bias`.
    pub name: String,
    /// Operation.
    pub form: LayerForm,
}

/// Operation of a classifier's layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerForm {
    /// `[in, H, W]` to `[out, H / 2, W / 2]`: a 3 × 3 convolution with zero padding, a bias, ReLU, and 2 × 2
    /// max pooling.
    Convolution {
        /// Input channels.
        inputs: u64,
        /// Output channels.
        outputs: u64,
        /// Input rows.
        height: u64,
        /// Input columns.
        width: u64,
    },
    /// `[in]` to `[out]`: a matrix, a bias, and ReLU except in the last layer.
    Linear {
        /// Input values.
        inputs: u64,
        /// Output values.
        outputs: u64,
    },
}

impl Classifier {
    pub(crate) fn new(model: &ModelConfig, image: &ImageConfig) -> Self {
        Self {
            channels: image.channels,
            height: image.height,
            width: image.width,
            convolutions: model.convolutions().to_vec(),
            hidden: model.hidden_widths().to_vec(),
        }
    }

    /// Returns the values of an image, C·H·W.
    #[must_use]
    pub fn values(&self) -> u64 {
        [self.channels, self.height, self.width].map(u64::from).iter().product()
    }

    /// Returns the layers with parameters, from the first to the output.
    #[must_use]
    pub fn layers(&self, classes: u32) -> Vec<ImageLayer> {
        let (mut list, mut inputs) = (Vec::new(), u64::from(self.channels));
        let (mut height, mut width) = (u64::from(self.height), u64::from(self.width));
        for (at, outputs) in self.convolutions.iter().map(|&channels| u64::from(channels)).enumerate() {
            let form = LayerForm::Convolution { inputs, outputs, height, width };
            list.push(ImageLayer { name: format!("convolutions.{at}"), form });
            (inputs, height, width) = (outputs, height / 2, width / 2);
        }
        inputs *= height * width;
        let hidden = self.hidden.iter().enumerate().map(|(at, &width)| (format!("hidden.{at}"), width));
        for (name, outputs) in hidden.chain([("output".to_owned(), classes)]) {
            let outputs = u64::from(outputs);
            list.push(ImageLayer { name, form: LayerForm::Linear { inputs, outputs } });
            inputs = outputs;
        }
        list
    }

    /// Returns all tensors, in layer order. Weights preserve the variance of activations (He et al. 2015,
    /// "Delving deep into rectifiers").
    pub(super) fn parameters(&self, classes: u32) -> Vec<InBlock> {
        let layers = self.layers(classes);
        let last = layers.len();
        let of_layer = |(at, layer): (usize, ImageLayer)| {
            let (shape, outputs) = match layer.form {
                LayerForm::Convolution { inputs, outputs, .. } => {
                    (vec![outputs, inputs, KERNEL, KERNEL], outputs)
                }
                LayerForm::Linear { inputs, outputs } => (vec![outputs, inputs], outputs),
            };
            let inputs = shape[1..].iter().product::<u64>() as f64;
            // ReLU passes half of the variance; the last layer has none.
            let gain: f64 = if at + 1 == last { 1.0 } else { 2.0 };
            let deviation = (gain / inputs).sqrt();
            let tensor = |part: &str, shape, initial| ParameterSpec {
                name: format!("{}.{part}", layer.name),
                shape,
                cut: Cut::Replicated,
                initial,
            };
            let weight = tensor("weight", shape, Initial::Normal { deviation });
            let bias = tensor("bias", vec![outputs], Initial::Zeros);
            [weight, bias].map(|tensor| (at as u32 + 1, tensor))
        };
        layers.into_iter().enumerate().flat_map(of_layer).collect()
    }

    /// Returns the costs of the blocks, for one image.
    pub(super) fn blocks(&self, classes: u32, precision: Precision) -> Vec<BlockCost> {
        let layers = self.layers(classes);
        let last = layers.len();
        let block = |(at, layer): (usize, &ImageLayer)| match at + 1 == last {
            true => cost(Block::Head, layer.form, at == 0, precision),
            false => cost(Block::Layer(at as u32), layer.form, at == 0, precision),
        };
        std::iter::once(self.input_cost()).chain(layers.iter().enumerate().map(block)).collect()
    }

    /// Returns the cost before the first layer: conversion of pixels to numbers.
    fn input_cost(&self) -> BlockCost {
        let values = self.values();
        BlockCost {
            frozen_bytes: 0,
            tied_frozen_bytes: 0,
            fixed_bytes: 0,
            decoded_bytes: 0,
            block: Block::Embedding,
            parameters: 0,
            forward_flops_per_token: 0,
            backward_flops_per_token: 0,
            weight_flops_per_token: 0,
            // Bytes of the image.
            activation_bytes_per_token: values,
            cast_bytes: 0,
            left_bytes_per_token: 0,
            boundary_bytes_per_token: 4 * values,
        }
    }
}

/// Returns the cost of a layer; the first one computes no input gradient, as no parameters precede it.
fn cost(block: Block, form: LayerForm, is_first: bool, precision: Precision) -> BlockCost {
    let bytes = bytes_of(precision);
    // Per image: input, inside of ReLU, output, multiplications; and values of the weight.
    let (inputs, inside, outputs, products, weight) = match form {
        LayerForm::Convolution { inputs, outputs, height, width } => {
            let (pixels, weight) = (height * width, KERNEL * KERNEL * inputs * outputs);
            let pooled = outputs * (height / 2) * (width / 2);
            (inputs * pixels, outputs * pixels, pooled, weight * pixels, weight)
        }
        LayerForm::Linear { inputs, outputs } => {
            (inputs, outputs, outputs, inputs * outputs, inputs * outputs)
        }
    };
    let biases = match form {
        LayerForm::Convolution { outputs, .. } | LayerForm::Linear { outputs, .. } => outputs,
    };
    // Images are f32; a copy in the format of products is kept if that differs.
    let came = if is_first { 4 * inputs + inputs * cast_of(precision) } else { inputs * bytes };
    let kept = match (block, form) {
        // The logarithms of the probabilities in f32, and the class's index.
        (Block::Head, _) => 4 * outputs + 8,
        (_, LayerForm::Convolution { .. }) => inside * bytes + outputs * PLACE_BYTES,
        // The next layer keeps the output of ReLU.
        (_, LayerForm::Linear { .. }) => 0,
    };
    BlockCost {
        frozen_bytes: 0,
        tied_frozen_bytes: 0,
        fixed_bytes: 0,
        decoded_bytes: 0,
        block,
        parameters: weight + biases,
        forward_flops_per_token: 2 * products,
        backward_flops_per_token: if is_first { 2 * products } else { 4 * products },
        weight_flops_per_token: 2 * products,
        activation_bytes_per_token: came + kept,
        cast_bytes: (weight + biases) * cast_of(precision),
        left_bytes_per_token: (inputs + inside) * bytes,
        boundary_bytes_per_token: if block == Block::Head { 0 } else { outputs * bytes },
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::tests::classifier;
    use super::*;
    use crate::config::{ModelKind, SparseBackwardConfig, SparseMode};
    use crate::model::ModelSpec;

    fn names(spec: &ModelSpec) -> Vec<(String, Vec<u64>)> {
        spec.parameters().into_iter().map(|tensor| (tensor.name, tensor.shape)).collect()
    }

    /// Sun et al. 2017: three hidden layers of 500 for images of 28 × 28 in ten classes.
    #[test]
    fn a_perceptron_for_mnist_has_the_parameters_of_its_layers() {
        let spec = classifier(ModelKind::Mlp, [1, 28, 28], None, None, 10);
        let weights = 784 * 500 + 2 * 500 * 500 + 500 * 10;
        assert_eq!(spec.decayed_count(), weights);
        assert_eq!(spec.parameter_count(), weights + 3 * 500 + 10);
        let names = names(&spec);
        assert_eq!(names[0], ("hidden.0.weight".to_owned(), vec![500, 784]));
        assert_eq!(names[3], ("output.weight".to_owned(), vec![10, 500]));
        assert_eq!(names[7], ("output.bias".to_owned(), vec![10]));
        // Each weight multiplies once in a forward pass, and twice in a backward pass except in the first
        // layer.
        assert_eq!(spec.train_flops_per_token(0), 2 * (3 * weights - 784 * 500));
    }

    #[test]
    fn convolutions_halve_the_image_and_multiply_at_each_pixel() {
        let spec = classifier(ModelKind::Cnn, [3, 29, 28], Some(&[8, 16]), Some(&[20]), 7);
        let shapes: Vec<_> = names(&spec).into_iter().map(|(_, shape)| shape).take(4).collect();
        // Matrices first, including weights of convolutions, which decay too: 29 rows become 14 and 7, 28
        // columns 14 and 7.
        assert_eq!(shapes, [vec![8, 3, 3, 3], vec![16, 8, 3, 3], vec![20, 16 * 7 * 7], vec![7, 20]]);
        let blocks = spec.blocks(0, Precision::F32);
        let forward: Vec<u64> = blocks.iter().map(|block| block.forward_flops_per_token).collect();
        assert_eq!(forward, [0, 2 * 27 * 8 * 29 * 28, 2 * 72 * 16 * 14 * 14, 2 * 784 * 20, 2 * 20 * 7]);
        assert_eq!(blocks[1].backward_flops_per_token, forward[1], "nothing is learnt before it");
        assert_eq!(blocks[2].backward_flops_per_token, 2 * forward[2]);
        assert_eq!(blocks.iter().map(|block| block.parameters).sum::<u64>(), spec.parameter_count());
    }

    #[test]
    fn all_blocks_hold_every_parameter_once() {
        for kind in [ModelKind::Mlp, ModelKind::Cnn] {
            let spec = classifier(kind, [3, 32, 32], None, None, 10);
            let blocks = spec.blocks(0, Precision::Bf16);
            assert_eq!(blocks.len() as u32, spec.head() + 1);
            assert_eq!(blocks.iter().map(|block| block.parameters).sum::<u64>(), spec.parameter_count());
            assert!(spec.parameters().is_sorted_by_key(|tensor| !tensor.is_matrix()));
            assert_eq!(spec.borrowed(), None);
            assert_eq!(spec.whole(), spec);
        }
    }

    #[test]
    fn linear_layers_may_go_back_with_some_columns_and_convolutions_with_all() {
        let sparse = |layers: &str| SparseBackwardConfig {
            keep: 0.16,
            mode: SparseMode::Columns,
            layers: vec![layers.to_owned()],
        };
        let kept = |spec: &ModelSpec, layers: &str| -> Vec<_> {
            let products = spec.sparse_products(&sparse(layers)).into_iter();
            products.map(|(product, kept)| (product.weight, product.block, kept.get())).collect()
        };
        let mlp = classifier(ModelKind::Mlp, [1, 28, 28], None, None, 10);
        let hidden = |at: u32| (format!("hidden.{at}.weight"), at + 1, 80);
        assert_eq!(kept(&mlp, "*"), [hidden(0), hidden(1), hidden(2)]);
        assert_eq!(kept(&mlp, "output.weight"), [("output.weight".to_owned(), 4, 2)]);
        assert!(mlp.column_products(&sparse("*")).iter().all(|(_, by_column)| *by_column));
        let cnn = classifier(ModelKind::Cnn, [1, 28, 28], None, Some(&[100]), 10);
        assert_eq!(kept(&cnn, "*"), [("hidden.0.weight".to_owned(), 3, 16)]);
    }
}
