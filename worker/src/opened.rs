//! The model that `worker sample` and `worker evaluate` use, with its tokenizer.

use std::num::NonZeroU32;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use longhaul_checkpoint::{DescribedModel, OpenedModel, Weights, describe_stored, open_weights};
use longhaul_common::config::DataConfig;
use longhaul_data::Tokenizer;

use crate::cli::{CheckpointArgs, ComputeArgs};

impl CheckpointArgs {
    /// Describes the whole model, and reads no weights.
    ///
    /// # Errors
    /// It is missing, or not supported.
    pub(crate) fn describe(&self) -> Result<DescribedModel> {
        describe_stored(&self.checkpoint, self.base.as_deref())
    }

    /// Opens the checkpoint as a whole model.
    ///
    /// # Errors
    /// It is missing or damaged, or its pretrained model is.
    pub(crate) fn open(&self) -> Result<OpenedModel> {
        let base = self.base.as_deref();
        open_weights(&self.checkpoint, base, Weights::averaged_if(self.ema))?.merged(base)
    }
}

impl ComputeArgs {
    /// Returns the CPU threads of the device; `None`: one per core.
    pub(crate) fn threads(&self) -> Option<NonZeroU32> {
        self.threads.and_then(|threads| NonZeroU32::new(threads.into()))
    }
}

/// Loads the tokenizer of a checkpoint.
///
/// # Errors
/// It is damaged, or knows more tokens than the model.
pub(crate) fn tokenizer_of(model: &OpenedModel) -> Result<Tokenizer> {
    let shown = model.path.display();
    let file = match &model.tokenizer {
        Some(file) => file.to_str().with_context(|| format!("the path of {shown} is not UTF-8"))?,
        None => DataConfig::BYTES,
    };
    let tokenizer = Tokenizer::load(file)?;
    let (known, tokens) = (model.spec.vocabulary, tokenizer.vocabulary());
    ensure!(
        tokens <= known,
        "the model knows {known} tokens, its tokenizer {tokens}: tokenizer.json is missing from {shown}"
    );
    Ok(tokenizer)
}

/// Returns the folder of a model's tokenizer, which names its special tokens.
pub(crate) fn beside_tokenizer(model: &OpenedModel) -> Option<&Path> {
    model.tokenizer.as_deref().and_then(Path::parent)
}
