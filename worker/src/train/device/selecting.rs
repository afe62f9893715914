//! The samples of a step, and the selection among them.

use std::time::Instant;

use anyhow::Result;
use longhaul_common::id::Round;
use longhaul_data::{ReadRequest, STEPS_AHEAD};
use longhaul_engine::Batch;
use longhaul_engine::StepOutcome;
use longhaul_member::activity::Activity;

use super::Device;
use crate::train::selection::Candidate;

/// The training input of a step.
pub(super) struct Samples {
    /// The sequences.
    pub batch: Batch,
    /// The number of samples that the update counts for; for conversations, of trained tokens, so that the mean over workers is one over tokens.
    pub counted: usize,
    /// Tokens examined.
    pub tokens: u64,
    /// The samples, if selected.
    selected: Vec<Candidate>,
}

impl Device<'_> {
    /// Returns this worker's positions of a step.
    pub(super) fn positions(&self, step: u64) -> Vec<u64> {
        self.barrier.positions(step, self.worker).into_iter().flatten().collect()
    }

    /// Returns the positions to compute of a step: this worker's, or all of them in a redundant warm-up.
    pub(super) fn computed(&self, step: u64, is_warmup: bool, own: &[u64]) -> Vec<u64> {
        match self.config.sync.is_redundant_in(is_warmup) {
            true => self.barrier.all_positions(step).into_iter().flatten().collect(),
            false => own.to_vec(),
        }
    }

    /// Returns whether the timeline assigns exactly the trained positions from `step` on.
    pub(super) fn has_trained(&self, step: u64, trained: &[Vec<u64>]) -> bool {
        (step..).zip(trained).all(|(step, positions)| self.positions(step) == *positions)
    }

    /// Reads the samples of a step. The reader reads ahead along the timeline; a change of the timeline discards its data.
    #[allow(clippy::disallowed_methods, reason = "measures what the device waits for data")]
    pub(super) fn batch(&self, round: Round, step: u64, positions: &[u64]) -> Result<Batch> {
        let _waiting = self.progress.begin(Activity::WaitForData { round, step });
        let began = Instant::now();
        let micro_batch = self.config.train.micro_batch as usize;
        let end = step.saturating_add(STEPS_AHEAD as u64).min(self.config.run.steps);
        let schedule = self.schedule();
        let is_warmup = |step| schedule.is_warmup(schedule.round_of(step));
        let after = (step + 1..end).map(|step| self.computed(step, is_warmup(step), &self.positions(step)));
        let steps = std::iter::once(positions.to_vec()).chain(after);
        let batch = self.read_ahead.take(steps.map(|positions| ReadRequest { positions, micro_batch }))?;
        self.progress.waited_for_data(began.elapsed());
        Ok(batch)
    }

    /// Returns the number of samples, or of trained tokens of conversations, in these steps.
    pub(super) fn counted_in(&self, steps: &[Vec<u64>]) -> Result<usize> {
        if !self.config.data.has_labels() {
            return Ok(steps.iter().map(Vec::len).sum());
        }
        let seed = self.config.run.seed;
        let losses = |positions: &Vec<u64>| Ok(self.data.batch(positions.iter().copied(), seed)?.losses());
        steps.iter().map(losses).sum()
    }

    /// Returns all samples at these positions, or the selected ones: the same on all workers of a copy of the model.
    pub(super) fn samples(&mut self, all: Batch, positions: &[u64]) -> Result<Samples> {
        let seed = self.config.run.seed;
        let (given, tokens) = (positions.len(), all.tokens());
        let Some(selector) = self.selector.as_mut().filter(|_| given > 0) else {
            let counted = all.losses();
            return Ok(Samples { batch: all, counted, tokens, selected: Vec::new() });
        };
        let visit = |&position| Candidate { position, visit: self.data.visit(position, seed) };
        let candidates: Vec<Candidate> = positions.iter().map(visit).collect();
        let mut wanting = selector.wanting(&candidates);
        if selector.remembers() {
            self.engine.agree(&mut wanting)?;
        }
        let unknown = all.selected(&wanting);
        let losses = match unknown.sequences() {
            0 => Vec::new(),
            _ => self.engine.sample_losses(&unknown)?,
        };
        let mut weights = selector.choose(&candidates, &wanting, &losses);
        if selector.judges(&candidates) {
            self.engine.agree(&mut weights)?;
        }
        let selected = candidates.iter().zip(&weights).filter(|(_, weight)| **weight > 0.0);
        let selected: Vec<Candidate> = selected.map(|(candidate, _)| *candidate).collect();
        let counted = selector.counted(given, selected.len());
        Ok(Samples { batch: all.selected(&weights), counted, tokens, selected })
    }

    /// Passes the losses of a step to the selector.
    pub(super) fn learn(&mut self, samples: &Samples, outcome: &StepOutcome) {
        if let Some(selector) = &mut self.selector {
            selector.learn(&samples.selected, &outcome.losses);
        }
    }
}
