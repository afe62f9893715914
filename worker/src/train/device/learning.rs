//! The update of a step: a gradient or a local step.

use anyhow::Result;
use longhaul_common::config::{InnerRule, SelectionRule, Source};
use longhaul_common::id::Round;
use longhaul_engine::StepOutcome;
use longhaul_member::message::{FinishedPart, FromDevice};

use super::selecting::Samples;
use super::{Device, Stretch};
use crate::train::fragments::FinishedFragments;

impl Device<'_> {
    /// Follows the run's strategy. A gradient is then in `gradient`, or in `stretch` for column gradients.
    pub(super) fn learn_from(
        &mut self,
        stretch: &mut Stretch,
        step: u64,
        samples: &Samples,
        gradient: &mut Vec<f32>,
    ) -> Result<StepOutcome> {
        let batch = &samples.batch;
        let is_warmup = stretch.schedule.is_warmup(stretch.round);
        Ok(match self.config.sync.source_in(is_warmup) {
            Source::Gradient if self.config.sync.streams_in(stretch.round, is_warmup) => {
                self.stream_gradient(stretch.round, samples, gradient)?
            }
            Source::Gradient if self.config.sync.selection == SelectionRule::Columns => {
                let (outcome, columns) = self.engine.column_gradient(batch)?;
                stretch.columns = Some(columns);
                outcome
            }
            Source::Gradient => self.engine.gradient(batch, gradient)?,
            Source::CorrectedGradient => self.engine.clipped_gradient(batch, self.local_clip(), gradient)?,
            Source::Momentum => self.engine.momentum(batch, gradient)?,
            Source::Delta if self.config.sync.inner == InnerRule::FrozenAdamw => {
                self.engine.frozen_step(step, batch, self.lone_clip())?
            }
            Source::Delta => self.engine.train_step(step, batch)?,
        })
    }

    /// Streams the gradient of a one-step round: fragments leave during back-propagation.
    fn stream_gradient(
        &mut self,
        round: Round,
        samples: &Samples,
        gradient: &mut Vec<f32>,
    ) -> Result<StepOutcome> {
        let sizes: Vec<usize> = self.engine.tensor_sizes().collect();
        let mut fragments = FinishedFragments::new(self.layout(), sizes);
        let (outbox, weight) = (self.outbox, samples.counted as u32);
        let mut arrived = |tensor: usize, gradient: &[f32]| {
            for stretch in fragments.finish(tensor) {
                let (start, values) = (stretch.start, gradient[stretch].to_vec());
                // If the synchroniser has stopped, the contribution fails later.
                let _ = outbox(FromDevice::Finished(FinishedPart { round, weight, start, values }));
            }
        };
        Ok(self.engine.gradient_by_tensor(&samples.batch, gradient, &mut arrived)?)
    }

    /// The clipping norm of a member, so that the sum over all has at most the configured norm (DGC: Lin et al. 2018, section 3.3).
    pub(super) fn local_clip(&self) -> f64 {
        self.config.train.gradient_clip / f64::from(self.config.replicas()).sqrt()
    }

    /// The clipping norm of a member's own gradient, where the mean over all is clipped to the configured norm. Gradients of few samples are
    /// mostly noise, whose norm falls with the square root of their number.
    pub(super) fn lone_clip(&self) -> f64 {
        self.config.train.gradient_clip * f64::from(self.config.replicas()).sqrt()
    }
}
