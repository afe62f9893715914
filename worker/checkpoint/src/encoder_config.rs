//! `config.json` of encoders, as transformers 4 and 5 write it.

use longhaul_common::config::{EncoderActivation, EncoderConfig, EncoderHead, ModelConfig, ModelKind};
use longhaul_common::model::{Encoder, Head, ModelSpec};
use serde_json::{Map, Value, json};

use super::classes;
use super::decoder_config::{Keys, Read};

/// Families, by `model_type` and by the start of the classes that `architectures` names.
const FAMILIES: [(&str, &str, ModelKind); 4] = [
    ("bert", "Bert", ModelKind::Bert),
    ("roberta", "Roberta", ModelKind::Roberta),
    ("xlm-roberta", "XLMRoberta", ModelKind::XlmRoberta),
    ("electra", "Electra", ModelKind::Electra),
];

/// Ends of the classes, by head.
const CLASSES: [(&str, EncoderHead); 4] = [
    ("ForMaskedLM", EncoderHead::Masked),
    ("ForSequenceClassification", EncoderHead::Classes),
    ("ForPreTraining", EncoderHead::Replaced),
    ("Model", EncoderHead::None),
];

/// Most classes that `id2label` names.
const LABELS_MAX: usize = 1 << 16;

/// Keys without an effect on the computation. Rates of dropout are read by `model_config::dropout_of`.
const WITHOUT_EFFECT: [&str; 13] = [
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "directionality",
    "hidden_dropout_prob",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "summary_activation",
    "summary_last_dropout",
    "summary_type",
    "summary_use_proj",
];

/// Returns the family of a `model_type`; `None`: it is no encoder that is supported.
pub(super) fn family(model_type: &str) -> Option<ModelKind> {
    FAMILIES.iter().find(|(name, ..)| *name == model_type).map(|(.., kind)| *kind)
}

/// Returns every `model_type` of an encoder.
pub(super) fn names() -> Vec<&'static str> {
    FAMILIES.iter().map(|(name, ..)| *name).collect()
}

/// Returns the configuration of an encoder of this family.
///
/// # Errors
/// Names the first key that is missing or cannot be honoured.
pub(super) fn read(json: &Map<String, Value>, kind: ModelKind) -> Read<ModelConfig> {
    let keys = Keys::new(json, "");
    let number = |key: &'static str| keys.needed(key, keys.count(key)?);
    let [layers, width] = [number("num_hidden_layers")?, number("hidden_size")?];
    let heads = number("num_attention_heads")?;
    let [inner, vocabulary] = [number("intermediate_size")?, number("vocab_size")?];
    let positions = number("max_position_embeddings")?;
    for (key, only, reason) in [
        ("is_decoder", json!(false), "an encoder is supported: set it to false"),
        ("position_embedding_type", json!("absolute"), "absolute positions are supported"),
        ("tie_word_embeddings", json!(true), "the output projection is the token embedding here"),
    ] {
        keys.expect(key, |value| *value == only, reason)?;
    }
    let padding = keys.count("pad_token_id")?;
    let is_roberta = matches!(kind, ModelKind::Roberta | ModelKind::XlmRoberta);
    let padding = is_roberta.then_some(padding.unwrap_or(1));
    let first = padding.map_or(0, |padding| padding.saturating_add(1));
    let Some(context) = positions.checked_sub(first).filter(|context| *context > 0) else {
        let reason = "positions begin behind the padding token, so there must be more";
        return Err(keys.refused("max_position_embeddings", &json!(positions), reason));
    };
    let head = head_of(json, kind);
    let encoder = EncoderConfig {
        layer_norm_eps: Some(keys.number("layer_norm_eps")?.unwrap_or(1e-12)),
        hidden_act: Some(activation(&keys)?),
        type_vocab_size: Some(keys.count("type_vocab_size")?.unwrap_or(2)),
        embedding_size: match kind {
            ModelKind::Electra => Some(keys.count("embedding_size")?.unwrap_or(128)),
            _ => None,
        },
        pad_token_id: padding,
        head: Some(head).filter(|head| *head != EncoderHead::Masked),
        classes: if head == EncoderHead::Classes { Some(count_of_classes(json, &keys)?) } else { None },
    };
    keys.finish_model(&WITHOUT_EFFECT)?;
    Ok(ModelConfig {
        layers,
        width,
        heads,
        feed_forward_width: Some(inner),
        context,
        vocabulary: Some(vocabulary),
        tied_embeddings: Some(head == EncoderHead::Masked),
        encoder: Some(encoder),
        ..ModelConfig::of(kind)
    })
}

/// Returns the head of the class that `architectures` names; that for masked tokens without one. BERT's pretraining has that, beside one for next sentences.
fn head_of(json: &Map<String, Value>, kind: ModelKind) -> EncoderHead {
    let class = json.get("architectures").and_then(|all| all.get(0)).and_then(Value::as_str);
    let (Some(class), Some((_, start, _))) = (class, FAMILIES.iter().find(|(.., of)| *of == kind)) else {
        return EncoderHead::Masked;
    };
    let end = class.strip_prefix(start).unwrap_or_default();
    let head = CLASSES.iter().find(|(name, _)| *name == end).map_or(EncoderHead::Masked, |(_, head)| *head);
    match head {
        EncoderHead::Replaced if kind != ModelKind::Electra => EncoderHead::Masked,
        head => head,
    }
}

/// Returns the number of classes: transformers has two where nothing is said.
fn count_of_classes(json: &Map<String, Value>, keys: &Keys<'_>) -> Read<u32> {
    if let Some(problem) = json.get("problem_type").filter(|value| !value.is_null())
        && *problem != json!("single_label_classification")
    {
        return Err(keys.refused(
            "problem_type",
            problem,
            "one class for each sequence is supported: single_label_classification",
        ));
    }
    let named = json.get("id2label").and_then(Value::as_object).map(Map::len);
    let (key, count) = match (keys.count("num_labels")?, named) {
        // As in transformers; `classes::names_of` sees to the names.
        (Some(count), named) if named != Some(count as usize) => ("num_labels", count as usize),
        (_, named) => ("id2label", named.unwrap_or(2)),
    };
    let is_possible = (1..=LABELS_MAX).contains(&count);
    let reason = "there must be a class at least, and at most 65536";
    is_possible.then_some(count as u32).ok_or_else(|| keys.refused(key, &json!(count), reason))
}

fn activation(keys: &Keys<'_>) -> Read<EncoderActivation> {
    match keys.text("hidden_act")?.unwrap_or("gelu") {
        "gelu" => Ok(EncoderActivation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" => Ok(EncoderActivation::GeluNew),
        other => Err(keys.refused("hidden_act", &json!(other), "gelu and gelu_new are supported")),
    }
}

/// Returns the class of transformers for an encoder with this head.
pub(super) fn class_of(kind: ModelKind, head: EncoderHead) -> Option<String> {
    let (_, start, _) = FAMILIES.iter().find(|(.., of)| *of == kind)?;
    let (end, _) = CLASSES.iter().find(|(_, of)| *of == head)?;
    Some(format!("{start}{end}"))
}

/// Returns the description of an encoder, for transformers 4 and 5.
pub(super) fn write(spec: &ModelSpec, of: &Encoder) -> Value {
    let Some((name, ..)) = FAMILIES.iter().find(|(.., kind)| *kind == spec.kind) else {
        return Value::Null;
    };
    let head = match of.head {
        Head::Masked => EncoderHead::Masked,
        Head::Classes(_) => EncoderHead::Classes,
        Head::Replaced => EncoderHead::Replaced,
        Head::None => EncoderHead::None,
    };
    let mut json = json!({
        "architectures": [class_of(spec.kind, head)],
        "model_type": name,
        "attention_probs_dropout_prob": 0.0,
        "hidden_act": match of.activation {
            EncoderActivation::Gelu => "gelu",
            EncoderActivation::GeluNew => "gelu_new",
        },
        "hidden_dropout_prob": 0.0,
        "hidden_size": spec.width,
        "intermediate_size": spec.feed_forward_width,
        "layer_norm_eps": of.norm_epsilon,
        "max_position_embeddings": spec.context + of.first_position,
        "num_attention_heads": spec.heads,
        "num_hidden_layers": spec.layers,
        "tie_word_embeddings": true,
        "torch_dtype": "float32",
        "type_vocab_size": of.types,
        "vocab_size": spec.vocabulary,
    });
    if let Head::Classes(classes) = of.head {
        let labels: Vec<String> = (0..classes).map(|class| format!("LABEL_{class}")).collect();
        classes::write(&mut json, &labels);
    }
    if of.first_position > 0 {
        json["pad_token_id"] = json!(of.first_position - 1);
    }
    if spec.kind == ModelKind::Electra {
        json["embedding_size"] = json!(of.embedding_width);
    }
    json
}
