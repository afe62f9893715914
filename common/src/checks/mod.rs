//! Parsing and checking of a whole `run.toml`, including model and pipeline.

mod base;
mod columns;
mod encoder_head;
mod parallel;
mod redundant;
mod sparse_backward;
mod tuning;

pub use base::{BaseDescription, DropoutPlace, NamedDropout};

use crate::config::{ConfigError, RunConfig, given_keys, read_toml, with_new_names};

impl RunConfig {
    /// Parses and checks a `run.toml`.
    ///
    /// # Errors
    /// [`ConfigError`] names the key and the remedy.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let text = with_new_names(text);
        let config = read_toml::<Self>(&text).map_err(ConfigError::of_run)?;
        let given = given_keys(&text);
        let config =
            config.with_classes().with_masking().with_optimiser(&given).with_redundant_warmup(&given);
        config.check()?;
        Ok(config)
    }

    /// Checks the combinations of keys and the ranges of values.
    ///
    /// # Errors
    /// Names the first key that cannot be honoured, and the remedy.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_run()?;
        self.check_base()?;
        self.check_model()?;
        self.check_encoder_head()?;
        self.check_train()?;
        self.check_tuning()?;
        let sparse = self.train.sparse_backward.as_ref();
        sparse.map_or(Ok(()), |sparse| sparse.check_for(self))?;
        self.parallel.check_for(self)?;
        self.sync.check()?;
        self.sync.check_for(self.replicas())?;
        self.sync.check_warmup(self.model.from.is_some())?;
        self.check_redundant()?;
        self.check_optimiser()?;
        self.check_columns()?;
        self.privacy.as_ref().map_or(Ok(()), |privacy| privacy.check(&self.sync))?;
        self.secure_aggregation.as_ref().map_or(Ok(()), |masks| masks.check(&self.sync))
    }
}
