//! Keys of mixtures of experts.

use longhaul_common::config::{DecoderConfig, ModelKind};
use longhaul_common::model::Experts;
use serde_json::{Value, json};

use super::keys::{Keys, Read};

/// Names of the number of experts: transformers 5 writes the second for all families.
const COUNTS: [&str; 2] = ["num_experts", "num_local_experts"];

/// Reads the experts, if the family has some.
pub(super) fn read(keys: &Keys<'_>, kind: ModelKind, layers: u32, into: &mut DecoderConfig) -> Read<()> {
    if kind.usual_experts().is_none() {
        return Ok(());
    }
    let [own, other] = COUNTS.map(|key| keys.count(key));
    let (own, other) = (own?, other?);
    if let (Some(_), Some(other)) = (own.filter(|own| Some(*own) != other), other) {
        return Err(keys.refused(
            COUNTS[1],
            &json!(other),
            "num_experts is another number: remove one of the two",
        ));
    }
    into.num_experts = own.or(other);
    into.num_experts_per_tok = keys.count("num_experts_per_tok")?;
    // The loss is added only if the router's outputs are asked for.
    let coefficient = keys.number("router_aux_loss_coef")?.unwrap_or(match kind {
        ModelKind::Olmoe => 0.01,
        _ => 0.001,
    });
    let is_balanced = keys.flag("output_router_logits")?.unwrap_or(false);
    into.router_aux_loss_coef = Some(if is_balanced { coefficient } else { 0.0 });
    match kind {
        ModelKind::Mixtral => {
            let is_zero = |value: &Value| value.as_f64() == Some(0.0);
            keys.expect(
                "router_jitter_noise",
                is_zero,
                "noise of the router's input is not supported: set it to 0",
            )?;
        }
        ModelKind::Olmoe => {
            keys.expect("clip_qkv", Value::is_null, "clipping of queries, keys and values is not supported")?
        }
        _ => {
            into.moe_intermediate_size = Some(keys.count("moe_intermediate_size")?.unwrap_or(768));
            into.mlp_only_layers = Some(dense_layers(keys, layers)?);
        }
    }
    if kind != ModelKind::Mixtral {
        into.norm_topk_prob = Some(keys.flag("norm_topk_prob")?.unwrap_or(false));
    }
    Ok(())
}

/// Returns the layers without experts: those listed, and all but each n-th.
fn dense_layers(keys: &Keys<'_>, layers: u32) -> Read<Vec<u32>> {
    let listed = keys.parsed("mlp_only_layers", "a list of layers", |value| {
        value.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<_>>>()
    })?;
    let listed = listed.unwrap_or_default();
    let step = keys.count("decoder_sparse_step")?.unwrap_or(1);
    if step == 0 {
        return Err(keys.refused("decoder_sparse_step", &json!(0), "it must be at least 1"));
    }
    let is_dense = |layer: &u32| listed.contains(&u64::from(*layer)) || !(layer + 1).is_multiple_of(step);
    Ok((0..layers).filter(is_dense).collect())
}

/// Writes the experts.
pub(super) fn write(kind: ModelKind, of: &Experts, mut set: impl FnMut(&str, Value)) {
    let [count, _] = COUNTS;
    set(if kind == ModelKind::Mixtral { COUNTS[1] } else { count }, json!(of.count));
    set("num_experts_per_tok", json!(of.chosen));
    set("router_aux_loss_coef", json!(of.balance));
    set("output_router_logits", json!(of.balance > 0.0));
    match kind {
        ModelKind::Mixtral => set("router_jitter_noise", json!(0.0)),
        ModelKind::Olmoe => set("norm_topk_prob", json!(of.are_normalised)),
        _ => {
            set("norm_topk_prob", json!(of.are_normalised));
            set("moe_intermediate_size", json!(of.width));
            set("mlp_only_layers", json!(of.dense_layers));
            set("decoder_sparse_step", json!(1));
        }
    }
}
