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
use crate::encode::pool::CodecPool;
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

    /// Returns θ_g − θ in these stretches: the change by local training, with the sign of a gradient; zero where `local` has no values. `memory` is reused.
    #[must_use]
    pub fn delta(&self, local: &SparseRanges, due: Vec<Range<usize>>, memory: Vec<f32>) -> SparseRanges {
        let mut delta = SparseRanges::reusing(memory, due);
        for (range, values) in delta.iter_mut() {
            match local.get(range.clone()) {
                Some(local) => set_difference(values, &self.parameters[range], local),
                None => values.fill(0.0),
            }
        }
        delta
    }

    /// Replaces local values by θ_g − θ: the change that makes the synchronised parameters of them.
    pub fn set_change(&self, local: &mut SparseRanges) {
        for (range, values) in local.iter_mut() {
            set_change(values, &self.parameters[range]);
        }
    }

    /// Replaces values by `factor`·θ_g.
    pub fn set_scaled(&self, factor: f32, values: &mut SparseRanges) {
        for (range, values) in values.iter_mut() {
            values
                .iter_mut()
                .zip(&self.parameters[range])
                .for_each(|(value, global)| *value = factor * global);
        }
    }

    /// Invalidates the hashes of changed parameters.
    fn touch(&mut self, range: Range<usize>) {
        self.hashes.get_mut()[range.start / BLOCK_VALUES..range.end.div_ceil(BLOCK_VALUES)].fill(None);
    }

    /// Makes an outer step of the parameters in these ascending and disjoint ranges with a round's mean, and hashes them while they are in cache. The same bits on every
    /// member.
    pub fn apply(
        &mut self,
        round: Round,
        mean: &SparseRanges,
        changed: &[Range<usize>],
        step: OuterStep,
        pool: &CodecPool,
    ) {
        let parameters = Arc::make_mut(&mut self.parameters);
        let momentum = Arc::make_mut(&mut self.momentum);
        let values = parameters.len();
        if step.has_memory() {
            momentum.resize(values, 0.0);
        }
        let (mut parameters, mut momentum) = (parameters.as_mut_slice(), momentum.as_mut_slice());
        let mut pieces = Vec::with_capacity(changed.len());
        let mut at = 0;
        for range in changed {
            let of_piece = take_range(&mut parameters, at, range);
            let memory = if step.has_memory() { take_range(&mut momentum, at, range) } else { &mut [] };
            let mean = mean.get(range.clone()).unwrap_or_default();
            pieces.push(Piece { start: range.start, parameters: of_piece, memory, mean, hashes: Vec::new() });
            at = range.end;
        }
        pool.run(&mut pieces, |piece| piece.step(step, values));
        let known: Vec<(usize, Hash)> = pieces.into_iter().flat_map(|piece| piece.hashes).collect();
        changed.iter().for_each(|range| self.touch(range.clone()));
        let hashes = self.hashes.get_mut();
        known.into_iter().for_each(|(block, hash)| hashes[block] = Some(hash));
        self.next_round = round.next();
    }

    /// Takes over the device's parameters after a round's result (dense).
    pub fn advance(&mut self, round: Round, parameters: Vec<f32>) {
        self.touch(0..parameters.len());
        self.parameters = Arc::new(parameters);
        self.next_round = round.next();
    }
}

/// Cuts `range` out of the remainder of a vector, which begins at `at`.
fn take_range<'a>(left: &mut &'a mut [f32], at: usize, range: &Range<usize>) -> &'a mut [f32] {
    let (_, from) = std::mem::take(left).split_at_mut(range.start - at);
    let (taken, rest) = from.split_at_mut(range.len());
    *left = rest;
    taken
}

/// A range of an outer step.
struct Piece<'a> {
    start: usize,
    parameters: &'a mut [f32],
    /// Empty without momentum.
    memory: &'a mut [f32],
    /// Empty: nothing changes.
    mean: &'a [f32],
    /// Hashes of blocks that are wholly in it.
    hashes: Vec<(usize, Hash)>,
}

impl Piece<'_> {
    /// `values`: of the whole vector.
    fn step(&mut self, step: OuterStep, values: usize) {
        let mut from = 0;
        while from < self.parameters.len() {
            let start = self.start + from;
            let block = start / BLOCK_VALUES;
            let end = ((block + 1) * BLOCK_VALUES - self.start).min(self.parameters.len());
            let parameters = &mut self.parameters[from..end];
            let memory = self.memory.get_mut(from..end).unwrap_or_default();
            step.apply(parameters, memory, self.mean.get(from..end).unwrap_or_default());
            let is_whole = start == block * BLOCK_VALUES
                && (parameters.len() == BLOCK_VALUES || self.start + end == values);
            if is_whole {
                self.hashes.push((block, hash_of_block(parameters)));
            }
            from = end;
        }
    }
}

#[multiversion(targets = "simd")]
fn set_difference(difference: &mut [f32], global: &[f32], local: &[f32]) {
    let both = global.iter().zip(local);
    difference.iter_mut().zip(both).for_each(|(delta, (global, local))| *delta = global - local);
}

#[multiversion(targets = "simd")]
fn set_change(local: &mut [f32], global: &[f32]) {
    local.iter_mut().zip(global).for_each(|(local, global)| *local = global - *local);
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
            let (mean, changed) = (SparseRanges::whole(vec![1.5; 50_000]), std::slice::from_ref(&range));
            replica.apply(round, &mean, changed, step, &CodecPool::of(1));
            assert_ne!(replica.hash(), before);
            check(&replica);
        }
        replica.advance(Round(8), vec![3.0; 50_000]);
        check(&replica);
    }

    /// Ranges that end within blocks, some without a mean; the reference is one step of all values.
    #[test]
    fn pieces_on_several_threads_are_one_step() {
        let mean: Vec<f32> = (0..70_000).map(|at| (at % 97) as f32 * 0.01 - 0.4).collect();
        let changed = [5..20_000, 20_000..32_768, 32_768..49_152, 60_000..70_000];
        for momentum in [0.0, 0.9] {
            let step = OuterStep { learning_rate: 0.7, momentum };
            let (mut parameters, mut memory) = (vec![0.5f32; 70_000], vec![0.0f32; 70_000]);
            let mut replica = Replica::new(parameters.clone(), Round(0));
            for round in 0..3 {
                let part = SparseRanges::whole(mean.clone());
                replica.apply(Round(round), &part, &changed, step, &CodecPool::of(3));
                for range in changed.clone() {
                    let memory = if step.has_memory() { &mut memory[range.clone()] } else { &mut [] };
                    step.apply(&mut parameters[range.clone()], memory, &mean[range]);
                }
                assert_eq!(**replica.parameters(), parameters);
                assert_eq!(replica.hash(), hash_of(&parameters));
            }
        }
    }
}
