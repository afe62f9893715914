//! Which samples are trained on (Jiang et al. 2019, arXiv 1910.00762). `engine/docs/selection.md` is the design.

mod history;
mod known;

use longhaul_common::config::SelectiveBackwardConfig;
use longhaul_common::sampler::chance_at;
use longhaul_data::Visit;
use longhaul_member::message::SelectionState;

use self::history::History;
use self::known::KnownLosses;

/// The smallest probability with which a sample is selected where its gradient counts by one over it: so no sample counts for more than sixteen.
const PROBABILITY_MIN: f64 = 1.0 / 16.0;

/// A sample that is to be trained on or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Where it stands in the run's stream.
    pub position: u64,
    /// Which sample it is.
    pub visit: Visit,
}

/// Chooses the samples of a worker by their losses.
///
/// Of each step: [`Self::wanting`], the losses of those, [`Self::choose`], training, [`Self::learn`].
#[derive(Clone, Debug)]
pub struct Selector {
    config: SelectiveBackwardConfig,
    seed: u64,
    history: History,
    known: KnownLosses,
    /// Samples selected in steps that are in no contribution yet.
    since_contribution: u32,
}

impl Selector {
    /// Without any losses yet, for a run with this seed, and so many samples.
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

    /// Whether it uses losses of epochs before, which other workers of a copy of the model may not know.
    pub(super) fn remembers(&self) -> bool {
        self.config.reused_for() > 0
    }

    /// Whether it is by losses that some of these are selected.
    pub(super) fn judges(&self, candidates: &[Candidate]) -> bool {
        candidates.iter().any(|candidate| self.is_judged(*candidate))
    }

    /// Of each candidate: 1, where a forward pass has to tell its loss before it is decided over, and otherwise 0.
    #[must_use]
    pub fn wanting(&self, candidates: &[Candidate]) -> Vec<f32> {
        let wants =
            |candidate: &Candidate| self.is_judged(*candidate) && self.known.get(candidate.visit).is_none();
        candidates.iter().map(|candidate| f32::from(u8::from(wants(candidate)))).collect()
    }

    /// Of each candidate: by which its loss counts in the mean over those that are selected; 0: it is not. `losses` are those of the candidates that are `wanting` them, in order; where
    /// others know them, none, and what comes out is not what counts.
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

    /// What training has told of the losses of those that were selected: none, where others know them.
    pub fn learn(&mut self, selected: &[Candidate], losses: &[f32]) {
        for (candidate, loss) in selected.iter().zip(losses) {
            if !self.is_judged(*candidate) {
                self.history.push(*loss);
            }
            self.known.put(candidate.visit, *loss);
        }
        self.since_contribution += selected.len() as u32;
    }

    /// As how many samples a step counts that was given so many, of which it selected some.
    pub(super) fn counted(&self, given: usize, selected: usize) -> usize {
        // One whose gradients stand for all that it was given counts for them, also where there are none.
        if self.config.importance { given } else { selected }
    }

    /// The same of steps whose positions alone are known, made by this worker since its last contribution.
    pub(super) fn counted_before(&self, given: usize) -> usize {
        self.counted(given, self.since_contribution as usize)
    }

    /// What was selected is contributed.
    pub(super) fn contributed(&mut self) {
        self.since_contribution = 0;
    }

    /// What goes into a checkpoint.
    pub(super) fn state(&self) -> SelectionState {
        let [losses, epochs] = self.known.to_vectors();
        SelectionState { history: self.history.to_vec(), losses, epochs, selected: self.since_contribution }
    }

    /// Takes it back. A state that tells of no losses leaves those that are known.
    pub(super) fn load(&mut self, state: &SelectionState) {
        state.history.iter().for_each(|loss| self.history.push(*loss));
        self.known.load(&state.losses, &state.epochs);
        self.since_contribution = state.selected;
    }

    /// Whether its loss decides.
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

    /// With importance, sums over the selected stand for a mean over all candidates: what is divided by the number of the selected is multiplied by it, and divided by that of all.
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
