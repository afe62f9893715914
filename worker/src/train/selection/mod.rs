//! Selection of training samples (Jiang et al. 2019, arXiv 1910.00762). Design: `engine/docs/selection.md`.

mod history;
mod known;

use longhaul_common::config::SelectiveBackwardConfig;
use longhaul_common::sampler::chance_at;
use longhaul_data::Visit;
use longhaul_member::message::SelectionState;

use self::history::History;
use self::known::KnownLosses;

/// Lower limit of the selection probability where gradients are weighted by its inverse: no sample counts more than sixteen times.
const PROBABILITY_MIN: f64 = 1.0 / 16.0;

/// A candidate for training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Position in the run's stream.
    pub position: u64,
    /// The sample and its epoch.
    pub visit: Visit,
}

/// Selects a worker's samples by their losses.
///
/// Order of calls in each step: [`Self::wanting`], their losses, [`Self::choose`], training, [`Self::learn`].
#[derive(Clone, Debug)]
pub struct Selector {
    config: SelectiveBackwardConfig,
    seed: u64,
    history: History,
    known: KnownLosses,
    /// Samples selected since the last contribution.
    since_contribution: u32,
}

impl Selector {
    /// Starts without losses, for a run with this seed and number of samples.
    #[must_use]
    pub fn new(config: &SelectiveBackwardConfig, seed: u64, samples: u64) -> Self {
        Self {
            config: config.clone(),
            seed,
            history: History::new(config.history as usize),
            known: KnownLosses::new(samples, config.reused_for()),
            since_contribution: 0,
        }
    }

    /// Returns whether losses of earlier epochs are used; other workers of a copy of the model may lack them.
    pub(super) fn remembers(&self) -> bool {
        self.config.reused_for() > 0
    }

    /// Returns whether losses decide on some of these candidates.
    pub(super) fn judges(&self, candidates: &[Candidate]) -> bool {
        candidates.iter().any(|candidate| self.is_judged(*candidate))
    }

    /// For each candidate: 1 if its loss requires a forward pass before the decision, else 0.
    #[must_use]
    pub fn wanting(&self, candidates: &[Candidate]) -> Vec<f32> {
        let wants =
            |candidate: &Candidate| self.is_judged(*candidate) && self.known.get(candidate.visit).is_none();
        candidates.iter().map(|candidate| f32::from(u8::from(wants(candidate)))).collect()
    }

    /// Returns each candidate's weight in the mean over the selected; 0: not selected. `losses` are those of the candidates that are `wanting` them, in order;
    /// empty on a rank without losses, whose result is ignored.
    #[must_use]
    pub fn choose(&mut self, candidates: &[Candidate], wanting: &[f32], losses: &[f32]) -> Vec<f32> {
        let past = self.history.sorted();
        let mut computed = losses.iter().copied();
        let mut weights = Vec::with_capacity(candidates.len());
        for (candidate, wants) in candidates.iter().zip(wanting) {
            let loss = if *wants > 0.0 { computed.next() } else { self.known.get(candidate.visit) };
            let loss = loss.filter(|_| self.is_judged(*candidate));
            let is_enough = past.len() >= SelectiveBackwardConfig::HISTORY_MIN as usize;
            let probability = match loss {
                Some(loss) if is_enough => self.probability(past.percentile(loss)),
                _ => 1.0,
            };
            let is_selected = chance_at(self.seed, candidate.position) < probability;
            weights.push(if is_selected { self.weight(probability) } else { 0.0 });
            if let Some(loss) = loss {
                self.history.push(loss);
                if *wants > 0.0 {
                    self.known.put(candidate.visit, loss);
                }
            }
        }
        self.normalise(&mut weights);
        weights
    }

    /// Records the losses of selected samples from training; empty on a rank without losses.
    pub fn learn(&mut self, selected: &[Candidate], losses: &[f32]) {
        for (candidate, loss) in selected.iter().zip(losses) {
            if !self.is_judged(*candidate) {
                self.history.push(*loss);
            }
            self.known.put(candidate.visit, *loss);
        }
        self.since_contribution += selected.len() as u32;
    }

    /// Returns the number of samples that a step counts for.
    pub(super) fn counted(&self, given: usize, selected: usize) -> usize {
        // With importance, gradients represent all given samples, even if none is selected.
        if self.config.importance { given } else { selected }
    }

    /// The same for steps known only by their positions, made by this worker since its last contribution.
    pub(super) fn counted_before(&self, given: usize) -> usize {
        self.counted(given, self.since_contribution as usize)
    }

    /// Marks the selected samples as contributed.
    pub(super) fn contributed(&mut self) {
        self.since_contribution = 0;
    }

    /// Returns the state for a checkpoint.
    pub(super) fn state(&self) -> SelectionState {
        let [losses, epochs] = self.known.to_vectors();
        SelectionState { history: self.history.to_vec(), losses, epochs, selected: self.since_contribution }
    }

    /// Restores the state. A state without losses keeps the known ones.
    pub(super) fn load(&mut self, state: &SelectionState) {
        state.history.iter().for_each(|loss| self.history.push(*loss));
        self.known.load(&state.losses, &state.epochs);
        self.since_contribution = state.selected;
    }

    /// Returns whether the loss decides on this candidate.
    fn is_judged(&self, candidate: Candidate) -> bool {
        candidate.visit.epoch >= u64::from(self.config.full_epochs)
    }

    fn probability(&self, percentile: f64) -> f64 {
        let probability = percentile.powf(self.config.beta);
        if self.config.importance { probability.max(PROBABILITY_MIN) } else { probability }
    }

    fn weight(&self, probability: f64) -> f32 {
        if self.config.importance { (1.0 / probability) as f32 } else { 1.0 }
    }

    /// With importance, rescales the weights from a mean over the selected to a mean over all candidates.
    fn normalise(&self, weights: &mut [f32]) {
        if !self.config.importance {
            return;
        }
        let selected = weights.iter().filter(|weight| **weight > 0.0).count();
        let share = selected as f32 / weights.len().max(1) as f32;
        weights.iter_mut().for_each(|weight| *weight *= share);
    }
}

#[cfg(test)]
mod tests;
