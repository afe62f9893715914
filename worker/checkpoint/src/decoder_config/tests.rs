use std::path::Path;

use longhaul_common::model::Experts;

use super::*;
use crate::model_config::{from_json, to_json};

/// The descriptions that transformers wrote of each family.
fn descriptions() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/decoders");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let json = std::fs::read_to_string(path.join("config.json")).unwrap();
        (path.file_name().unwrap().to_string_lossy().into_owned(), serde_json::from_str(&json).unwrap())
    };
    std::fs::read_dir(folder).unwrap().map(read).collect()
}

#[test]
fn each_description_of_transformers_is_read_and_leads_back_to_its_model() {
    let all = descriptions();
    assert!(all.len() > 16, "{}", all.len());
    for (name, json) in all {
        let spec = from_json(&json).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(from_json(&to_json(&spec)).as_ref(), Ok(&spec), "{name}");
    }
}

#[test]
fn a_key_that_cannot_be_honoured_is_refused_by_its_name() {
    let all: std::collections::BTreeMap<_, _> = descriptions().into_iter().collect();
    for (name, key, value, words) in [
        ("llama", "hidden_size", Value::Null, "hidden_size = null: it is missing"),
        ("llama", "num_hidden_layers", json!("3"), "num_hidden_layers = \"3\": it must be a whole number"),
        ("llama", "hidden_act", json!("relu"), "hidden_act = \"relu\": silu is supported"),
        (
            "llama",
            "rope_scaling",
            json!({"rope_type": "ntk"}),
            "rope_scaling.rope_type = \"ntk\": linear, llama3",
        ),
        ("llama", "rope_scaling", json!({"type": "linear"}), "rope_scaling.factor = nothing"),
        (
            "llama",
            "rope_scaling",
            json!({"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}),
            "rope_scaling.mscale = 1.0: this key is not known",
        ),
        ("llama", "partial_rotary_factor", json!(0.5), "partial_rotary_factor = 0.5: all channels"),
        (
            "llama",
            "quantization_config",
            json!({"bits": 4}),
            "quantization_config = {\"bits\":4}: this key is not known",
        ),
        ("llama", "num_key_value_heads", json!(3), "model.kv_heads = 3: must divide"),
        (
            "qwen3",
            "layer_types",
            json!(["full_attention"]),
            "layer_types = [\"full_attention\"]: each of the 3 layers",
        ),
        (
            "gemma3",
            "use_bidirectional_attention",
            json!(true),
            "use_bidirectional_attention = true: attention is causal",
        ),
        ("gemma2", "head_dim", json!(7), "rotary positions need an even width"),
        ("mixtral", "router_jitter_noise", json!(0.1), "router_jitter_noise = 0.1: noise of the router's"),
        ("mixtral", "num_experts", json!(7), "num_local_experts = 4: num_experts is another number"),
        ("olmoe", "clip_qkv", json!(8.0), "clip_qkv = 8.0: clipping of queries"),
        (
            "qwen3-moe",
            "shared_expert_intermediate_size",
            json!(8),
            "shared_expert_intermediate_size = 8: this key is not known",
        ),
        ("qwen3-moe", "decoder_sparse_step", json!(0), "decoder_sparse_step = 0: it must be at least 1"),
        ("qwen3-moe", "num_experts_per_tok", json!(9), "model.decoder.num_experts_per_tok = 9: must be"),
        ("qwen3", "num_experts", json!(8), "num_experts = 8: this key is not known"),
        ("llama", "model_type", json!("qwen2_moe"), "model_type = \"qwen2_moe\": gpt2, llama, mistral"),
        ("llama", "model_type", json!("mamba"), "model_type = \"mamba\": gpt2, llama, mistral"),
    ] {
        let mut json = all[name].clone();
        json[key] = value;
        // In its place, as transformers 4 writes it.
        if key == "rope_scaling" {
            json.as_object_mut().unwrap().remove("rope_parameters");
        }
        let message = from_json(&json).unwrap_err().to_string();
        assert!(message.contains(words), "{name}, {key}: {message}");
    }
}

/// As transformers 4 writes them, with less.
#[test]
fn descriptions_of_older_versions_are_read() {
    let sizes = json!({
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
        "max_position_embeddings": 128, "vocab_size": 100,
    });
    let with = |more: Value| {
        let mut json = sizes.clone();
        json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        from_json(&json).unwrap()
    };
    let decoder = |more: Value| with(more).decoder.unwrap();
    let llama = decoder(json!({"model_type": "llama", "rope_theta": 500_000.0, "rope_scaling": {
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64, "rope_type": "llama3"
    }}));
    let scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64 };
    assert_eq!(
        (llama.rotary.base, llama.rotary.scaling.clone(), llama.norm_epsilon),
        (500_000.0, Some(scaling), 1e-6)
    );
    let qwen = decoder(
        json!({"model_type": "qwen3", "use_sliding_window": false, "sliding_window": null, "max_window_layers": 1}),
    );
    assert_eq!((qwen.head_width, qwen.window_of(1)), (128, None));
    let mistral = decoder(json!({"model_type": "mistral", "sliding_window": 32}));
    assert_eq!((mistral.window_of(0), mistral.window_of(1)), (Some(32), Some(32)));
    let gemma = decoder(
        json!({"model_type": "gemma3_text", "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 2, "head_dim": 16}),
    );
    assert_eq!((gemma.window_of(0), gemma.window_of(1)), (Some(4096), None));
    let phi = decoder(
        json!({"model_type": "phi3", "rope_scaling": {"type": "yarn", "short_factor": vec![1.0; 8], "long_factor": vec![2.0; 8]}, "original_max_position_embeddings": 32}),
    );
    assert!(matches!(phi.rotary.scaling, Some(RopeScaling::LongRope { original: 32, .. })));
    assert!(with(json!({"model_type": "smollm3"})).tied_embeddings);
    let usual = decoder(json!({"model_type": "mistral"}));
    assert_eq!((usual.window_of(0), usual.window_of(1)), (Some(4096), Some(4096)));
    assert_eq!(decoder(json!({"model_type": "mistral", "sliding_window": null})).window_of(0), None);
    let unused = json!({"model_type": "qwen2", "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]});
    assert_eq!(decoder(unused).window_of(0), None);
    assert!(!decoder(json!({"model_type": "phi3", "attention_bias": false})).qkv_bias);
    assert!(!with(json!({"model_type": "qwen2"})).tied_embeddings);
}

#[test]
fn experts_are_where_transformers_has_them_and_balanced_where_it_adds_the_loss() {
    let read = |more: Value| {
        let mut json = json!({
            "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 96,
            "max_position_embeddings": 128, "vocab_size": 100,
        });
        json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let spec = from_json(&json).unwrap();
        assert_eq!(from_json(&to_json(&spec)).as_ref(), Ok(&spec));
        spec.decoder.unwrap().experts.clone().unwrap()
    };
    // As Qwen's files have them.
    let qwen = read(json!({
        "model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24, "norm_topk_prob": true,
        "decoder_sparse_step": 2, "mlp_only_layers": [3], "output_router_logits": false, "router_aux_loss_coef": 0.001,
        "max_window_layers": 6, "use_sliding_window": false, "sliding_window": null,
    }));
    let expected = Experts {
        count: 16,
        chosen: 4,
        width: 24,
        are_normalised: true,
        balance: 0.0,
        dense_layers: vec![0, 2, 3, 4],
    };
    assert_eq!(qwen, expected);
    let mixtral =
        read(json!({"model_type": "mixtral", "output_router_logits": true, "router_aux_loss_coef": 0.02}));
    let usual =
        Experts { count: 8, chosen: 2, width: 96, are_normalised: true, balance: 0.02, dense_layers: vec![] };
    assert_eq!(mixtral, usual);
    let olmoe = read(json!({"model_type": "olmoe", "output_router_logits": true, "clip_qkv": null}));
    let usual = Experts {
        count: 64,
        chosen: 8,
        width: 96,
        are_normalised: false,
        balance: 0.01,
        dense_layers: vec![],
    };
    assert_eq!(olmoe, usual);
}

/// Transformers prefers one of the two; a flat object has no effect in Gemma 3.
#[test]
fn rotary_positions_that_are_told_twice_or_at_another_place_are_refused() {
    let all: std::collections::BTreeMap<_, _> = descriptions().into_iter().collect();
    for (name, key, value, words) in [
        (
            "llama",
            "rope_scaling",
            json!({"type": "linear", "factor": 2.0}),
            "rope_parameters is there as well",
        ),
        (
            "gemma3",
            "rope_parameters",
            json!({"rope_theta": 5.0}),
            "rope_parameters.rope_theta = 5.0: this key is not known",
        ),
        ("llama", "rope_interleaved", json!(true), "rope_interleaved = true: the two halves"),
        ("phi3", "attention_bias", json!(true), "attention_bias = true: this model_type has no choice"),
    ] {
        let mut json = all[name].clone();
        json[key] = value;
        let message = from_json(&json).unwrap_err().to_string();
        assert!(message.contains(words), "{name}, {key}: {message}");
    }
}
