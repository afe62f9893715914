//! Constraints of a warm-up that every member computes by itself.

use std::collections::BTreeSet;

use crate::config::{ConfigError, InnerRule, Redundancy, RunConfig, SyncConfig};

/// A warm-up of fewer steps is not worth a measurement.
const STEPS_WORTH_MEASURING: u64 = 50;

impl RunConfig {
    /// Sets what follows from a redundant warm-up unless it is given: its gradients are exact, so two bits a value after it gain nothing (decision 0108).
    pub(super) fn with_redundant_warmup(mut self, given: &BTreeSet<String>) -> Self {
        if self.sync.warmup_redundant == Redundancy::Always && !given.contains("sync.early_share") {
            self.leave_out_early_part();
        }
        self
    }

    /// Whether the plan has yet to decide on [`Redundancy::Auto`].
    #[must_use]
    pub fn is_redundancy_open(&self) -> bool {
        let schedule = self.round_schedule();
        let steps = schedule.warmup_rounds.saturating_mul(schedule.warmup_every).min(schedule.steps);
        self.sync.warmup_redundant == Redundancy::Auto
            && steps >= STEPS_WORTH_MEASURING
            && self.is_plan_open()
            && self.against_redundancy().is_none()
    }

    /// Decides on [`Redundancy::Auto`]. With a redundant warm-up, an `early_share` that is the preset's becomes 0. Where members have parts of the model, the warm-up
    /// is exchanged in any case. Without a warm-up there is nothing to decide.
    pub fn decide_redundancy(&mut self, is_redundant: bool) {
        if !self.sync.has_warmup() {
            return;
        }
        if self.parallel.is_divided() {
            self.sync.warmup_redundant = Redundancy::Never;
        }
        if self.sync.warmup_redundant != Redundancy::Auto {
            return;
        }
        self.sync.warmup_redundant = if is_redundant { Redundancy::Always } else { Redundancy::Never };
        if is_redundant && self.sync.early_share == SyncConfig::of(self.sync.preset).early_share {
            self.leave_out_early_part();
        }
    }

    fn leave_out_early_part(&mut self) {
        if self.sync.adapt && self.sync.has_warmup() {
            self.sync.early_share = 0.0;
        }
    }

    /// The gradients of all members must be the same, without any exchange.
    pub(super) fn check_redundant(&self) -> Result<(), ConfigError> {
        match self.against_redundancy() {
            Some(reason) if self.sync.warmup_redundant == Redundancy::Always && self.sync.has_warmup() => {
                let reason = format!("{reason}, or leave it out");
                Err(ConfigError::value("sync.warmup_redundant", "\"always\"", reason))
            }
            _ => Ok(()),
        }
    }

    /// Why members cannot compute each other's gradients; `None`: they can.
    fn against_redundancy(&self) -> Option<&'static str> {
        let (sync, train) = (&self.sync, &self.train);
        if !(sync.adapt && sync.inner == InnerRule::FrozenAdamw) {
            Some("only the warm-up of preset = \"auto\" with AdamW can be computed by every member")
        } else if train.selective_backward.is_some() {
            Some("members select samples by their own losses: leave [train.selective_backward] out")
        } else if self.parallel.is_divided() {
            Some("a member has only a part of the model: take stages = 1 and tensor = 1")
        } else if self.privacy.is_some() || self.secure_aggregation.is_some() {
            Some("every member would read everybody's data: leave [privacy] and [secure_aggregation] out")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Redundancy, RunConfig};
    use crate::config::SyncPreset;

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
        let redundant = "[sync]\nwarmup_redundant = \"always\"";
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
            let is_named = message.starts_with("sync.warmup_redundant = \"always\": ");
            assert!(is_named && message.contains(words), "{text}: {message}");
        }
    }

    #[test]
    fn the_plan_decides_where_a_warmup_is_long_enough_and_members_may_compute_alike() {
        let parse = |text: &str| RunConfig::parse(&format!("{SMALL}\n{text}")).unwrap();
        let is_open = |text: &str| parse(text).is_redundancy_open();
        assert!(is_open("") && is_open("[sync]\nearly_share = 0.1"));
        for text in [
            "[sync]\nwarmup_redundant = \"never\"",
            "[sync]\nwarmup_redundant = \"always\"",
            "[sync]\nwarmup_rounds = 49\nwarmup_share = 0",
            "[sync]\npreset = \"dense\"",
            "[parallel]\nplan = \"fixed\"",
            "[train]\noptimiser = \"muon\"",
            "[train.selective_backward]\nbeta = 0.5",
        ] {
            assert!(!is_open(text), "{text}");
        }
        let decided = |text: &str, is_redundant| {
            let mut config = parse(text);
            config.decide_redundancy(is_redundant);
            (config.sync.warmup_redundant, config.sync.early_share)
        };
        assert_eq!(decided("", true), (Redundancy::Always, 0.0));
        assert_eq!(decided("", false), (Redundancy::Never, 0.2));
        assert_eq!(decided("[sync]\nearly_share = 0.1", true), (Redundancy::Always, 0.1));
        let never = "[sync]\nwarmup_redundant = \"never\"";
        assert_eq!(decided(never, true), (Redundancy::Never, 0.2), "as it is written");
        let mut divided = parse("[sync]\nwarmup_redundant = \"always\"");
        divided.parallel.stages = 2;
        divided.decide_redundancy(true);
        assert_eq!(divided.sync.warmup_redundant, Redundancy::Never);
    }

    /// Workers read it as if somebody had written it.
    #[test]
    fn a_configuration_that_is_decided_on_is_read_again() {
        let preset = |preset| format!("[sync]\npreset = {}", toml::Value::try_from(preset).unwrap());
        let presets = SyncPreset::ALL.map(preset).into_iter();
        for text in presets.chain(["[train]\noptimiser = \"muon\"".to_owned()]) {
            for is_redundant in [false, true] {
                let Ok(mut config) = RunConfig::parse(&format!("{SMALL}\n{text}")) else { panic!("{text}") };
                config.decide_redundancy(is_redundant && config.is_redundancy_open());
                let told = config.to_toml().unwrap();
                assert_eq!(RunConfig::parse(&told), Ok(config), "{text}");
            }
        }
    }
}
