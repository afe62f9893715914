//! `config.json` as the `transformers` library reads it.

use longhaul_common::config::ModelKind;
use longhaul_common::model::ModelSpec;
use serde_json::{Value, json};

use crate::models::{GPT2_NORM_EPSILON, LLAMA_NORM_EPSILON, LLAMA_ROTARY_BASE};

/// The model's description. Without begin and end tokens: the engine trains on text without any.
pub(super) fn to_json(spec: &ModelSpec) -> Value {
    match spec.kind {
        ModelKind::Gpt2 => json!({
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
    }
}
