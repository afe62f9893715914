//! Evaluation of the model on held-out samples.

use std::borrow::Borrow;

use longhaul_common::model::Evaluation;
use tch::{TchError, Tensor};

use super::{Engine, EngineError};
use crate::Batch;

impl Engine {
    /// Returns the mean cross entropy over all tokens of `batches`, in nats, or over all images with their accuracy; `None` without any.
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
        let (mut sum, mut hits, mut samples) = (0.0, None, 0);
        for batch in batches {
            for micro in batch.borrow().micro_batches(self.settings.micro_batch) {
                let judged = tch::no_grad(|| {
                    let (loss, right) = model.judge(&micro.to_tensor(self.device)?)?;
                    let right = right.as_ref().map(|right: &Tensor| right.f_int64_value(&[])).transpose()?;
                    Ok::<_, TchError>((loss.f_double_value(&[])?, right))
                });
                let (loss, right) = self.explained(judged.map_err(EngineError::from))?;
                sum += loss * micro.sequences() as f64;
                hits = right.map(|right| hits.unwrap_or(0) + right);
                samples += micro.sequences();
            }
        }
        let share = |sum: f64| (sum / samples as f64) as f32;
        let accuracy = hits.map(|hits| share(hits as f64));
        Ok((samples > 0).then(|| Evaluation { loss: share(sum), accuracy }))
    }
}
