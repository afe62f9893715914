//! Losses of single samples, and the agreement on them within a replica.

use tch::{Kind, Tensor};

use super::chunk::PassData;
use super::evaluation::inputs;
use super::pipeline::Gift;
use super::{Engine, EngineError, to_host};
use crate::Batch;

impl Engine {
    /// Returns the mean cross entropy of each sample of `batch`, in nats per token or image. In a pipeline, only on the last rank; otherwise empty.
    ///
    /// # Errors
    /// libtorch fails, or another worker of this replica does.
    pub fn sample_losses(&self, batch: &Batch) -> Result<Vec<f32>, EngineError> {
        let mut losses = Vec::with_capacity(batch.sequences());
        if self.rank.is_some() {
            self.explained(self.sample_losses_in_pipeline(batch, &mut losses))?;
            return Ok(losses);
        }
        let model = self.whole()?;
        for micro in batch.micro_batches(self.settings.micro_batch) {
            let means = tch::no_grad(|| {
                let tokens = micro.to_tensor(self.device)?; // [B, T + 1]
                if let Some(labels) = micro.labels(self.device)? {
                    let data = PassData::of(&micro, self.parameters.subspace(), self.device)?;
                    let x = model.forward_in(&inputs(&micro, &tokens)?, data.pass())?; // [B, T, D]
                    return model.losses_of_labels(&x, &labels); // [B]
                }
                model.token_losses(&tokens)?.f_mean_dim([1].as_slice(), false, Kind::Float) // [B]
            });
            append(&self.explained(means.map_err(EngineError::from))?, &mut losses)?;
        }
        Ok(losses)
    }

    fn sample_losses_in_pipeline(&self, batch: &Batch, losses: &mut Vec<f32>) -> Result<(), EngineError> {
        self.through_pipeline(
            batch.micro_batches(self.settings.micro_batch).collect(),
            &mut |model, x, micro| {
                let means = match micro.labels(self.device)? {
                    Some(labels) => model.losses_of_labels(x, &labels)?,
                    None => model.losses_behind(x, &micro.to_tensor(self.device)?)?,
                };
                append(&means, losses)
            },
        )
    }

    /// Replaces these values on all workers of this replica, of equal number, by those of the deciding worker: the first one with the last layer, and so the
    /// losses. Alone, an engine keeps its own.
    ///
    /// # Errors
    /// Contact with another worker is lost.
    pub fn agree(&self, values: &mut [f32]) -> Result<(), EngineError> {
        self.hand_on(values)?;
        let Some(rank) = &self.rank else { return Ok(()) };
        rank.pipe().begin();
        let (_, last) = rank.ends();
        if rank.is(last) {
            let values = Tensor::f_from_slice(values)?;
            return (0..last).try_for_each(|to| rank.pipe().give(to, Gift::Values, &values));
        }
        let told = rank.pipe().take(last, Gift::Values, &[values.len() as i64])?;
        Ok(told.f_copy_data(values, values.len())?)
    }
}

fn append(tensor: &Tensor, to: &mut Vec<f32>) -> Result<(), EngineError> {
    let mut values = Vec::new();
    to_host(tensor, &mut values)?;
    to.append(&mut values);
    Ok(())
}

#[cfg(test)]
mod tests;
