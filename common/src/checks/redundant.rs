//! Constraints of a warm-up that every member computes by itself.

use std::collections::BTreeSet;

use crate::config::{ConfigError, InnerRule, RunConfig};

impl RunConfig {
    /// Sets what follows from a redundant warm-up unless it is given: its gradients are exact, so two bits a value after it gain nothing (decision 0108).
    pub(super) fn with_redundant_warmup(mut self, given: &BTreeSet<String>) -> Self {
        let is_in_effect = self.sync.warmup_redundant && self.sync.adapt && self.sync.has_warmup();
        if is_in_effect && !given.contains("sync.early_share") {
            self.sync.early_share = 0.0;
        }
        self
    }

    /// The gradients of all members must be the same, without any exchange.
    pub(super) fn check_redundant(&self) -> Result<(), ConfigError> {
        let (sync, train) = (&self.sync, &self.train);
        if !(sync.warmup_redundant && sync.has_warmup()) {
            return Ok(());
        }
        let reason = if !(sync.adapt && sync.inner == InnerRule::FrozenAdamw) {
            "only the warm-up of preset = \"auto\" with AdamW can be computed by every member"
        } else if train.selective_backward.is_some() {
            "members select samples by their own losses: leave [train.selective_backward] out"
        } else if self.parallel.is_divided() {
            "a member has only a part of the model: take stages = 1 and tensor = 1"
        } else if self.privacy.is_some() || self.secure_aggregation.is_some() {
            "every member would read everybody's data: leave [privacy] and [secure_aggregation] out"
        } else {
            return Ok(());
        };
        Err(ConfigError::value("sync.warmup_redundant", true, format!("{reason}, or leave it out")))
    }
}

#[cfg(test)]
mod tests {
    use crate::config::RunConfig;

    const SMALL: &str = r#"
        [run]
        name = "small"
        workers = 2
        steps = 100
        [model]
        kind = "gpt2"
        layers = 2
        width = 32
        heads = 4
        context = 8
        [data]
        path = "text.txt"
        sequence_length = 8
    "#;

    #[test]
    fn what_differs_between_members_is_refused_by_name() {
        let parse = |text: &str| RunConfig::parse(&format!("{SMALL}\n{text}"));
        let redundant = "[sync]\nwarmup_redundant = true";
        let early_share = |text: &str| parse(&format!("{redundant}{text}")).unwrap().sync.early_share;
        assert_eq!([early_share(""), early_share("\nearly_share = 0.1")], [0.0, 0.1]);
        for (text, words) in [
            ("[sync]\npreset = \"dense\"\nwarmup_rounds = 9", "with AdamW"),
            ("[train.selective_backward]\nbeta = 0.5", "select samples"),
            ("[parallel]\nstages = 2", "a part of the model"),
            ("[privacy]\nclip = 1.0\nnoise = 1.0\ndelta = 1e-6", "everybody's data"),
            ("[train]\noptimiser = \"muon\"\n[sync]\nwarmup_rounds = 9", "with AdamW"),
        ] {
            let text = match text.split_once("[sync]") {
                Some((before, after)) => format!("{before}{redundant}{after}"),
                None => format!("{redundant}\n{text}"),
            };
            let message = parse(&text).unwrap_err().to_string();
            let is_named = message.starts_with("sync.warmup_redundant = true: ");
            assert!(is_named && message.contains(words), "{text}: {message}");
        }
    }
}
