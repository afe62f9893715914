//! θ_g: the parameters that are bit-identical on every member.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use longhaul_common::id::Round;
use longhaul_common::schedule::RoundSchedule;
use longhaul_proto::control::message::Hash;
use longhaul_proto::little_endian::of_f32;
use multiversion::multiversion;

use super::average::Average;
use super::outer::OuterStep;
use crate::sparse_ranges::SparseRanges;

/// The synchronised parameters on the host, and their round.
///
/// The `Arc` is copied on write, so a donor or a checkpoint reads a consistent copy during training.
#[derive(Clone, Debug)]
pub struct Replica {
    parameters: Arc<Vec<f32>>,
    /// The outer optimiser's momentum; empty if it has none.
    momentum: Arc<Vec<f32>>,
    /// Moving average of the parameters, if the run keeps one.
    average: Option<Average>,
    next_round: Round,
    /// Hashes of the blocks unchanged since.
    hashes: RefCell<Vec<Option<Hash>>>,
}

impl Replica {
    /// Creates the state before `next_round`, without momentum.
    #[must_use]
    pub fn new(parameters: Vec<f32>, next_round: Round) -> Self {
        let hashes = RefCell::new(vec![None; parameters.len().div_ceil(BLOCK_VALUES)]);
        Self { parameters: Arc::new(parameters), momentum: Arc::default(), average: None, next_round, hashes }
    }

    /// Returns it with this outer momentum: one value per parameter, or none.
    #[must_use]
    pub fn with_momentum(self, momentum: Vec<f32>) -> Self {
        Self { momentum: Arc::new(momentum), ..self }
    }

    /// Returns it with this moving average, if any.
    #[must_use]
    pub fn with_average(self, average: Option<Average>) -> Self {
        Self { average, ..self }
    }

    /// Returns the moving average, if the run keeps one.
    #[must_use]
    pub fn average(&self) -> Option<&Average> {
        self.average.as_ref()
    }

    /// Takes the parameters after a round's result into the moving average.
    pub fn follow(&mut self, schedule: &RoundSchedule, round: Round) {
        if let Some(average) = &mut self.average {
            average.take(schedule, round, &self.parameters);
        }
    }

    /// Returns the outer optimiser's momentum: one value per parameter, or none.
    #[must_use]
    pub fn momentum(&self) -> &Arc<Vec<f32>> {
        &self.momentum
    }

    /// Returns the parameters.
    #[must_use]
    pub fn parameters(&self) -> &Arc<Vec<f32>> {
        &self.parameters
    }

    /// Returns the first round not contained in them.
    #[must_use]
    pub fn next_round(&self) -> Round {
        self.next_round
    }

    /// Returns [`hash_of`] the parameters. Unchanged blocks are not read again.
    #[must_use]
    pub fn hash(&self) -> Hash {
        let mut hashes = self.hashes.borrow_mut();
        let blocks = self.parameters.chunks(BLOCK_VALUES).zip(hashes.iter_mut());
        root_of(blocks.map(|(values, hash)| *hash.get_or_insert_with(|| hash_of_block(values))))
    }

    /// Returns θ_g − θ in these stretches: the change by local training, with the sign of a gradient; zero where `local` has no values.
    #[must_use]
    pub fn delta(&self, local: &SparseRanges, due: Vec<Range<usize>>) -> SparseRanges {
        let mut delta = SparseRanges::zeros(due);
        for (range, values) in delta.iter_mut() {
            let local = local.get(range.clone()).unwrap_or_default();
            set_difference(values, &self.parameters[range], local);
        }
        delta
    }

    /// Invalidates the hashes of changed parameters.
    fn touch(&mut self, range: Range<usize>) {
        self.hashes.get_mut()[range.start / BLOCK_VALUES..range.end.div_ceil(BLOCK_VALUES)].fill(None);
    }

    /// Makes an outer step of the parameters in these ranges with a round's mean. The same bits on every member.
    pub fn apply(&mut self, round: Round, mean: &SparseRanges, changed: &[Range<usize>], step: OuterStep) {
        let parameters = Arc::make_mut(&mut self.parameters);
        let momentum = Arc::make_mut(&mut self.momentum);
        if step.has_memory() {
            momentum.resize(parameters.len(), 0.0);
        }
        for range in changed {
            let memory = if step.has_memory() { &mut momentum[range.clone()] } else { &mut [] };
            step.apply(&mut parameters[range.clone()], memory, mean.get(range.clone()).unwrap_or_default());
        }
        changed.iter().for_each(|range| self.touch(range.clone()));
        self.next_round = round.next();
    }

    /// Takes over the device's parameters after a round's result (dense).
    pub fn advance(&mut self, round: Round, parameters: Vec<f32>) {
        self.touch(0..parameters.len());
        self.parameters = Arc::new(parameters);
        self.next_round = round.next();
    }
}

#[multiversion(targets = "simd")]
fn set_difference(difference: &mut [f32], global: &[f32], local: &[f32]) {
    let both = global.iter().zip(local);
    difference.iter_mut().zip(both).for_each(|(delta, (global, local))| *delta = global - local);
}

/// Values hashed at a time: 64 KiB keeps BLAKE3's wide code path busy.
const BLOCK_VALUES: usize = 16 * 1024;

/// BLAKE3 over the BLAKE3 hashes of blocks of 16,384 values as little-endian f32.
#[must_use]
pub fn hash_of(values: &[f32]) -> Hash {
    root_of(values.chunks(BLOCK_VALUES).map(hash_of_block))
}

fn hash_of_block(values: &[f32]) -> Hash {
    *blake3::hash(of_f32(values)).as_bytes()
}

fn root_of(blocks: impl Iterator<Item = Hash>) -> Hash {
    let mut hasher = blake3::Hasher::new();
    blocks.for_each(|hash| {
        hasher.update(&hash);
    });
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After changes of some fragments, of all, and a replacement of the parameters.
    #[test]
    fn the_hash_follows_what_has_changed() {
        let mut replica = Replica::new(vec![0.5; 50_000], Round(0));
        let step = OuterStep { learning_rate: 1.0, momentum: 0.0 };
        let check = |replica: &Replica| assert_eq!(replica.hash(), hash_of(replica.parameters()));
        check(&replica);
        for (round, range) in (0..).map(Round).zip([0..1, 16_000..17_000, 49_999..50_000, 0..50_000]) {
            let before = replica.hash();
            replica.apply(round, &SparseRanges::whole(vec![1.5; 50_000]), std::slice::from_ref(&range), step);
            assert_ne!(replica.hash(), before);
            check(&replica);
        }
        replica.advance(Round(8), vec![3.0; 50_000]);
        check(&replica);
    }
}
