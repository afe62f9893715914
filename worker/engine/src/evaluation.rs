//! Evaluation of the model on held-out samples.

use std::borrow::Borrow;

use longhaul_common::model::Evaluation;
use tch::{TchError, Tensor};

use super::chunk::PassData;
use super::{Engine, EngineError};
use crate::Batch;
use crate::batch::MicroBatch;

/// Returns the inputs [B, T] of a micro-batch, given its samples.
pub(super) fn inputs(micro: &MicroBatch<'_>, samples: &Tensor) -> Result<Tensor, TchError> {
    samples.f_narrow(1, 0, micro.length() as i64)
}

fn number(count: Option<Tensor>) -> Result<Option<i64>, TchError> {
    count.map(|count| count.f_int64_value(&[])).transpose()
}

impl Engine {
    /// Returns the mean cross entropy over all tokens of `batches`, or all targets of rows and masked sequences, in nats, or over all images or labelled
    /// texts with their accuracy; `None` without any.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn evaluate(
        &self,
        batches: impl IntoIterator<Item: Borrow<Batch>>,
    ) -> Result<Option<Evaluation>, EngineError> {
        if self.rank.is_some() {
            let loss = self.explained(self.evaluate_in_pipeline(batches))?;
            return Ok(loss.map(|loss| Evaluation { loss, accuracy: None }));
        }
        let model = self.whole()?;
        let (mut sum, mut hits, mut count) = (0.0, None, 0);
        for batch in batches {
            for micro in batch.borrow().micro_batches(self.settings.micro_batch) {
                let judged = tch::no_grad(|| {
                    let samples = micro.to_tensor(self.device)?;
                    if let Some(labels) = micro.labels(self.device)? {
                        let data = PassData::of(&micro, self.parameters.subspace(), self.device)?;
                        let x = model.forward_in(&inputs(&micro, &samples)?, data.pass())?; // [B, T, D]
                        let (loss, right) = model.judge_labels(&x, &labels)?;
                        return Ok((loss.f_double_value(&[])?, number(right)?));
                    }
                    let (loss, right) = model.judge(&samples)?;
                    Ok::<_, TchError>((loss.f_double_value(&[])? * micro.sequences() as f64, number(right)?))
                });
                let (loss, right) = self.explained(judged.map_err(EngineError::from))?;
                sum += loss;
                hits = right.map(|right| hits.unwrap_or(0) + right);
                count += micro.losses();
            }
        }
        let share = |sum: f64| (sum / count as f64) as f32;
        let accuracy = hits.map(|hits| share(hits as f64));
        Ok((count > 0).then(|| Evaluation { loss: share(sum), accuracy }))
    }
}
