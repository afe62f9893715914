//! `config.json`: for language models in the format of the `transformers` library, for classifiers for people and scripts.

use longhaul_common::checks::{DropoutPlace, NamedDropout};
use longhaul_common::config::{BottleneckConfig, ModelConfig, ModelKind};
use longhaul_common::model::{Classifier, ModelSpec, Stream};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::decoder_config::{self, Keys, Read, UnsupportedKey};
use super::encoder_config;
use super::{Companions, MODEL_CONFIG};
use longhaul_common::model::GPT2_NORM_EPSILON;

/// `model_type` of GPT-2 with a narrow residual stream, which transformers does not have.
const NARROW_GPT2: &str = "longhaul_gpt2";

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
    match (&spec.decoder, &spec.encoder) {
        (Some(decoder), _) => decoder_config::write(spec, decoder),
        (None, Some(encoder)) => encoder_config::write(spec, encoder),
        // Classifiers are described above.
        (None, None) => of_gpt2(spec),
    }
}

fn of_gpt2(spec: &ModelSpec) -> Value {
    let mut json = json!({
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
    });
    let (key, value) = match &spec.stream {
        Stream::Full => return json,
        Stream::Subspace(width) => ("subspace", json!(width)),
        Stream::Bottlenecks(of) => ("bottleneck", json!({ "width": of.width, "behind": of.behind })),
    };
    (json["architectures"], json["model_type"], json[key]) = (json!([]), NARROW_GPT2.into(), value);
    json
}

/// Refuses a model that transformers does not have.
///
/// # Errors
/// Names the key of `[model]`.
pub(super) fn check_is_of_transformers(spec: &ModelSpec) -> anyhow::Result<()> {
    let key = match spec.stream {
        Stream::Full => return Ok(()),
        Stream::Subspace(_) => "model.subspace",
        Stream::Bottlenecks(_) => "model.bottleneck",
    };
    anyhow::bail!(
        "transformers has no GPT-2 with {key}, so this model cannot be exported: `worker sample` and `worker evaluate` read the checkpoint itself"
    )
}

/// Reports whether a description is of a classifier of images.
pub(super) fn is_of_images(json: &Value) -> bool {
    let kinds = [ModelKind::Mlp, ModelKind::Cnn].map(ModelKind::name);
    json.get("model_type").and_then(Value::as_str).is_some_and(|kind| kinds.contains(&kind))
}

/// Returns the language model of a description.
///
/// # Errors
/// Names the first key that is missing or cannot be honoured.
pub(super) fn from_json(json: &Value) -> Result<ModelSpec, UnsupportedKey> {
    let config = read(json)?;
    ModelSpec::resolve(&config, 0)
        .map_err(|error| UnsupportedKey::new("model_type", &json["model_type"], error.to_string()))
}

/// Returns the original description of a model, if it leads back to it.
pub(super) fn original(spec: &ModelSpec, companions: &Companions) -> Option<Value> {
    let original = companions.get(MODEL_CONFIG).and_then(|text| serde_json::from_slice::<Value>(text).ok());
    original.filter(|json| from_json(json).as_ref() == Ok(&spec.whole().untuned()))
}

/// Returns the description of a checkpoint's model: the original one, if it started from one, with the type of the written values.
pub(super) fn carried(spec: &ModelSpec, companions: &Companions) -> Value {
    let Some(mut json) = original(spec, companions) else { return to_json(spec) };
    let keys = ["dtype", "torch_dtype"].map(|key| json.get(key).map(|_| key));
    for key in keys.into_iter().flatten() {
        json[key] = "float32".into();
    }
    json
}

/// Returns `[model]` for a description.
///
/// # Errors
/// As [`from_json`].
pub(super) fn read(json: &Value) -> Result<ModelConfig, UnsupportedKey> {
    let refused =
        |key: &str, reason: String| UnsupportedKey::new(key, json.get(key).unwrap_or(&Value::Null), reason);
    let name = json.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let config = match (json.as_object(), decoder_config::family(name)) {
        (Some(keys), Some(kind)) => decoder_config::read(keys, kind)?,
        (Some(keys), None) if name == "gpt2" => gpt2(keys)?,
        (Some(keys), None) if name == NARROW_GPT2 => narrow_gpt2(keys)?,
        (Some(keys), None) if let Some(kind) = encoder_config::family(name) => {
            encoder_config::read(keys, kind)?
        }
        _ if json.get("model_type").is_none() => {
            let reason = "it is missing, as in files of before 2020: open the folder with its class of transformers, and write it anew \
                          (`BertForMaskedLM.from_pretrained(FOLDER).save_pretrained(NEW)`)";
            return Err(refused("model_type", reason.to_owned()));
        }
        _ => {
            let known = [decoder_config::names(), encoder_config::names()].concat().join(", ");
            return Err(refused("model_type", format!("gpt2, {known} are supported")));
        }
    };
    config.check().map_err(|error| refused("model_type", error.to_string()))?;
    Ok(config)
}

/// Returns the rates of dropout above zero, with the defaults of transformers.
///
/// # Errors
/// Names a key that is no probability.
pub(super) fn dropout_of(json: &Value) -> Result<Vec<NamedDropout>, UnsupportedKey> {
    use DropoutPlace::{Attention, Classifier, Hidden};
    let keys: &[(&'static str, f64, DropoutPlace)] = match json.get("model_type").and_then(Value::as_str) {
        Some("gpt2" | NARROW_GPT2) => {
            &[("attn_pdrop", 0.1, Attention), ("embd_pdrop", 0.1, Hidden), ("resid_pdrop", 0.1, Hidden)]
        }
        Some(name) if encoder_config::family(name).is_some() => {
            // Without a rate of its own, the head has that of the residual stream.
            &[
                ("attention_probs_dropout_prob", 0.1, Attention),
                ("hidden_dropout_prob", 0.1, Hidden),
                ("classifier_dropout", 0.0, Classifier),
            ]
        }
        _ => &[
            ("attention_dropout", 0.0, Attention),
            ("resid_pdrop", 0.0, Hidden),
            ("embd_pdrop", 0.0, Hidden),
        ],
    };
    let mut found = Vec::new();
    for &(key, usual, place) in keys {
        let value = json.get(key).unwrap_or(&Value::Null);
        let rate = if value.is_null() { Some(usual) } else { value.as_f64() };
        let Some(rate) = rate.filter(|rate| (0.0..1.0).contains(rate)) else {
            return Err(UnsupportedKey::new(key, value, "it must be a probability below 1"));
        };
        found.extend((rate > 0.0).then_some(NamedDropout { key, rate, place }));
    }
    Ok(found)
}

/// Keys of GPT-2 without an effect on the computation. Rates of dropout are read by [`dropout_of`].
const OF_GPT2: [&str; 14] = [
    "attn_pdrop",
    "embd_pdrop",
    "is_decoder",
    "n_ctx",
    "n_special",
    "pad_token_id",
    "predict_special_tokens",
    "resid_pdrop",
    "summary_activation",
    "summary_first_dropout",
    "summary_hidden_size",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
];

fn gpt2(json: &Map<String, Value>) -> Read<ModelConfig> {
    let keys = Keys::new(json, "");
    let config = gpt2_with(&keys)?;
    keys.finish_model(&OF_GPT2)?;
    Ok(config)
}

fn narrow_gpt2(json: &Map<String, Value>) -> Read<ModelConfig> {
    let keys = Keys::new(json, "");
    let bottleneck = |value: &Value| BottleneckConfig::deserialize(value).ok();
    let config = ModelConfig {
        subspace: keys.count("subspace")?,
        bottleneck: keys.parsed("bottleneck", "an object with `width` and `behind`", bottleneck)?,
        ..gpt2_with(&keys)?
    };
    keys.finish_model(&OF_GPT2)?;
    Ok(config)
}

fn gpt2_with(keys: &Keys<'_>) -> Read<ModelConfig> {
    let number = |key: &'static str| keys.needed(key, keys.count(key)?);
    let supported: [(&'static str, &[Value]); 5] = [
        ("activation_function", &[json!("gelu_new"), json!("gelu_pytorch_tanh")]),
        ("layer_norm_epsilon", &[json!(GPT2_NORM_EPSILON)]),
        ("scale_attn_weights", &[json!(true)]),
        ("scale_attn_by_inverse_layer_idx", &[json!(false)]),
        ("reorder_and_upcast_attn", &[json!(false)]),
    ];
    for (key, values) in supported {
        keys.expect(key, |value| values.contains(value), &format!("{} is supported", values[0]))?;
    }
    let width = number("n_embd")?;
    Ok(ModelConfig {
        layers: number("n_layer")?,
        width,
        heads: number("n_head")?,
        feed_forward_width: Some(keys.count("n_inner")?.unwrap_or(width.saturating_mul(4))),
        context: number("n_positions")?,
        vocabulary: Some(number("vocab_size")?),
        tied_embeddings: Some(keys.flag("tie_word_embeddings")?.unwrap_or(true)),
        ..ModelConfig::of(ModelKind::Gpt2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_common::model::tiny::{
        tiny_bottleneck, tiny_cnn, tiny_gpt2, tiny_llama, tiny_mlp, tiny_subspace,
    };

    #[test]
    fn a_description_leads_back_to_its_model() {
        for spec in [tiny_gpt2(), tiny_llama(), tiny_subspace(true), tiny_bottleneck()] {
            assert_eq!(from_json(&to_json(&spec)), Ok(spec));
        }
        let mut plain = to_json(&tiny_subspace(false));
        plain["model_type"] = json!("gpt2");
        assert!(
            from_json(&plain).unwrap_err().to_string().starts_with("subspace = 6: this key is not known")
        );
        plain["model_type"] = json!("longhaul_gpt2");
        plain["subspace"] = json!(32);
        assert!(
            from_json(&plain).unwrap_err().to_string().contains("model.subspace = 32: must be at least 1")
        );
        assert!(from_json(&json!({"model_type": "mamba"})).is_err());
        for (spec, kind) in [(tiny_mlp(), "mlp"), (tiny_cnn(), "cnn")] {
            let json = to_json(&spec);
            assert_eq!((json["model_type"].as_str(), json["num_labels"].as_u64()), (Some(kind), Some(3)));
            assert!(is_of_images(&json) && from_json(&json).is_err(), "{json}");
        }
    }

    /// The descriptions that transformers wrote of each encoder.
    #[test]
    fn a_description_of_an_encoder_is_read_and_a_key_that_cannot_be_honoured_is_refused() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/encoders");
        let read = |case: &str| -> Value {
            serde_json::from_slice(&std::fs::read(folder.join(case).join(MODEL_CONFIG)).unwrap()).unwrap()
        };
        for case in ["bert", "roberta", "xlm-roberta", "electra"] {
            let spec = from_json(&read(case)).unwrap();
            assert_eq!(from_json(&to_json(&spec)), Ok(spec), "{case}");
        }
        for (case, key, value, words) in [
            ("bert", "hidden_act", json!("relu"), "hidden_act = \"relu\": gelu and gelu_new are"),
            ("bert", "is_decoder", json!(true), "is_decoder = true: an encoder"),
            ("bert", "position_embedding_type", json!("relative_key"), "absolute positions are supported"),
            ("bert", "tie_word_embeddings", json!(false), "tie_word_embeddings = false: the output"),
            ("bert", "embedding_size", json!(8), "embedding_size = 8: this key is not known"),
            ("roberta", "max_position_embeddings", json!(2), "max_position_embeddings = 2: positions begin"),
            ("electra", "num_attention_heads", json!(3), "model.width = 16: must be a multiple"),
            ("electra", "vocab_size", Value::Null, "vocab_size = null: it is missing"),
        ] {
            let mut json = read(case);
            json[key] = value;
            let message = from_json(&json).unwrap_err().to_string();
            assert!(message.contains(words), "{case}, {key}: {message}");
        }
    }

    /// Old releases of transformers wrote every key of the base class. The values are those of a model of 2020 (rxnfp 0.1.0).
    #[test]
    fn keys_that_old_releases_wrote_with_every_model_change_nothing_and_those_that_change_it_are_refused() {
        let old = json!({
            "do_sample": false, "eos_token_ids": 0, "finetuning_task": "greg_10k", "length_penalty": 1.0,
            "max_length": 20, "num_beams": 1, "num_return_sequences": 1, "output_attentions": false,
            "output_hidden_states": false, "output_past": true, "pruned_heads": {}, "repetition_penalty": 1.0,
            "temperature": 1.0, "top_k": 50, "top_p": 1.0, "torchscript": false, "use_bfloat16": false,
            "is_encoder_decoder": false, "is_decoder": false,
        });
        let bert = json!({
            "model_type": "bert", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2,
            "intermediate_size": 16, "vocab_size": 9, "max_position_embeddings": 12,
        });
        for description in [to_json(&tiny_gpt2()), to_json(&tiny_llama()), bert] {
            let mut json = description.clone();
            json.as_object_mut().unwrap().extend(old.as_object().unwrap().clone());
            assert_eq!(from_json(&json), from_json(&description), "{description}");
            for (key, value) in [
                ("pruned_heads", json!({ "0": [1] })),
                ("is_encoder_decoder", json!(true)),
                ("add_cross_attention", json!(true)),
                ("no_such_key", json!(1)),
            ] {
                let mut json = json.clone();
                json[key] = value;
                let message = from_json(&json).unwrap_err().to_string();
                assert!(message.starts_with(key), "{description}: {message}");
            }
        }
        // The keys of distilgpt2.
        let mut distilled = to_json(&tiny_gpt2());
        distilled.as_object_mut().unwrap().extend(
            json!({
                "_num_labels": 1, "n_ctx": 16, "summary_activation": null, "summary_first_dropout": 0.1,
                "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
                "id2label": { "0": "LABEL_0" }, "label2id": { "LABEL_0": 0 }, "initializer_range": 0.02,
                "task_specific_params": { "text-generation": { "do_sample": true, "max_length": 50 } },
            })
            .as_object()
            .unwrap()
            .clone(),
        );
        assert_eq!(from_json(&distilled), Ok(tiny_gpt2()));
        let message = from_json(&json!({ "hidden_size": 8 })).unwrap_err().to_string();
        assert!(
            message.contains("model_type = null: it is missing, as in files of before 2020"),
            "{message}"
        );
    }

    #[test]
    fn a_description_of_what_cannot_be_is_none() {
        for (spec, key, value) in [
            (tiny_gpt2(), "n_head", json!(0)),
            (tiny_gpt2(), "n_head", json!(3)),
            (tiny_gpt2(), "n_layer", json!(u32::MAX)),
            (tiny_gpt2(), "n_embd", json!(-32)),
            (tiny_gpt2(), "activation_function", json!("relu")),
            (tiny_gpt2(), "layer_norm_epsilon", json!(1e-12)),
            (tiny_gpt2(), "scale_attn_by_inverse_layer_idx", json!(true)),
            (tiny_llama(), "num_key_value_heads", json!(3)),
            (tiny_llama(), "vocab_size", json!(u64::MAX)),
        ] {
            let mut description = to_json(&spec);
            description[key] = value;
            assert!(from_json(&description).is_err(), "{key}");
        }
    }
}
