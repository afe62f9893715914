//! Valid combinations of `[sync]`, and the reasons against others.

use super::check::positive;
use super::error::shown;
use super::fragments::FRAGMENT_VALUES_MAX;
use super::sync::{
    Application, InnerRule, LateRule, ResultForm, RobustRule, SelectionRule, Source, SyncConfig, Transform,
};
use super::{ConfigError, Rounding, ValueFormat};

/// Beyond this, products are hardly smaller than the matrices of the models in use.
const RANK_MAX: u32 = 256;

/// Values of a tile of the cosine transform.
const TILE_VALUES: u32 = 64 * 64;

/// Maximum groups of fragments that take turns.
const GROUPS_MAX: u32 = 1 << 10;

impl SyncConfig {
    /// Checks each value, and the combinations.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.check_rates()?;
        self.check_when()?;
        self.check_what()?;
        self.check_inner()?;
        self.check_adapt()?;
        self.check_rank()?;
        self.check_chunks()?;
        self.check_visible()?;
        self.check_losses()?;
        self.check_guard()?;
        self.check_deadline()?;
        self.check_unread()
    }

    /// Refuses a limit of the warm-up that nothing reads.
    pub(crate) fn check_warmup(&self, is_pretrained: bool) -> Result<(), ConfigError> {
        let limit = self.warmup_share_max;
        if is_pretrained || limit >= 1.0 || limit == Self::of(self.preset).warmup_share_max {
            return Ok(());
        }
        let reason =
            "it bounds the warm-up of runs from a pretrained model: take model.from, or leave it out";
        Err(ConfigError::value("sync.warmup_share_max", limit, reason))
    }

    /// Checks the constraints for this many initial replicas.
    pub(crate) fn check_for(&self, workers: u32) -> Result<(), ConfigError> {
        if self.robust == RobustRule::Trim && self.trim.saturating_mul(2) >= workers {
            let reason = format!(
                "{workers} copies of the model make at most {workers} sites, and leaving {0} of them out at each end of a coordinate \
                 leaves nothing: take less than half of them, or robust = \"clip\"",
                self.trim
            );
            return Err(ConfigError::value("sync.trim", self.trim, reason));
        }
        Ok(())
    }

    fn check_when(&self) -> Result<(), ConfigError> {
        positive("sync.every", self.every)?;
        positive("sync.warmup_every", self.warmup_every)?;
        positive("sync.groups", self.groups)?;
        if self.groups > GROUPS_MAX {
            return Err(ConfigError::value(
                "sync.groups",
                self.groups,
                format!("must be at most {GROUPS_MAX}"),
            ));
        }
        if self.overlap > self.every {
            let every = self.every;
            let reason = format!(
                "a round's result must be applied before the next contribution, {every} steps later; at most {every}"
            );
            return Err(ConfigError::value("sync.overlap", self.overlap, reason));
        }
        if !(0.0..=1.0).contains(&self.mix) {
            return Err(ConfigError::value("sync.mix", self.mix, "must lie between 0 and 1"));
        }
        Ok(())
    }

    /// A gradient belongs to one step and to parameters that all members share; only deltas may wait and
    /// accumulate.
    fn check_what(&self) -> Result<(), ConfigError> {
        let (fitting, reason): (&[Application], _) = match self.source {
            Source::Gradient => (
                &[Application::Inner, Application::Sgd, Application::Sign],
                "a mean gradient is for \"inner\", \"sgd\" or \"sign\"; or take another sync.source",
            ),
            Source::CorrectedGradient => (
                &[Application::Sgd],
                "momentum is in the sum already, and another optimiser's would come on top: take \"sgd\", or another \
                 sync.source",
            ),
            Source::Momentum => (
                &[Application::FrozenAdamw],
                "a mean momentum is AdamW's first moment: take \"frozen-adamw\", or another sync.source",
            ),
            Source::Delta => (
                &[Application::Outer],
                "the inner optimiser has made its steps when a delta is sent: take \"outer\", or another sync.source",
            ),
        };
        if !fitting.contains(&self.apply) {
            return Err(ConfigError::value("sync.apply", shown(&self.apply), reason));
        }
        if self.source == Source::CorrectedGradient
            && (self.selection == SelectionRule::All || self.error_decay != 1.0)
        {
            let reason = "momentum is corrected for what waits to be sent: take selection = \"top-k\" or \"threshold\" with \
                          error_decay = 1, or source = \"gradient\"";
            return Err(ConfigError::value("sync.source", shown(&self.source), reason));
        }
        if self.source == Source::Momentum && !self.has_warmup() {
            let reason = "AdamW's second moment is learnt in the warm-up and frozen after it: take about 0.2";
            return Err(ConfigError::value("sync.warmup_share", self.warmup_share, reason));
        }
        if self.look_ahead && (self.apply != Application::Inner || self.overlap == 0) {
            let reason = "what AdamW will make of a mean gradient that is on its way is all that can be foreseen: take apply = \"inner\" \
                          and overlap = 1, or look_ahead = false";
            return Err(ConfigError::value("sync.look_ahead", self.look_ahead, reason));
        }
        if !self.source.is_gradient() {
            return self.check_kept();
        }
        if self.late != LateRule::Keep {
            let reason =
                "without local training a result meets nothing: take source = \"delta\", or late = \"keep\"";
            return Err(ConfigError::value("sync.late", shown(&self.late), reason));
        }
        let warmup_every = if self.has_warmup() { self.warmup_every } else { 1 };
        for (key, every) in [("sync.every", self.every), ("sync.warmup_every", warmup_every)] {
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

    /// Local parameters keep what error feedback holds, position by position.
    fn check_kept(&self) -> Result<(), ConfigError> {
        let reason = if self.late != LateRule::KeepUnsent {
            return Ok(());
        } else if !self.has_residual() {
            "without error feedback nothing is kept: take an error_decay above 0, or late = \"keep\""
        } else if self.transform != Transform::None {
            "error feedback holds components of tiles, and not changes of parameters: take transform = \"none\", or late = \"keep\""
        } else {
            return Ok(());
        };
        Err(ConfigError::value("sync.late", shown(&self.late), reason))
    }

    /// A second moment can be frozen only if it was learnt together.
    fn check_inner(&self) -> Result<(), ConfigError> {
        let refuse =
            |key, value: &dyn ToString, reason| Err(ConfigError::value(key, value.to_string(), reason));
        if self.inner == InnerRule::Muon && self.source != Source::Delta {
            let reason = "nobody trains by itself with gradients and momenta: take train.optimiser = \"muon\" in its place, or source = \"delta\"";
            return refuse("sync.inner", &"muon", reason);
        }
        if self.inner != InnerRule::FrozenAdamw {
            return Ok(());
        }
        if self.source != Source::Delta {
            let reason = "nobody trains by itself with gradients and momenta: take inner = \"adamw\", or source = \"delta\"";
            refuse("sync.inner", &"frozen-adamw", reason)
        } else if !self.has_warmup() {
            let reason = "AdamW's second moment is learnt in the warm-up and frozen after it: take about 0.1";
            refuse("sync.warmup_share", &self.warmup_share, reason)
        } else if self.warmup_every != 1 {
            let reason = "this warm-up exchanges gradients after each step: take 1, or inner = \"adamw\"";
            refuse("sync.warmup_every", &self.warmup_every, reason)
        } else if self.outer_momentum != 0.0 {
            let reason =
                "local steps have momentum already, and all of them count: take 0, or inner = \"adamw\"";
            refuse("sync.outer_momentum", &self.outer_momentum, reason)
        } else if self.transform != Transform::None {
            refuse("sync.transform", &"dct", "take \"none\", or inner = \"adamw\"")
        } else {
            Ok(())
        }
    }

    /// Bits may adapt only in chains that do not depend on them.
    fn check_adapt(&self) -> Result<(), ConfigError> {
        if !(0.1..=1.0).contains(&self.target_utilisation) {
            let reason = "must lie between 0.1 and 1";
            return Err(ConfigError::value("sync.target_utilisation", self.target_utilisation, reason));
        }
        if !(self.bits_min > 0.0 && self.bits_min <= self.bits_max && self.bits_max <= 64.0) {
            let reason = format!(
                "must be more than 0 and at most sync.bits_max = {}, which is 64 at most",
                self.bits_max
            );
            return Err(ConfigError::value("sync.bits_min", self.bits_min, reason));
        }
        if !(self.backlog_max == 0.0 || (1.0..=1e6).contains(&self.backlog_max)) {
            let reason = "must be 0 (no bound), or 1 to 1000000 exchanges of a fragment";
            return Err(ConfigError::value("sync.backlog_max", self.backlog_max, reason));
        }
        if !self.adapt {
            return Ok(());
        }
        if self.every_max < self.every {
            let reason = format!("must be at least sync.every = {}", self.every);
            return Err(ConfigError::value("sync.every_max", self.every_max, reason));
        }
        let reason = if self.rank > 0 || self.random_keep < self.chunk || self.transform != Transform::None {
            "top-k and number formats follow the link, masks, transforms and ranks do not: leave those out, or take adapt = false"
        } else if self.source != Source::Delta && self.source != Source::Gradient {
            "gradients and deltas may have any number of bits, momenta may not: take another sync.source, or adapt = false"
        } else if !self.has_residual() {
            "what few bits leave out would be lost in every round: take an error_decay above 0, or adapt = false"
        } else if self.overlap == 0 {
            "without overlap there is no time in which communication costs nothing: take overlap = every, or adapt = false"
        } else {
            return Ok(());
        };
        Err(ConfigError::value("sync.adapt", self.adapt, reason))
    }

    /// Factors keep their error in a residual of their own, and the second exchange needs the result of the
    /// first.
    fn check_rank(&self) -> Result<(), ConfigError> {
        if self.rank == 0 {
            return Ok(());
        }
        if self.rank > RANK_MAX {
            return Err(ConfigError::value("sync.rank", self.rank, format!("must be at most {RANK_MAX}")));
        }
        let refused = if self.source != Source::Gradient {
            "products stand for gradients: take source = \"gradient\", or rank = 0"
        } else if self.overlap > 0 {
            "a step's second exchange needs the outcome of its first: take overlap = 0, or rank = 0"
        } else if self.selection != SelectionRule::All {
            "factors are small and are sent whole: take selection = \"all\", or rank = 0"
        } else if self.has_residual() {
            "what factors leave out is kept in full where gradients are made: take error_decay = 0, or rank = 0"
        } else if self.transform != Transform::None {
            "factors have no tiles: take transform = \"none\", or rank = 0"
        } else if self.reads_result_keep() && self.result_keep < self.chunk {
            "what an owner leaves out of a mean of factors is kept by nobody: take result_keep = chunk, or rank = 0"
        } else if self.result != ResultForm::Bundle && self.result_values.sends_means() {
            "what few bits take away from a mean of factors is kept by nobody: take result_values with more bits, or rank = 0"
        } else {
            return Ok(());
        };
        Err(ConfigError::value("sync.rank", self.rank, refused))
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
            ("sync.random_keep", self.random_keep),
            ("sync.warmup_keep", self.warmup_keep),
            ("sync.result_keep", self.result_keep),
        ] {
            if keep == 0 || keep > self.chunk {
                let reason = format!("must lie between 1 and sync.chunk = {}", self.chunk);
                return Err(ConfigError::value(key, keep, reason));
            }
        }
        if self.transform == Transform::Dct {
            self.check_transform()?;
        }
        if self.rounding == Rounding::Stochastic && !self.values.rounds_at_random() {
            let fitting = ValueFormat::names_of(ValueFormat::rounds_at_random);
            let reason = format!("only {fitting} have a level on either side of every value");
            return Err(ConfigError::value("sync.rounding", "stochastic", reason));
        }
        let fragment = self.fragment_values;
        if fragment == 0 || !fragment.is_multiple_of(self.chunk) || fragment > FRAGMENT_VALUES_MAX {
            let reason =
                format!("must be a multiple of sync.chunk = {} up to {FRAGMENT_VALUES_MAX}", self.chunk);
            return Err(ConfigError::value("sync.fragment_values", fragment, reason));
        }
        Ok(())
    }

    fn check_transform(&self) -> Result<(), ConfigError> {
        let reason = if self.source == Source::CorrectedGradient {
            "momentum is forgotten at the positions that were sent, and a transform sends none, so all momentum would be lost in every \
             round: take transform = \"none\", or source = \"gradient\""
        } else if self.random_keep < self.chunk {
            "a random mask tears the tiles apart: take random_keep = chunk, or transform = \"none\""
        } else if self.groups > 1 {
            "tiles of all matrices come before the rest of the model, so stretches of it cannot take turns: take groups = 1, or \
             transform = \"none\""
        } else if !self.fragment_values.is_multiple_of(TILE_VALUES) {
            "fragments are made of whole tiles: take a multiple of 4096 for fragment_values, or transform = \"none\""
        } else if self.result == ResultForm::Union
            || self.result == ResultForm::Mean && self.result_keep < self.chunk
        {
            "an owner would select of values that have been transformed back: take result = \"bundle\", or \"mean\" with \
             result_keep = chunk"
        } else {
            return Ok(());
        };
        Err(ConfigError::value("sync.transform", "dct", reason))
    }

    /// The change of a parameter must be known where it is selected, and nothing may be lost.
    fn check_visible(&self) -> Result<(), ConfigError> {
        if self.selection != SelectionRule::Visible {
            return Ok(());
        }
        let reason = if self.source != Source::Delta {
            "of a gradient or momentum it is not known how far it moves a parameter: take source = \"delta\", or \"top-k\""
        } else if self.outer_momentum != 0.0 {
            "with momentum it is not known how far a change moves a parameter: take outer_momentum = 0, or \"top-k\""
        } else if self.transform != Transform::None || self.random_keep < self.chunk {
            "changes are compared with the parameters, and not after a transform or mask: leave that out, or take \"top-k\""
        } else if self.error_decay != 1.0 {
            "changes wait until they are large enough, and must not shrink: take error_decay = 1, or \"top-k\""
        } else {
            return Ok(());
        };
        Err(ConfigError::value("sync.selection", "visible", reason))
    }

    /// Unsent values must be kept, or sparse updates and signs lose most of the training.
    fn check_losses(&self) -> Result<(), ConfigError> {
        let leaves_out = self.leaves_values_out();
        if (leaves_out || self.warmup_selects()) && !self.has_residual() {
            let reason = "what is not selected would be lost in every round: take more than 0, or selection = \"all\" and \
                          warmup_keep = chunk";
            return Err(ConfigError::value("sync.error_decay", self.error_decay, reason));
        }
        let opens_with = self.has_warmup().then_some(("warmup_values", self.warmup_values));
        let mut lossy = [("values", self.values)].into_iter().chain(opens_with);
        if let Some((key, format)) = lossy.find(|(_, format)| format.sends_means() && !self.has_residual()) {
            let reason = format!(
                "at {format} the rounding is as large as the update and would be lost in every round: take more than 0, or \
                 {key} with more bits"
            );
            return Err(ConfigError::value("sync.error_decay", self.error_decay, reason));
        }
        if self.result == ResultForm::Bundle && self.values.is_exact() && self.selection == SelectionRule::All
        {
            let reason = "every contribution in f32 goes to every site: take result = \"mean\", which loses nothing in f32";
            return Err(ConfigError::value("sync.result", "bundle", reason));
        }
        if self.result == ResultForm::Union {
            let reason = if !leaves_out {
                "all sites send all values, so a union holds all of them as well: take result = \"mean\""
            } else if self.adapt {
                "how many values a union has depends on what sites send, and not on the link: take result = \"mean\", or adapt = false"
            } else {
                return Ok(());
            };
            return Err(ConfigError::value("sync.result", "union", reason));
        }
        Ok(())
    }

    /// Checks the owner's guards: refusal, and robust means.
    fn check_guard(&self) -> Result<(), ConfigError> {
        if self.norm_limit != 0.0 && !(self.norm_limit >= 1.0 && self.norm_limit.is_finite()) {
            let reason = "an update that is no larger than the others' must not be refused: take 1 or more (20 leaves room for what \
                          deltas do by themselves, 200 for gradients), or 0, which refuses none for its norm";
            return Err(ConfigError::value("sync.norm_limit", self.norm_limit, reason));
        }
        positive("sync.trim", self.trim)?;
        if self.robust != RobustRule::None && self.result == ResultForm::Bundle {
            let reason = "the contributions of a bundle go to everybody as they came; only an owner that takes the mean can do \
                          this: take result = \"mean\", or \"none\"";
            return Err(ConfigError::value("sync.robust", shown(&self.robust), reason));
        }
        let selects = self.adapt || self.selection != SelectionRule::All || self.warmup_selects();
        if self.robust == RobustRule::Trim && selects {
            let reason = "a value that few sites select is always the largest or smallest of its coordinate, so that trimming \
                          would leave out most of what is sent: take \"clip\", or selection = \"all\" and warmup_keep = chunk with \
                          adapt = false";
            return Err(ConfigError::value("sync.robust", "trim", reason));
        }
        Ok(())
    }

    fn check_rates(&self) -> Result<(), ConfigError> {
        for (key, value, low, high) in [
            ("sync.warmup_share", self.warmup_share as f32, 0.0, 1.0),
            ("sync.warmup_share_max", self.warmup_share_max as f32, 0.0, 1.0),
            ("sync.early_share", self.early_share as f32, 0.0, 1.0),
            ("sync.momentum", self.momentum, 0.0, 0.999),
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
