//! `config.json` of causal decoders, as transformers 4 and 5 write it.

mod experts;
mod keys;

use longhaul_common::config::{
    DecoderConfig, ModelConfig, ModelKind, RopeScaling, RopeScalingConfig, RopeType,
};
use longhaul_common::model::{Decoder, ModelSpec};
use serde_json::{Map, Value, json};

pub(super) use self::keys::{Keys, Read};

/// A key of `config.json` that is missing, or that cannot be honoured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {reason}")]
pub struct UnsupportedKey {
    /// Key; within an object, with its path.
    pub key: String,
    /// Value as JSON, shortened.
    pub value: String,
    /// Reason, with the remedy.
    pub reason: String,
}

impl UnsupportedKey {
    pub(super) fn new(key: &str, value: &Value, reason: impl Into<String>) -> Self {
        const CHARACTERS_MAX: usize = 60;
        let value = value.to_string().chars().take(CHARACTERS_MAX).collect();
        Self { key: key.to_owned(), value, reason: reason.into() }
    }
}

/// Families, by `model_type` and by the class that `architectures` names.
const FAMILIES: [(&str, &str, ModelKind); 12] = [
    ("llama", "LlamaForCausalLM", ModelKind::Llama),
    ("mistral", "MistralForCausalLM", ModelKind::Mistral),
    ("qwen2", "Qwen2ForCausalLM", ModelKind::Qwen2),
    ("qwen3", "Qwen3ForCausalLM", ModelKind::Qwen3),
    ("qwen3_moe", "Qwen3MoeForCausalLM", ModelKind::Qwen3Moe),
    ("mixtral", "MixtralForCausalLM", ModelKind::Mixtral),
    ("olmoe", "OlmoeForCausalLM", ModelKind::Olmoe),
    ("smollm3", "SmolLM3ForCausalLM", ModelKind::SmolLm3),
    ("phi3", "Phi3ForCausalLM", ModelKind::Phi3),
    ("olmo2", "Olmo2ForCausalLM", ModelKind::Olmo2),
    ("gemma2", "Gemma2ForCausalLM", ModelKind::Gemma2),
    ("gemma3_text", "Gemma3ForCausalLM", ModelKind::Gemma3),
];

/// Keys without an effect on the computation. Rates of dropout are read by `model_config::dropout_of`.
const WITHOUT_EFFECT: [&str; 7] = [
    "attention_dropout",
    "embd_pdrop",
    "is_decoder",
    "is_llama_config",
    "pad_token_id",
    "pretraining_tp",
    "resid_pdrop",
];

/// Returns the family of a `model_type`; `None`: it is no decoder that is supported.
pub(super) fn family(model_type: &str) -> Option<ModelKind> {
    FAMILIES.iter().find(|(name, ..)| *name == model_type).map(|(.., kind)| *kind)
}

/// Returns every `model_type` of a decoder.
pub(super) fn names() -> Vec<&'static str> {
    FAMILIES.iter().map(|(name, ..)| *name).collect()
}

/// Returns the configuration of a decoder of this family.
///
/// # Errors
/// Names the first key that is missing or cannot be honoured.
pub(super) fn read(json: &Map<String, Value>, kind: ModelKind) -> Read<ModelConfig> {
    let keys = Keys::new(json, "");
    let layers = keys.needed("num_hidden_layers", keys.count("num_hidden_layers")?)?;
    let width = keys.needed("hidden_size", keys.count("hidden_size")?)?;
    let heads = keys.needed("num_attention_heads", keys.count("num_attention_heads")?)?;
    let feed_forward_width = keys.needed("intermediate_size", keys.count("intermediate_size")?)?;
    let context = keys.needed("max_position_embeddings", keys.count("max_position_embeddings")?)?;
    let vocabulary = keys.needed("vocab_size", keys.count("vocab_size")?)?;
    let kv_heads = keys.count("num_key_value_heads")?.unwrap_or(heads);
    let is_gemma = matches!(kind, ModelKind::Gemma2 | ModelKind::Gemma3);
    let tied = keys.flag("tie_word_embeddings")?.unwrap_or(is_gemma || kind == ModelKind::SmolLm3);
    let activation = if is_gemma { "gelu_pytorch_tanh" } else { "silu" };
    for key in ["hidden_act", "hidden_activation"] {
        // Early configurations of Gemma named another one, which transformers does not use.
        let is_one = |value: &Value| value == activation || is_gemma && key == "hidden_act";
        keys.expect(key, is_one, &format!("{activation} is supported for this model_type"))?;
    }
    keys.expect("use_bidirectional_attention", |value| value == false, "attention is causal here")?;
    let mut decoder = DecoderConfig {
        // Absent in Qwen3 and Gemma, it is not the width divided by the heads.
        head_dim: keys.count("head_dim")?.or(match kind {
            ModelKind::Qwen3 => Some(128),
            ModelKind::Gemma2 | ModelKind::Gemma3 => Some(256),
            _ => None,
        }),
        rms_norm_eps: Some(keys.number("rms_norm_eps")?.unwrap_or(match kind {
            ModelKind::Phi3 | ModelKind::Olmo2 | ModelKind::Olmoe | ModelKind::Mixtral => 1e-5,
            _ => 1e-6,
        })),
        ..DecoderConfig::default()
    };
    if has_choice_of_biases(kind) {
        let has_bias = keys.flag("attention_bias")?.unwrap_or(false);
        (decoder.qkv_bias, decoder.out_bias) = (Some(has_bias), Some(has_bias));
    } else {
        keys.expect("attention_bias", |value| value == false, "this model_type has no choice of biases")?;
    }
    for key in ["rope_interleaved", "use_mrope"] {
        keys.expect(key, |value| value == false, "the two halves of a head turn against each other here")?;
    }
    if matches!(kind, ModelKind::Llama | ModelKind::SmolLm3) {
        decoder.mlp_bias = Some(keys.flag("mlp_bias")?.unwrap_or(false));
    }
    if is_gemma {
        let usual_cap = |cap: f64| if kind == ModelKind::Gemma2 { cap } else { 0.0 };
        let cap = |key: &'static str, usual: f64| match json.contains_key(key) {
            true => keys.number(key).map(|cap| Some(cap.unwrap_or(0.0))),
            false => Ok(Some(usual_cap(usual))),
        };
        decoder.query_pre_attn_scalar = Some(keys.number("query_pre_attn_scalar")?.unwrap_or(256.0));
        decoder.attn_logit_softcapping = cap("attn_logit_softcapping", 50.0)?;
        decoder.final_logit_softcapping = cap("final_logit_softcapping", 30.0)?;
    }
    rotary(&keys, kind, context, &mut decoder)?;
    windows(&keys, kind, layers, &mut decoder)?;
    experts::read(&keys, kind, layers, &mut decoder)?;
    keys.finish_model(&WITHOUT_EFFECT)?;
    Ok(ModelConfig {
        from: None,
        layers,
        width,
        heads,
        kv_heads: Some(kv_heads),
        feed_forward_width: Some(feed_forward_width),
        context,
        vocabulary: Some(vocabulary),
        tied_embeddings: Some(tied),
        decoder: Some(decoder),
        ..ModelConfig::of(kind)
    })
}

fn has_choice_of_biases(kind: ModelKind) -> bool {
    !matches!(kind, ModelKind::Qwen2 | ModelKind::Phi3 | ModelKind::Mistral | ModelKind::Mixtral)
}

/// Reads the rotary positions: `rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling`.
fn rotary(keys: &Keys<'_>, kind: ModelKind, context: u32, into: &mut DecoderConfig) -> Read<()> {
    const PATH: &str = "rope_parameters.";
    let usual = match kind {
        ModelKind::SmolLm3 => 2_000_000.0,
        ModelKind::Gemma3 | ModelKind::Mixtral => 1_000_000.0,
        _ => 10_000.0,
    };
    let original = keys.count("original_max_position_embeddings")?;
    into.partial_rotary_factor = partial(keys, kind)?;
    let theta = keys.number("rope_theta")?;
    let local = keys.number("rope_local_base_freq")?;
    let object = |key: &'static str| keys.parsed(key, "an object", Value::as_object);
    let (scaling, parameters) = (object("rope_scaling")?, object("rope_parameters")?);
    if let (Some(scaling), Some(_)) = (scaling, parameters) {
        let reason = "rope_parameters is there as well: remove one of the two";
        return Err(keys.refused("rope_scaling", &json!(scaling), reason));
    }
    let read = |of: Option<&Map<String, Value>>,
                path: &'static str|
     -> Read<(Option<f64>, Option<RopeScalingConfig>, Option<f64>)> {
        let Some(of) = of else { return Ok((None, None, None)) };
        let keys = Keys::new(of, path);
        let share = partial(&keys, kind)?;
        let theta = keys.number("rope_theta")?;
        let scaling = scaling_of(&keys, context, original)?;
        keys.finish(&[])?;
        Ok((theta, scaling, share))
    };
    if kind == ModelKind::Gemma3 {
        let empty = Map::new();
        let kinds = Keys::new(parameters.unwrap_or(&empty), PATH);
        let of = |key: &'static str| kinds.parsed(key, "an object", Value::as_object);
        let (full, windowed) = (of("full_attention")?, of("sliding_attention")?);
        kinds.finish(&[])?;
        let (new, of_full, _) = read(full, "rope_parameters.full_attention.")?;
        let (window, none, _) = read(windowed, "rope_parameters.sliding_attention.")?;
        if none.is_some() {
            let reason = "layers with a window have no scaling here";
            return Err(keys.refused("rope_parameters", &json!(parameters), reason));
        }
        into.rope_local_base_freq = Some(window.or(local).unwrap_or(10_000.0));
        into.rope_theta = Some(new.or(theta).unwrap_or(usual));
        into.rope_scaling = of_full.or(read(scaling, "rope_scaling.")?.1);
        return Ok(());
    }
    let (new, of_parameters, share) = read(parameters, PATH)?;
    into.partial_rotary_factor = share.or(into.partial_rotary_factor);
    into.rope_theta = Some(new.or(theta).unwrap_or(usual));
    into.rope_scaling = of_parameters.or(read(scaling, "rope_scaling.")?.1);
    Ok(())
}

/// Reads the share of channels that turn.
fn partial(keys: &Keys<'_>, kind: ModelKind) -> Read<Option<f64>> {
    if kind != ModelKind::Phi3 {
        let is_one = |value: &Value| value.as_f64() == Some(1.0);
        keys.expect("partial_rotary_factor", is_one, "all channels of a head turn in this family")?;
    }
    Ok(keys.number("partial_rotary_factor")?.filter(|share| *share != 1.0))
}

fn scaling_of(keys: &Keys<'_>, context: u32, outer: Option<u32>) -> Read<Option<RopeScalingConfig>> {
    let (new, old) = (keys.text("rope_type")?, keys.text("type")?);
    let name = new.or(old).unwrap_or("default");
    let original = keys.count("original_max_position_embeddings")?.or(outer).unwrap_or(context);
    let (factor, attention_factor) = (keys.number("factor")?, keys.number("attention_factor")?);
    let rope_type = match name {
        "default" => return Ok(None),
        "linear" => RopeType::Linear,
        "llama3" => RopeType::Llama3,
        "longrope" | "su" => RopeType::LongRope,
        // Early configurations of Phi-3 call LongRoPE so.
        "yarn" if keys.get("short_factor").is_some() => RopeType::LongRope,
        "yarn" => RopeType::Yarn,
        other => {
            let reason = "linear, llama3, yarn and longrope are supported";
            return Err(keys.refused("rope_type", &json!(other), reason));
        }
    };
    let mut scaling = RopeScalingConfig::of(rope_type);
    if rope_type == RopeType::LongRope {
        scaling.short_factor = keys.numbers("short_factor")?;
        scaling.long_factor = keys.numbers("long_factor")?;
    } else {
        scaling.factor = factor;
    }
    if rope_type != RopeType::Linear {
        scaling.original_max_position_embeddings = Some(original);
    }
    if rope_type == RopeType::Llama3 {
        scaling.low_freq_factor = keys.number("low_freq_factor")?;
        scaling.high_freq_factor = keys.number("high_freq_factor")?;
    }
    if rope_type == RopeType::Yarn {
        scaling.beta_fast = keys.number("beta_fast")?;
        scaling.beta_slow = keys.number("beta_slow")?;
    }
    if matches!(rope_type, RopeType::Yarn | RopeType::LongRope) {
        scaling.attention_factor = attention_factor;
    }
    Ok(Some(scaling))
}

/// Reads which layers have a window, and which have no positions.
fn windows(keys: &Keys<'_>, kind: ModelKind, layers: u32, into: &mut DecoderConfig) -> Read<()> {
    const WINDOWED: &str = "sliding_attention";
    let is_used = keys.flag("use_sliding_window")?;
    // Files leave out what is as usual; null means none.
    let has_one = matches!(kind, ModelKind::Mistral | ModelKind::Gemma2 | ModelKind::Gemma3);
    let usual = (has_one && !keys.of.contains_key("sliding_window")).then_some(4096);
    let window = keys.count("sliding_window")?.or(usual);
    let is_qwen = matches!(kind, ModelKind::Qwen2 | ModelKind::Qwen3 | ModelKind::Qwen3Moe);
    let window = window.filter(|_| !is_qwen || is_used == Some(true));
    let first = keys.count("max_window_layers")?;
    let period = keys.count("sliding_window_pattern")?.or(keys.count("_sliding_window_pattern")?);
    let kinds = keys.parsed("layer_types", "a list of names", |value| {
        value.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>()
    })?;
    if let Some(kinds) = &kinds
        && (kinds.len() != layers as usize
            || kinds.iter().any(|kind| ![WINDOWED, "full_attention"].contains(kind)))
    {
        let reason = format!("each of the {layers} layers must be full_attention or {WINDOWED}");
        return Err(keys.refused("layer_types", &json!(kinds), reason));
    }
    let named = kinds.map(|kinds| (0..layers).filter(|layer| kinds[*layer as usize] == WINDOWED).collect());
    let by_rule: Vec<u32> = match kind {
        // Every layer has the window.
        ModelKind::Mistral | ModelKind::Phi3 | ModelKind::Mixtral | ModelKind::Qwen3Moe
            if window.is_some() =>
        {
            (0..layers).collect()
        }
        ModelKind::Qwen2 | ModelKind::Qwen3 if is_used == Some(true) => {
            (first.unwrap_or(28)..layers).collect()
        }
        ModelKind::Gemma2 => (0..layers).filter(|layer| layer.is_multiple_of(2)).collect(),
        ModelKind::Gemma3 => {
            let period = period.unwrap_or(6).max(1);
            (0..layers).filter(|layer| !(layer + 1).is_multiple_of(period)).collect()
        }
        _ => Vec::new(),
    };
    into.window_layers = Some(named.unwrap_or(by_rule));
    into.sliding_window = window;
    if kind == ModelKind::SmolLm3 {
        let interval = keys.count("no_rope_layer_interval")?.unwrap_or(4).max(1);
        let flags = keys.parsed("no_rope_layers", "a list of 0 and 1", |value| {
            value.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<_>>>()
        })?;
        // A 1 says that the layer has positions.
        let has_none = |layer: &u32| match &flags {
            Some(flags) => flags.get(*layer as usize) == Some(&0),
            None => (layer + 1).is_multiple_of(interval),
        };
        into.no_rope_layers = Some((0..layers).filter(has_none).collect());
    }
    Ok(())
}

/// Returns the description of a decoder, for transformers 4 and 5.
pub(super) fn write(spec: &ModelSpec, of: &Decoder) -> Value {
    let Some((name, class, _)) = FAMILIES.iter().find(|(.., kind)| *kind == spec.kind) else {
        return Value::Null;
    };
    let mut json = json!({
        "architectures": [class],
        "model_type": name,
        "attention_dropout": 0.0,
        "bos_token_id": null,
        "eos_token_id": null,
        "head_dim": of.head_width,
        "hidden_size": spec.width,
        "intermediate_size": spec.feed_forward_width,
        "max_position_embeddings": spec.context,
        "num_attention_heads": spec.heads,
        "num_hidden_layers": spec.layers,
        "num_key_value_heads": spec.kv_heads,
        "pad_token_id": null,
        "rms_norm_eps": of.norm_epsilon,
        "rope_theta": of.rotary.base,
        "tie_word_embeddings": spec.tied_embeddings,
        "torch_dtype": "float32",
        "vocab_size": spec.vocabulary,
    });
    let is_gemma = matches!(spec.kind, ModelKind::Gemma2 | ModelKind::Gemma3);
    let activation =
        if is_gemma { ("hidden_activation", "gelu_pytorch_tanh") } else { ("hidden_act", "silu") };
    let mut set = |key: &str, value: Value| json[key] = value;
    set(activation.0, json!(activation.1));
    if let Some(scaling) = &of.rotary.scaling {
        set("rope_scaling", json!(written(scaling)));
        if let RopeScaling::LongRope { original, .. } = scaling {
            // Phi-3 reads it here.
            set("original_max_position_embeddings", json!(original));
        }
    }
    if of.rotary_width != of.head_width {
        set("partial_rotary_factor", json!(share_of(of.rotary_width, of.head_width)));
    }
    if has_choice_of_biases(spec.kind) {
        set("attention_bias", json!(of.qkv_bias));
    }
    if matches!(spec.kind, ModelKind::Llama | ModelKind::SmolLm3) {
        set("mlp_bias", json!(of.mlp_bias));
    }
    let is_windowed = |layer: u32| of.window_of(layer).is_some();
    let has_windows = (0..spec.layers).any(is_windowed);
    match spec.kind {
        ModelKind::Mistral | ModelKind::Phi3 | ModelKind::Mixtral | ModelKind::Qwen3Moe => {
            set("sliding_window", json!(of.window.filter(|_| has_windows)));
        }
        ModelKind::Qwen2 | ModelKind::Qwen3 | ModelKind::Gemma2 | ModelKind::Gemma3 | ModelKind::SmolLm3 => {
            let name = |layer| if is_windowed(layer) { "sliding_attention" } else { "full_attention" };
            set("layer_types", (0..spec.layers).map(name).collect());
            set("sliding_window", json!(of.window));
        }
        _ => {}
    }
    if matches!(spec.kind, ModelKind::Qwen2 | ModelKind::Qwen3 | ModelKind::Qwen3Moe) {
        set("use_sliding_window", json!(has_windows));
    }
    if spec.kind == ModelKind::SmolLm3 {
        let has_positions = |layer| u8::from(of.rotary_of(layer).is_some());
        set("no_rope_layers", (0..spec.layers).map(has_positions).collect());
    }
    if is_gemma {
        set("query_pre_attn_scalar", whole(of.score_scalar));
        set("attn_logit_softcapping", json!(of.score_cap));
        set("final_logit_softcapping", json!(of.logit_cap));
    }
    if let Some(local) = &of.window_rotary {
        set("rope_local_base_freq", json!(local.base));
    }
    if let Some(experts) = &of.experts {
        experts::write(spec.kind, experts, set);
    }
    json
}

/// Returns the share of a width that leads back to the part, which readers round down.
fn share_of(part: u32, width: u32) -> f64 {
    let share = f64::from(part) / f64::from(width);
    if (f64::from(width) * share) as u32 == part { share } else { share.next_up() }
}

/// Returns a number, as an integer if it is one: transformers 5 takes no other.
fn whole(number: f64) -> Value {
    if number.fract() == 0.0 && number < 1e15 { json!(number as u64) } else { json!(number) }
}

/// Returns the configuration of a scaling.
fn written(scaling: &RopeScaling) -> RopeScalingConfig {
    match scaling.clone() {
        RopeScaling::Linear { factor } => {
            RopeScalingConfig { factor: Some(factor), ..RopeScalingConfig::of(RopeType::Linear) }
        }
        RopeScaling::Llama3 { factor, low, high, original } => RopeScalingConfig {
            factor: Some(factor),
            low_freq_factor: Some(low),
            high_freq_factor: Some(high),
            original_max_position_embeddings: Some(original),
            ..RopeScalingConfig::of(RopeType::Llama3)
        },
        RopeScaling::Yarn { factor, original, fast, slow, scale } => RopeScalingConfig {
            factor: Some(factor),
            original_max_position_embeddings: Some(original),
            beta_fast: Some(fast),
            beta_slow: Some(slow),
            attention_factor: scale,
            ..RopeScalingConfig::of(RopeType::Yarn)
        },
        RopeScaling::LongRope { short, long, original, scale } => RopeScalingConfig {
            short_factor: Some(short),
            long_factor: Some(long),
            original_max_position_embeddings: Some(original),
            attention_factor: scale,
            ..RopeScalingConfig::of(RopeType::LongRope)
        },
    }
}

#[cfg(test)]
mod tests;
