//! Which parts of a strategy go together, and why others do not.

use super::check::positive;
use super::sync::{Application, LateRule, ResultForm, RobustRule, SelectionRule, Source, SyncConfig};
use super::{ConfigError, ValueFormat};

/// Dense f32, a fragment of this size is the largest frame body that the transport takes: 16 MiB.
const FRAGMENT_VALUES_MAX: u32 = 4 << 20;

/// Fragments take turns among at most so many groups.
const GROUPS_MAX: u32 = 1 << 10;

impl SyncConfig {
    /// Checks each value, and which parts go together.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.check_rates()?;
        self.check_when()?;
        self.check_what()?;
        self.check_chunks()?;
        self.check_losses()?;
        self.check_guard()?;
        self.check_deadline()
    }

    /// Checks what goes together with so many workers at the start.
    pub(super) fn check_for(&self, workers: u32) -> Result<(), ConfigError> {
        if self.robust == RobustRule::Trim && self.trim.saturating_mul(2) >= workers {
            let reason = format!(
                "run.workers = {workers} make at most {workers} sites, and leaving {0} of them out at each end of a coordinate \
                 leaves nothing: take less than half of them, or robust = \"clip\"",
                self.trim
            );
            return Err(ConfigError::value("sync.trim", self.trim, reason));
        }
        Ok(())
    }

    fn check_when(&self) -> Result<(), ConfigError> {
        positive("sync.every", self.every)?;
        positive("sync.opening_every", self.opening_every)?;
        positive("sync.groups", self.groups)?;
        if self.groups > GROUPS_MAX {
            return Err(ConfigError::value(
                "sync.groups",
                self.groups,
                format!("must be at most {GROUPS_MAX}"),
            ));
        }
        let shortest = if self.has_opening() { self.every.min(self.opening_every) } else { self.every };
        if self.overlap > shortest {
            let reason = format!(
                "a round's result must be applied before the next contribution, {shortest} steps later; at most {shortest}"
            );
            return Err(ConfigError::value("sync.overlap", self.overlap, reason));
        }
        if !(0.0..=1.0).contains(&self.mix) {
            return Err(ConfigError::value("sync.mix", self.mix, "must lie between 0 and 1"));
        }
        Ok(())
    }

    /// A gradient is of one step and of parameters that all members share; only deltas may wait and add up.
    fn check_what(&self) -> Result<(), ConfigError> {
        let fitting = match self.source {
            Source::Gradient => Application::Inner,
            Source::Momentum => Application::FrozenAdamw,
            Source::Delta => Application::Outer,
        };
        if self.apply != fitting {
            let reason = match self.source {
                Source::Gradient => {
                    "a mean gradient is for the inner optimiser: take \"inner\", or another sync.source"
                }
                Source::Momentum => {
                    "a mean momentum is AdamW's first moment: take \"frozen-adamw\", or another sync.source"
                }
                Source::Delta => {
                    "the inner optimiser has made its steps when a delta is sent: take \"outer\", or another sync.source"
                }
            };
            return Err(ConfigError::value("sync.apply", name_of(self.apply), reason));
        }
        if self.source == Source::Momentum && !self.has_opening() {
            let reason = "AdamW's second moment is learnt in the opening and frozen after it: take about 0.2";
            return Err(ConfigError::value("sync.opening_share", self.opening_share, reason));
        }
        if !self.source.is_gradient() {
            return Ok(());
        }
        if self.late == LateRule::Mix {
            let reason = "without local training there is nothing to mix a result with: take source = \"delta\", or \
                          late = \"keep\"";
            return Err(ConfigError::value("sync.late", "mix", reason));
        }
        let opening_every = if self.has_opening() { self.opening_every } else { 1 };
        for (key, every) in [("sync.every", self.every), ("sync.opening_every", opening_every)] {
            if every != 1 {
                let reason = "gradients are exchanged after each step, as nobody trains by itself: take 1, or \
                              source = \"delta\" (for larger batches, see train.batch)";
                return Err(ConfigError::value(key, every, reason));
            }
        }
        if self.groups != 1 {
            let reason = "each step needs the whole gradient: take 1, or source = \"delta\"";
            return Err(ConfigError::value("sync.groups", self.groups, reason));
        }
        Ok(())
    }

    fn check_chunks(&self) -> Result<(), ConfigError> {
        if !(self.chunk.is_power_of_two() && (16..=65_536).contains(&self.chunk)) {
            return Err(ConfigError::value(
                "sync.chunk",
                self.chunk,
                "must be a power of two from 16 to 65536",
            ));
        }
        for (key, keep) in [
            ("sync.keep", self.keep),
            ("sync.opening_keep", self.opening_keep),
            ("sync.result_keep", self.result_keep),
        ] {
            if keep == 0 || keep > self.chunk {
                let reason = format!("must lie between 1 and sync.chunk = {}", self.chunk);
                return Err(ConfigError::value(key, keep, reason));
            }
        }
        let fragment = self.fragment_values;
        if fragment == 0 || !fragment.is_multiple_of(self.chunk) || fragment > FRAGMENT_VALUES_MAX {
            let reason =
                format!("must be a multiple of sync.chunk = {} up to {FRAGMENT_VALUES_MAX}", self.chunk);
            return Err(ConfigError::value("sync.fragment_values", fragment, reason));
        }
        Ok(())
    }

    /// What is not sent must stay somewhere, or sparse updates and signs lose most of what was learnt.
    fn check_losses(&self) -> Result<(), ConfigError> {
        if self.selection != SelectionRule::All && !self.has_residual() {
            let reason = "what top-k leaves out would be lost in every round: take more than 0, or selection = \"all\"";
            return Err(ConfigError::value("sync.error_decay", self.error_decay, reason));
        }
        let few_bits = |values| matches!(values, ValueFormat::TwoBit | ValueFormat::Sign);
        if few_bits(self.values) && !self.has_residual() {
            let reason = format!(
                "at {} the rounding is as large as the update and would be lost in every round: take more than 0, or \
                 values with more bits",
                self.values
            );
            return Err(ConfigError::value("sync.error_decay", self.error_decay, reason));
        }
        if self.result == ResultForm::Bundle
            && self.values == ValueFormat::F32
            && self.selection == SelectionRule::All
        {
            let reason = "every contribution in f32 goes to every site: take result = \"mean\", which loses nothing in f32";
            return Err(ConfigError::value("sync.result", "bundle", reason));
        }
        Ok(())
    }

    /// What an owner may refuse, and what it may do with what it does not.
    fn check_guard(&self) -> Result<(), ConfigError> {
        if self.norm_limit != 0.0 && !(self.norm_limit >= 1.0 && self.norm_limit.is_finite()) {
            let reason = "an update that is no larger than the others' must not be refused: take 1 or more (20 leaves room for what \
                          training does by itself), or 0, which refuses none for its norm";
            return Err(ConfigError::value("sync.norm_limit", self.norm_limit, reason));
        }
        positive("sync.trim", self.trim)?;
        if self.robust != RobustRule::None && self.result == ResultForm::Bundle {
            let reason = "the contributions of a bundle go to everybody as they came; only an owner that takes the mean can do \
                          this: take result = \"mean\", or \"none\"";
            return Err(ConfigError::value("sync.robust", name_of(self.robust), reason));
        }
        if self.robust == RobustRule::Trim && self.selection == SelectionRule::TopK {
            let reason = "a value that few sites select is always the largest or smallest of its coordinate, so that trimming \
                          would leave out most of what is sent: take \"clip\", or selection = \"all\"";
            return Err(ConfigError::value("sync.robust", "trim", reason));
        }
        Ok(())
    }

    fn check_rates(&self) -> Result<(), ConfigError> {
        for (key, value, low, high) in [
            ("sync.opening_share", self.opening_share as f32, 0.0, 1.0),
            ("sync.error_decay", self.error_decay, 0.0, 1.0),
            ("sync.outer_learning_rate", self.outer_learning_rate, f32::MIN_POSITIVE, 2.0),
            ("sync.outer_momentum", self.outer_momentum, 0.0, 0.999),
        ] {
            if !(low..=high).contains(&value) {
                return Err(ConfigError::value(key, value, format!("must lie between {low:e} and {high}")));
            }
        }
        Ok(())
    }

    fn check_deadline(&self) -> Result<(), ConfigError> {
        if self.deadline_floor_ms == 0 || self.deadline_floor_ms > self.deadline_ceiling_ms {
            let reason =
                format!("must lie between 1 and sync.deadline_ceiling_ms = {}", self.deadline_ceiling_ms);
            return Err(ConfigError::value("sync.deadline_floor_ms", self.deadline_floor_ms, reason));
        }
        if !(self.deadline_mads >= 0.0 && self.deadline_mads.is_finite()) {
            return Err(ConfigError::value("sync.deadline_mads", self.deadline_mads, "must be zero or more"));
        }
        Ok(())
    }
}

fn name_of<T: serde::Serialize>(value: T) -> String {
    toml::Value::try_from(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
