//! Losses of single samples, and what the workers of a copy of the model agree on because of them.

use tch::{Kind, Tensor};

use super::pipeline::Gift;
use super::{Engine, EngineError, to_host};
use crate::Batch;

impl Engine {
    /// Mean cross entropy of each sample of `batch`, in nats a token, or an image. In a pipeline the last rank alone gets to know them, and the others get none.
    ///
    /// # Errors
    /// Where libtorch fails; where another worker of this copy of the model does.
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
                model.token_losses(&tokens)?.f_mean_dim([1].as_slice(), false, Kind::Float) // [B]
            });
            append(&self.explained(means.map_err(EngineError::from))?, &mut losses)?;
        }
        Ok(losses)
    }

    fn sample_losses_in_pipeline(&self, batch: &Batch, losses: &mut Vec<f32>) -> Result<(), EngineError> {
        self.through_pipeline(
            batch.micro_batches(self.settings.micro_batch).collect(),
            &mut |model, x, micro| append(&model.losses_behind(x, &micro.to_tensor(self.device)?)?, losses),
        )
    }

    /// Replaces these values on all workers of this copy of the model, which have as many each, by those of the one that decides: the first of those that have its last
    /// layer, and so the losses. Alone, an engine keeps its own.
    ///
    /// # Errors
    /// Where another worker cannot be heard.
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
