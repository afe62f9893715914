//! Adapters and frozen parameters, with the rest of the run.

use crate::config::{ConfigError, RunConfig, SelectionRule};
use crate::model::ModelSpec;

impl RunConfig {
    /// Refuses adapters and frozen parameters where the rest of the run cannot honour them.
    pub(super) fn check_tuning(&self) -> Result<(), ConfigError> {
        let train = &self.train;
        let (key, value) = match (&train.lora, &train.unfrozen_parameters) {
            (Some(lora), _) => {
                lora.check()?;
                ("train.lora.rank", lora.rank.to_string())
            }
            (None, Some(unfrozen)) => ("train.unfrozen_parameters", format!("{unfrozen:?}")),
            (None, None) => return Ok(()),
        };
        let refused = [
            (self.model.kind.is_of_images(), "is for language models: remove it"),
            (self.model.from.is_none(), "trains a part of a pretrained model: name its folder in model.from"),
            (
                self.parallel.is_shared(),
                "does not work in tensor groups, whose members share each matrix: take parallel.tensor = 1",
            ),
            (
                train.sparse_backward.is_some(),
                "computes few weight gradients already: remove [train.sparse_backward]",
            ),
            (
                self.sync.selection == SelectionRule::Columns,
                "has no column gradients: take another sync.selection",
            ),
        ];
        if let Some((_, reason)) = refused.into_iter().find(|(is_refused, _)| *is_refused) {
            return Err(ConfigError::value(key, value, reason));
        }
        // Names the patterns that match nothing.
        let spec = ModelSpec::of(self, 0)?;
        let divided = |spec: &ModelSpec| spec.parts(&self.parallel, self.data.sequence_length).is_some();
        if self.parallel.stages > 1 && divided(&spec.untuned()) && !divided(&spec) {
            let reason =
                "leaves a stage with nothing to train: take fewer parallel.stages or other parallel.blocks";
            return Err(ConfigError::value(key, value, reason));
        }
        Ok(())
    }
}
