//! Selection of samples to train on (Jiang et al. 2019, arXiv 1910.00762). `engine/docs/selection.md` is the
//! design.

mod history;
mod known;

use longhaul_common::config::SelectiveBackwardConfig;
use longhaul_common::sampler::chance_at;
use longhaul_data::Visit;
use longhaul_member::message::SelectionState;

use self::history::History;
use self::known::KnownLosses;

/// The smallest selection probability with importance weights, which are its inverse: no sample counts for more
/// than sixteen.
const PROBABILITY_MIN: f64 = 1.0 / 16.0;

/// A sample to select or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Position in the run's stream.
    pub position: u64,
    /// The sample and its epoch.
    pub visit: Visit,
}

/// Selects the samples of a worker by their losses.
///
/// For each step: [`Self::wanting`], the losses of those, [`Self::choose`], training, [`Self::learn`].
#[derive(Clone, Debug)]
pub struct Selector {
    config: SelectiveBackwardConfig,
    seed: u64,
    history: History,
    known: KnownLosses,
    /// Samples selected in steps that no contribution includes yet.
    since_contribution: u32,
}

impl Selector {
    /// Creates a selector without losses, for a run with this seed and number of samples.
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

    /// Whether it uses losses of previous epochs, which other workers of a copy of the model may lack.
    pub(super) fn remembers(&self) -> bool {
        self.config.reused_for() > 0
    }

    /// Whether losses decide on some of these.
    pub(super) fn judges(&self, candidates: &[Candidate]) -> bool {
        candidates.iter().any(|candidate| self.is_judged(*candidate))
    }

    /// Returns 1 for each candidate whose loss requires a forward pass before the selection, else 0.
    #[must_use]
    pub fn wanting(&self, candidates: &[Candidate]) -> Vec<f32> {
        let wants =
            |candidate: &Candidate| self.is_judged(*candidate) && self.known.get(candidate.visit).is_none();
        candidates.iter().map(|candidate| f32::from(u8::from(wants(candidate)))).collect()
    }

    /// Returns each candidate's weight in the mean loss over the selected; 0: not selected. `losses` are those
    /// of the `wanting` candidates, in order; if other workers compute them, it is empty, and the result is not
    /// used.
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

    /// Records the losses of the selected samples from training; empty if other workers compute them.
    pub fn learn(&mut self, selected: &[Candidate], losses: &[f32]) {
        for (candidate, loss) in selected.iter().zip(losses) {
            if !self.is_judged(*candidate) {
                self.history.push(*loss);
            }
            self.known.put(candidate.visit, *loss);
        }
        self.since_contribution += selected.len() as u32;
    }

    /// Returns the number of samples as which a step counts, for `given` samples of which some were selected.
    pub(super) fn counted(&self, given: usize, selected: usize) -> usize {
        // With importance, the selected gradients represent all given samples, even if none is selected.
        if self.config.importance { given } else { selected }
    }

    /// The same for steps known only by their positions, made by this worker since its last contribution.
    pub(super) fn counted_before(&self, given: usize) -> usize {
        self.counted(given, self.since_contribution as usize)
    }

    /// Notes that the selected samples were contributed.
    pub(super) fn contributed(&mut self) {
        self.since_contribution = 0;
    }

    /// Returns the state for a checkpoint.
    pub(super) fn state(&self) -> SelectionState {
        let [losses, epochs] = self.known.to_vectors();
        SelectionState { history: self.history.to_vec(), losses, epochs, selected: self.since_contribution }
    }

    /// Restores it. A state without losses keeps the known ones.
    pub(super) fn load(&mut self, state: &SelectionState) {
        state.history.iter().for_each(|loss| self.history.push(*loss));
        self.known.load(&state.losses, &state.epochs);
        self.since_contribution = state.selected;
    }

    /// Whether the loss decides on it.
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

    /// With importance, sums over the selected estimate a mean over all candidates: scales by the number of the
    /// selected over the number of all.
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
