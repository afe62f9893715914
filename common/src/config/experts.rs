//! Constraints of `[model.decoder]` on mixtures of experts.

use super::{ConfigError, DecoderConfig, ModelConfig, ModelKind};

/// Maximum experts of a layer: ten times the most in use.
const EXPERTS_MAX: u32 = 1 << 12;
/// Maximum inner width of all experts of a layer together: with the other limits, 64 bits can count a model's parameters. Twenty times the widest in use.
const INNER_WIDTH_MAX: u64 = 1 << 24;

impl ModelKind {
    /// Returns the usual experts of a layer, and how many of them compute a token; `None`: the family has none.
    #[must_use]
    pub fn usual_experts(self) -> Option<[u32; 2]> {
        match self {
            Self::Qwen3Moe => Some([128, 8]),
            Self::Mixtral => Some([8, 2]),
            Self::Olmoe => Some([64, 8]),
            _ => None,
        }
    }
}

impl DecoderConfig {
    /// Checks the keys of experts for a model of valid sizes.
    ///
    /// # Errors
    /// Names the first invalid value, and the reason.
    pub(super) fn check_experts(&self, model: &ModelConfig) -> Result<(), ConfigError> {
        let Some([count, chosen]) = model.kind.usual_experts() else { return self.check_none(model.kind) };
        let count = self.num_experts.unwrap_or(count);
        let chosen = self.num_experts_per_tok.unwrap_or(chosen);
        let width = self.moe_intermediate_size.unwrap_or(model.inner_width());
        let refused = |key, value: String, reason: &str| Err(ConfigError::value(key, value, reason));
        if !(1..=EXPERTS_MAX).contains(&count) {
            let reason = format!("must be from 1 to {EXPERTS_MAX}");
            return refused("model.decoder.num_experts", count.to_string(), &reason);
        }
        if !(1..=count).contains(&chosen) {
            let reason = format!("must be from 1 to model.decoder.num_experts = {count}");
            return refused("model.decoder.num_experts_per_tok", chosen.to_string(), &reason);
        }
        if width == 0 || u64::from(width) * u64::from(count) > INNER_WIDTH_MAX {
            let reason =
                format!("must be at least 1, and {INNER_WIDTH_MAX} at most for all experts together");
            return refused("model.decoder.moe_intermediate_size", width.to_string(), &reason);
        }
        if let Some(balance) = self.router_aux_loss_coef.filter(|it| !(it.is_finite() && *it >= 0.0)) {
            let reason = "must be above zero, or 0 for none; 0.001 to 0.01 are usual";
            return refused("model.decoder.router_aux_loss_coef", balance.to_string(), reason);
        }
        if let Some(layer) = self.mlp_only_layers.iter().flatten().find(|layer| **layer >= model.layers) {
            let reason = format!("layers are counted from 0, and there are {}", model.layers);
            return refused("model.decoder.mlp_only_layers", layer.to_string(), &reason);
        }
        if self
            .mlp_only_layers
            .as_ref()
            .is_some_and(|layers| (0..model.layers).all(|at| layers.contains(&at)))
        {
            let reason = "leaves no layer with experts: take kind = \"qwen3\"";
            return refused("model.decoder.mlp_only_layers", "[…]".to_owned(), reason);
        }
        self.check_of_kind(model.kind)
    }

    /// Refuses choices that files of the family cannot describe.
    fn check_of_kind(&self, kind: ModelKind) -> Result<(), ConfigError> {
        let own = "has one width, model.feed_forward_width: remove it";
        let all = "has experts in each layer: remove it, or take kind = \"qwen3_moe\"";
        let sum = "weighs experts by shares that sum to one: remove it";
        let is_qwen = kind == ModelKind::Qwen3Moe;
        let foreign = [
            ("model.decoder.moe_intermediate_size", !is_qwen && self.moe_intermediate_size.is_some(), own),
            ("model.decoder.mlp_only_layers", !is_qwen && self.mlp_only_layers.is_some(), all),
            (
                "model.decoder.norm_topk_prob",
                kind == ModelKind::Mixtral && self.norm_topk_prob == Some(false),
                sum,
            ),
        ];
        match foreign.into_iter().find(|(_, is_foreign, _)| *is_foreign) {
            Some((key, _, reason)) => Err(ConfigError::value(key, kind.name(), reason)),
            None => Ok(()),
        }
    }

    /// Refuses the keys of experts in a family without any.
    fn check_none(&self, kind: ModelKind) -> Result<(), ConfigError> {
        let given = [
            ("model.decoder.num_experts", self.num_experts.map(|it| it.to_string())),
            ("model.decoder.num_experts_per_tok", self.num_experts_per_tok.map(|it| it.to_string())),
            ("model.decoder.moe_intermediate_size", self.moe_intermediate_size.map(|it| it.to_string())),
            ("model.decoder.norm_topk_prob", self.norm_topk_prob.map(|it| it.to_string())),
            ("model.decoder.router_aux_loss_coef", self.router_aux_loss_coef.map(|it| it.to_string())),
            ("model.decoder.mlp_only_layers", self.mlp_only_layers.as_ref().map(|it| format!("{it:?}"))),
        ];
        match given.into_iter().find_map(|(key, value)| Some((key, value?))) {
            Some((key, value)) => {
                let reason = format!(
                    "{} has no experts: remove it, or take kind = \"qwen3_moe\", \"mixtral\" or \"olmoe\"",
                    kind.name()
                );
                Err(ConfigError::value(key, value, reason))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_make_no_mixture_are_refused_by_name() {
        let of = |kind, decoder| {
            let sizes = ModelConfig { layers: 2, width: 8, heads: 2, context: 8, ..ModelConfig::of(kind) };
            ModelConfig { decoder: Some(decoder), ..sizes }.check().map_err(|error| error.to_string())
        };
        let usual = DecoderConfig::default;
        let (qwen, mixtral) = (ModelKind::Qwen3Moe, ModelKind::Mixtral);
        assert_eq!(of(qwen, DecoderConfig { mlp_only_layers: Some(vec![1]), ..usual() }), Ok(()));
        for (kind, decoder, told) in [
            (qwen, DecoderConfig { num_experts: Some(0), ..usual() }, "num_experts = 0: must be from 1"),
            (
                qwen,
                DecoderConfig { num_experts: Some(4), num_experts_per_tok: Some(5), ..usual() },
                "num_experts_per_tok = 5: must be from 1 to model.decoder.num_experts = 4",
            ),
            (
                qwen,
                DecoderConfig { num_experts: Some(4096), moe_intermediate_size: Some(1 << 13), ..usual() },
                "moe_intermediate_size = 8192: must be at least 1, and 16777216",
            ),
            (
                qwen,
                DecoderConfig { router_aux_loss_coef: Some(-0.1), ..usual() },
                "router_aux_loss_coef = -0.1: must be above zero",
            ),
            (
                qwen,
                DecoderConfig { mlp_only_layers: Some(vec![2]), ..usual() },
                "mlp_only_layers = 2: layers are counted from 0",
            ),
            (
                qwen,
                DecoderConfig { mlp_only_layers: Some(vec![1, 0]), ..usual() },
                "mlp_only_layers = […]: leaves no layer",
            ),
            (
                mixtral,
                DecoderConfig { moe_intermediate_size: Some(8), ..usual() },
                "moe_intermediate_size = mixtral: has one width",
            ),
            (
                ModelKind::Olmoe,
                DecoderConfig { mlp_only_layers: Some(vec![0]), ..usual() },
                "mlp_only_layers = olmoe: has experts in each layer",
            ),
            (
                mixtral,
                DecoderConfig { norm_topk_prob: Some(false), ..usual() },
                "norm_topk_prob = mixtral: weighs experts",
            ),
            (
                ModelKind::Qwen3,
                DecoderConfig { num_experts: Some(4), ..usual() },
                "num_experts = 4: qwen3 has no experts",
            ),
        ] {
            let message = of(kind, decoder).unwrap_err();
            assert!(message.starts_with(&format!("model.decoder.{told}")), "{message}");
        }
    }
}
