//! Accuracy and loss of a classifier of texts, by the code of a run's validation.

use std::num::NonZeroU32;

use anyhow::{Context, Result};
use longhaul_checkpoint::OpenedModel;
use longhaul_common::config::{Optimiser, TrainConfig};
use longhaul_data::Tokenizer;
use longhaul_data::tasks::{LabelledBatch, LabelledCounts, LabelledFile, Share};
use longhaul_engine::models::FrozenWeights;
use longhaul_engine::{Batch, Engine};
use tch::Device;

use super::judge::Stopped;
use super::outcome::{Outcome, Scores};
use super::progress::Progress;

/// Texts in a pass, and between two looks at the signal.
const MICRO_BATCH: u32 = 16;

/// A classifier of texts.
pub(super) struct Classifier {
    engine: Engine,
    tokenizer: Tokenizer,
}

impl Classifier {
    /// Creates it on a device.
    ///
    /// # Errors
    /// libtorch fails: out of memory, mostly.
    pub(super) fn new(
        model: &OpenedModel,
        tokenizer: Tokenizer,
        device: Device,
        threads: Option<NonZeroU32>,
    ) -> Result<Self> {
        // Nothing is updated: this optimiser has the least memory.
        let train = TrainConfig {
            micro_batch: MICRO_BATCH,
            optimiser: Optimiser::Adafactor,
            ..TrainConfig::default()
        };
        let frozen = FrozenWeights::of(&model.spec, device);
        let engine = Engine::with_parameters(&model.spec, &train, 1, &model.parameters, frozen, threads)?;
        Ok(Self { engine, tokenizer })
    }

    /// Judges the texts of a file, until it is to stop.
    ///
    /// # Errors
    /// A text cannot be tokenised; or libtorch fails.
    pub(super) fn judge(&self, file: &LabelledFile, stopped: Stopped<'_>) -> Result<Outcome> {
        let (all, mut done, mut cut) = (file.count(), 0, 0);
        let (mut right, mut nats) = (Share::default(), 0.0);
        let mut counts = LabelledCounts::default();
        let mut progress = Progress::new(&file.path, "texts", all);
        while done < all && !stopped() {
            let end = all.min(done + MICRO_BATCH as usize);
            let LabelledBatch { batch, cut: own, counts: found } = file.batch(done..end, &self.tokenizer)?;
            counts.add(&found);
            let count = (end - done) as f64;
            let found = self.engine.evaluate([&Batch::from(batch)])?.context("a batch has texts")?;
            let accuracy = found.accuracy.context("a classifier has an accuracy")?;
            let hits = (f64::from(accuracy) * count).round() as u64;
            right.extend(Share { hits, count: (end - done) as u64 });
            nats += f64::from(found.loss) * count;
            (done, cut) = (end, cut + own);
            progress.show(done);
        }
        self.tell(file, &counts);
        let scores = Scores::Classes { right, nats };
        Ok(Outcome { scores, files: vec![file.path.clone()], done, all, cut })
    }
    /// Tells of odd texts, unknown tokens, and control tokens in texts.
    fn tell(&self, file: &LabelledFile, counts: &LabelledCounts) {
        let (odd, unknown) = (counts.odd(), counts.unknown(&self.tokenizer));
        let notes = file.control_tokens(&self.tokenizer);
        let told = [
            (odd.count() > 0).then(|| odd.to_string()),
            (unknown.count() > 0).then(|| unknown.to_string()),
            (!notes.are_none()).then(|| notes.to_string()),
        ];
        for told in told.into_iter().flatten() {
            tracing::warn!(file = %file.path.display(), "{told}");
        }
    }
}
