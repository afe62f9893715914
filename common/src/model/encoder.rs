//! The description of an encoder, and its tensors: `worker/engine/docs/encoders.md`.

use super::parameters::{InBlock, plain_matrix as matrix, vector};
use super::{Initial, ModelSpec};
use crate::config::{EncoderActivation, EncoderHead, ModelConfig, ModelKind};

/// Width of ELECTRA's embeddings, where nothing else is configured.
const ELECTRA_EMBEDDING: u32 = 128;

/// An encoder's choices beyond its sizes, with all defaults resolved. Numbers are finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoder {
    /// Added to the variance in layer norms.
    pub norm_epsilon: f64,
    /// Activation of the feed-forward part.
    pub activation: EncoderActivation,
    /// Head.
    pub head: Head,
    /// Activation of the head for masked tokens.
    pub head_activation: EncoderActivation,
    /// Token types, of which the first is used.
    pub types: u32,
    /// Position of a sequence's first token.
    pub first_position: u32,
    /// Width of the embeddings.
    pub embedding_width: u32,
    /// Names of the tensors.
    pub names: EncoderNames,
}

/// No number is NaN.
impl Eq for Encoder {}

/// Head of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Logits of each token's place over the vocabulary.
    Masked,
    /// Logits of each sequence over so many classes.
    Classes(u32),
    /// A logit of each token: it was replaced.
    Replaced,
    /// There is none.
    None,
}

/// Names of the modules that families call differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderNames {
    /// The encoder.
    pub base: &'static str,
    /// The head's product before the output projection.
    pub head: &'static str,
    /// Its norm.
    pub head_norm: &'static str,
    /// The bias of the output projection.
    pub output_bias: &'static str,
}

impl EncoderNames {
    fn of(kind: ModelKind) -> Option<Self> {
        let [base, head, head_norm, output_bias] = match kind {
            ModelKind::Bert => [
                "bert",
                "cls.predictions.transform.dense",
                "cls.predictions.transform.LayerNorm",
                "cls.predictions.bias",
            ],
            ModelKind::Roberta | ModelKind::XlmRoberta => {
                ["roberta", "lm_head.dense", "lm_head.layer_norm", "lm_head.bias"]
            }
            ModelKind::Electra => [
                "electra",
                "generator_predictions.dense",
                "generator_predictions.LayerNorm",
                "generator_lm_head.bias",
            ],
            _ => return None,
        };
        Some(Self { base, head, head_norm, output_bias })
    }
}

impl Encoder {
    /// Returns the encoder of a checked configuration; `None`: it is of another family.
    #[must_use]
    pub fn of(model: &ModelConfig) -> Option<Self> {
        let names = EncoderNames::of(model.kind)?;
        let given = model.encoder.clone().unwrap_or_default();
        let activation = given.hidden_act.unwrap_or_default();
        let is_bert = model.kind == ModelKind::Bert;
        let has_padding = matches!(model.kind, ModelKind::Roberta | ModelKind::XlmRoberta);
        let electra = || given.embedding_size.unwrap_or(ELECTRA_EMBEDDING);
        Some(Self {
            norm_epsilon: given.layer_norm_eps.unwrap_or(1e-12),
            activation,
            head: match given.head.unwrap_or_default() {
                EncoderHead::Masked => Head::Masked,
                EncoderHead::Classes => Head::Classes(given.classes.unwrap_or(2)),
                EncoderHead::Replaced => Head::Replaced,
                EncoderHead::None => Head::None,
            },
            head_activation: if is_bert { activation } else { EncoderActivation::Gelu },
            types: given.type_vocab_size.unwrap_or(2),
            first_position: if has_padding { given.pad_token_id.unwrap_or(1) + 1 } else { 0 },
            embedding_width: if model.kind == ModelKind::Electra { electra() } else { model.width },
            names,
        })
    }

    /// Whether a product follows the embeddings, which have another width than the layers.
    #[must_use]
    pub fn projects(&self, width: u32) -> bool {
        self.embedding_width != width
    }

    /// Returns the tensors of a model, from the embedding to the head. Linear layers are [out, in].
    pub(super) fn parameters(&self, spec: &ModelSpec) -> Vec<InBlock> {
        let [v, d, e, f] =
            [spec.vocabulary, spec.width, self.embedding_width, spec.feed_forward_width].map(u64::from);
        let name = |part: &str| format!("{}.{part}", self.names.base);
        let embedding = |part: &str| name(&format!("embeddings.{part}"));
        let positions = u64::from(spec.context) + u64::from(self.first_position);
        let mut list = vec![
            (0, matrix(embedding("word_embeddings.weight"), v, e)),
            (0, matrix(embedding("position_embeddings.weight"), positions, e)),
            (0, matrix(embedding("token_type_embeddings.weight"), self.types.into(), e)),
        ];
        list.extend(norm(&embedding("LayerNorm"), e).map(|tensor| (0, tensor)));
        if self.projects(spec.width) {
            list.extend(affine(&name("embeddings_project"), d, e).map(|tensor| (0, tensor)));
        }
        for layer in 0..spec.layers {
            let name = |part: &str| name(&format!("encoder.layer.{layer}.{part}"));
            let tensors = [
                affine(&name("attention.self.query"), d, d),
                affine(&name("attention.self.key"), d, d),
                affine(&name("attention.self.value"), d, d),
                affine(&name("attention.output.dense"), d, d),
                norm(&name("attention.output.LayerNorm"), d),
                affine(&name("intermediate.dense"), f, d),
                affine(&name("output.dense"), d, f),
                norm(&name("output.LayerNorm"), d),
            ];
            list.extend(tensors.into_iter().flatten().map(|tensor| (layer + 1, tensor)));
        }
        list.extend(self.of_head(self.head, [v, d, e]).into_iter().map(|tensor| (spec.head(), tensor)));
        list
    }

    /// Returns the tensors of a head, for these sizes V, D and E.
    fn of_head(&self, head: Head, [v, d, e]: [u64; 3]) -> Vec<super::ParameterSpec> {
        match head {
            Head::Masked => {
                let own = [affine(self.names.head, e, d), norm(self.names.head_norm, e)];
                let bias = vector(self.names.output_bias, v, Initial::Zeros);
                own.into_iter().flatten().chain([bias]).collect()
            }
            Head::Classes(classes) => {
                let [inner, outer] = self.class_names();
                [affine(&inner, d, d), affine(&outer, classes.into(), d)].concat()
            }
            Head::Replaced => {
                let [inner, outer] = REPLACED;
                [affine(inner, d, d), affine(outer, 1, d)].concat()
            }
            Head::None => Vec::new(),
        }
    }

    /// Returns the names of the products of a head for classes, inner and outer.
    #[must_use]
    pub fn class_names(&self) -> [String; 2] {
        match self.names.base {
            // The pooler of pretraining on next sentences.
            "bert" => ["bert.pooler.dense".to_owned(), "classifier".to_owned()],
            _ => ["classifier.dense", "classifier.out_proj"].map(str::to_owned),
        }
    }

    /// Returns the values of the largest heads of such a model that files may have beside those of this one.
    #[must_use]
    pub fn other_heads(&self, spec: &ModelSpec) -> u64 {
        let sizes = [spec.vocabulary, spec.width, self.embedding_width].map(u64::from);
        let count = |head| self.of_head(head, sizes).iter().map(super::ParameterSpec::count).sum::<u64>();
        // Pretraining on next sentences has a pooler and two classes.
        [Head::Masked, Head::Replaced, Head::Classes(2)].map(count).iter().sum()
    }

    /// Returns the names of the tensors of the head for masked tokens.
    #[must_use]
    pub fn masked_tensors(&self) -> Vec<String> {
        self.of_head(Head::Masked, [1; 3]).into_iter().map(|tensor| tensor.name).collect()
    }
}

/// Names of the products of ELECTRA's discriminator, inner and outer.
pub const REPLACED: [&str; 2] =
    ["discriminator_predictions.dense", "discriminator_predictions.dense_prediction"];

fn affine(name: &str, out: u64, within: u64) -> [super::ParameterSpec; 2] {
    let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
    [matrix(weight, out, within), vector(bias, out, Initial::Zeros)]
}

fn norm(name: &str, width: u64) -> [super::ParameterSpec; 2] {
    let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
    [vector(weight, width, Initial::Ones), vector(bias, width, Initial::Zeros)]
}

/// Returns the name of the token embedding of a family; `None`: it is no encoder.
pub(super) fn token_embedding(kind: ModelKind) -> Option<&'static str> {
    match kind {
        ModelKind::Bert => Some("bert.embeddings.word_embeddings.weight"),
        ModelKind::Roberta | ModelKind::XlmRoberta => Some("roberta.embeddings.word_embeddings.weight"),
        ModelKind::Electra => Some("electra.embeddings.word_embeddings.weight"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::spec::tests::config;

    /// Devlin et al. 2018 count 110 million with the pooler; transformers' `BertForMaskedLM` has 109,514,298. RoBERTa's has 124,697,433.
    #[test]
    fn base_models_have_the_numbers_of_parameters_of_transformers() {
        let bert = ModelSpec::resolve(&config(ModelKind::Bert, 12, 768, 12, 512), 30_522).unwrap();
        assert_eq!(bert.parameter_count(), 109_514_298);
        let types = Some(crate::config::EncoderConfig { type_vocab_size: Some(1), ..Default::default() });
        let roberta = ModelConfig { encoder: types, ..config(ModelKind::Roberta, 12, 768, 12, 512) };
        let roberta = ModelSpec::resolve(&roberta, 50_265).unwrap();
        assert_eq!(roberta.parameter_count(), 124_697_433);
        for spec in [bert, roberta] {
            let list = spec.parameters();
            assert_eq!(list[0].name, spec.output_projection());
            let blocks = spec.blocks(1, crate::config::Precision::F32);
            assert_eq!(blocks.iter().map(|block| block.parameters).sum::<u64>(), spec.parameter_count());
            let products = spec.products();
            let flops = |block: u32| products.iter().filter(move |product| product.block == block);
            let flops = |block: u32| flops(block).map(|of| 2 * of.inputs * of.outputs).sum::<u64>();
            assert_eq!(flops(1), blocks[1].forward_flops_per_token - 4 * 768);
            assert_eq!(flops(13), blocks[13].forward_flops_per_token);
        }
    }
}
