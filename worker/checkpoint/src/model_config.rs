//! `config.json`: for language models in the format of the `transformers` library, for classifiers for people and scripts.

use longhaul_common::config::{ModelConfig, ModelKind};
use longhaul_common::model::{Classifier, ModelSpec};
use serde_json::{Value, json};

use longhaul_common::model::{GPT2_NORM_EPSILON, LLAMA_NORM_EPSILON, LLAMA_ROTARY_BASE};

/// Returns the model's description. Without begin and end tokens: the engine trains on text without any.
pub(super) fn to_json(spec: &ModelSpec) -> Value {
    if let Some(Classifier { channels, height, width, convolutions, hidden }) = &spec.classifier {
        return json!({
            "model_type": spec.kind.name(),
            "channels": convolutions,
            "hidden": hidden,
            "image": { "channels": channels, "height": height, "width": width },
            "num_labels": spec.vocabulary,
            "torch_dtype": "float32",
        });
    }
    match spec.kind {
        ModelKind::Llama => json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": false,
            "attention_dropout": 0.0,
            "bos_token_id": null,
            "eos_token_id": null,
            "hidden_act": "silu",
            "hidden_size": spec.width,
            "intermediate_size": spec.feed_forward_width,
            "max_position_embeddings": spec.context,
            "mlp_bias": false,
            "num_attention_heads": spec.heads,
            "num_hidden_layers": spec.layers,
            "num_key_value_heads": spec.kv_heads,
            "rms_norm_eps": LLAMA_NORM_EPSILON,
            "rope_theta": LLAMA_ROTARY_BASE,
            "tie_word_embeddings": spec.tied_embeddings,
            "torch_dtype": "float32",
            "vocab_size": spec.vocabulary,
        }),
        // Classifiers are described above.
        ModelKind::Gpt2 | ModelKind::Mlp | ModelKind::Cnn => json!({
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "activation_function": "gelu_new",
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "bos_token_id": null,
            "eos_token_id": null,
            "layer_norm_epsilon": GPT2_NORM_EPSILON,
            "n_embd": spec.width,
            "n_head": spec.heads,
            "n_inner": spec.feed_forward_width,
            "n_layer": spec.layers,
            "n_positions": spec.context,
            "tie_word_embeddings": spec.tied_embeddings,
            "torch_dtype": "float32",
            "vocab_size": spec.vocabulary,
        }),
    }
}

/// Reports whether a description is of a classifier of images.
pub(super) fn is_of_images(json: &Value) -> bool {
    let kinds = [ModelKind::Mlp, ModelKind::Cnn].map(ModelKind::name);
    json.get("model_type").and_then(Value::as_str).is_some_and(|kind| kinds.contains(&kind))
}

/// Returns the language model of a description; `None` for other families and unsupported options.
pub(super) fn from_json(json: &Value) -> Option<ModelSpec> {
    let number = |key: &str| json.get(key)?.as_u64()?.try_into().ok();
    let tied_embeddings = Some(json.get("tie_word_embeddings")?.as_bool()?);
    let vocabulary = Some(number("vocab_size")?);
    let config = match json.get("model_type")?.as_str()? {
        "gpt2" => ModelConfig {
            kind: ModelKind::Gpt2,
            layers: number("n_layer")?,
            width: number("n_embd")?,
            heads: number("n_head")?,
            kv_heads: None,
            feed_forward_width: Some(number("n_inner")?),
            context: number("n_positions")?,
            vocabulary,
            tied_embeddings,
            hidden: None,
            channels: None,
        },
        "llama" => ModelConfig {
            kind: ModelKind::Llama,
            layers: number("num_hidden_layers")?,
            width: number("hidden_size")?,
            heads: number("num_attention_heads")?,
            kv_heads: Some(number("num_key_value_heads")?),
            feed_forward_width: Some(number("intermediate_size")?),
            context: number("max_position_embeddings")?,
            vocabulary,
            tied_embeddings,
            hidden: None,
            channels: None,
        },
        _ => return None,
    };
    config.check().ok()?;
    // The tokenizer is compared later.
    ModelSpec::resolve(&config, 0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_common::model::tiny::{tiny_cnn, tiny_gpt2, tiny_llama, tiny_mlp};

    #[test]
    fn a_description_leads_back_to_its_model() {
        for spec in [tiny_gpt2(), tiny_llama()] {
            assert_eq!(from_json(&to_json(&spec)), Some(spec));
        }
        assert_eq!(from_json(&json!({"model_type": "mamba"})), None);
        for (spec, kind) in [(tiny_mlp(), "mlp"), (tiny_cnn(), "cnn")] {
            let json = to_json(&spec);
            assert_eq!((json["model_type"].as_str(), json["num_labels"].as_u64()), (Some(kind), Some(3)));
            assert!(is_of_images(&json) && from_json(&json).is_none(), "{json}");
        }
    }

    #[test]
    fn a_description_of_what_cannot_be_is_none() {
        for (spec, key, value) in [
            (tiny_gpt2(), "n_head", json!(0)),
            (tiny_gpt2(), "n_head", json!(3)),
            (tiny_gpt2(), "n_layer", json!(u32::MAX)),
            (tiny_gpt2(), "n_embd", json!(-32)),
            (tiny_llama(), "num_key_value_heads", json!(3)),
            (tiny_llama(), "vocab_size", json!(u64::MAX)),
        ] {
            let mut description = to_json(&spec);
            description[key] = value;
            assert_eq!(from_json(&description), None, "{key}");
        }
    }
}
