//! Evaluation on held-out samples.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use longhaul_common::id::Round;
use longhaul_common::model::Evaluation;
use longhaul_engine::Batch;
use longhaul_member::activity::Activity;

use super::Device;

impl Device<'_> {
    pub(super) fn evaluate_after(&mut self, round: Round) -> Result<Option<Evaluation>> {
        if self.config.evaluates_before(round.next()) { self.evaluate() } else { Ok(None) }
    }

    #[allow(clippy::disallowed_methods, reason = "measures what the device waits for data")]
    pub(super) fn evaluate(&mut self) -> Result<Option<Evaluation>> {
        let _evaluating = self.progress.begin(Activity::Evaluate);
        let train = &self.config.train;
        let mut batches = self.data.validation(train.evaluate_batches as usize, train.micro_batch as usize);
        let (mut waited, mut failed) = (Duration::ZERO, None);
        let next = || {
            let began = Instant::now();
            let batch = batches.next().transpose();
            waited += began.elapsed();
            batch.map(|samples| samples.map(Batch::from)).unwrap_or_else(|error| {
                failed = Some(error);
                None
            })
        };
        let evaluation = self.engine.evaluate(std::iter::from_fn(next));
        self.progress.waited_for_data(waited);
        failed.map_or(Ok(()), Err)?;
        evaluation.context("evaluate on the held-out samples")
    }
}
