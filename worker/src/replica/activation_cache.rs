//! Cache of the activations last sent for each sequence; identical on the sender and the receiver.

use std::collections::{HashMap, VecDeque};

use longhaul_common::config::{Differences, ValueFormat};

const MIB: u64 = 1 << 20;

/// Activations of sequences, for one direction of one boundary (AQ-SGD: Wang et al. 2022, arXiv 2206.01299).
///
/// Both ranks insert the same values in the same order for each chunk, so both hold and evict the same entries. A micro-batch is sent as a difference if all of
/// its sequences are known, else as plain activations.
#[derive(Debug)]
pub(super) struct ActivationCache {
    values: ValueFormat,
    /// Limit for each chunk.
    bytes_max: u64,
    chunks: HashMap<u32, Known>,
}

/// The entries of one chunk.
#[derive(Debug, Default)]
struct Known {
    sequences: HashMap<u64, Vec<f32>>,
    /// Order of first insertion.
    order: VecDeque<u64>,
    bytes: u64,
}

impl ActivationCache {
    /// Creates a cache for a rank with `chunks` chunks, which share the memory.
    pub fn new(differences: Differences, chunks: u32) -> Self {
        let bytes_max = differences.memory_mib.saturating_mul(MIB) / u64::from(chunks.max(1));
        Self { values: differences.values, bytes_max, chunks: HashMap::new() }
    }

    /// Returns the format of differences.
    pub fn values(&self) -> ValueFormat {
        self.values
    }

    /// Returns whether all sequences are known, so that their difference is sent.
    pub fn knows(&self, chunk: u32, sequences: &[u64]) -> bool {
        let known = self.chunks.get(&chunk);
        known.is_some_and(|known| sequences.iter().all(|name| known.sequences.contains_key(name)))
    }

    /// Subtracts the known values of these sequences, all of them known.
    pub fn subtract(&self, chunk: u32, sequences: &[u64], activations: &mut [f32]) {
        self.each(chunk, sequences, activations, |value, known| *value -= known);
    }

    /// Adds the known values of these sequences, all of them known, to a difference.
    pub fn add(&self, chunk: u32, sequences: &[u64], difference: &mut [f32]) {
        self.each(chunk, sequences, difference, |value, known| *value += known);
    }

    /// Stores the activations of these sequences as the receiving rank has them.
    pub fn remember(&mut self, chunk: u32, sequences: &[u64], activations: &[f32]) {
        let known = self.chunks.entry(chunk).or_default();
        for (&name, values) in sequences.iter().zip(activations.chunks(of_each(sequences, activations.len())))
        {
            known.put(name, values);
            known.forget_beyond(self.bytes_max);
        }
    }

    fn each(&self, chunk: u32, sequences: &[u64], values: &mut [f32], with: impl Fn(&mut f32, f32)) {
        let Some(known) = self.chunks.get(&chunk) else { return };
        let each = of_each(sequences, values.len());
        for (name, values) in sequences.iter().zip(values.chunks_mut(each)) {
            let Some(known) = known.sequences.get(name) else { continue };
            values.iter_mut().zip(known).for_each(|(value, &known)| with(value, known));
        }
    }
}

impl Known {
    fn put(&mut self, name: u64, values: &[f32]) {
        let bytes = size_of_val(values) as u64;
        match self.sequences.get_mut(&name) {
            Some(known) => {
                self.bytes -= size_of_val(known.as_slice()) as u64;
                known.clear();
                known.extend_from_slice(values);
            }
            None => {
                self.sequences.insert(name, values.to_vec());
                self.order.push_back(name);
            }
        }
        self.bytes += bytes;
    }

    fn forget_beyond(&mut self, bytes_max: u64) {
        while self.bytes > bytes_max
            && let Some(oldest) = self.order.pop_front()
        {
            let forgotten = self.sequences.remove(&oldest).unwrap_or_default();
            self.bytes -= size_of_val(forgotten.as_slice()) as u64;
        }
    }
}

/// The number of values per sequence.
fn of_each(sequences: &[u64], values: usize) -> usize {
    (values / sequences.len().max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A MiB for each of two chunks: four sequences of 65,536 values.
    fn recall() -> ActivationCache {
        ActivationCache::new(Differences { values: ValueFormat::Int4, memory_mib: 2 }, 2)
    }

    fn activations(value: f32) -> Vec<f32> {
        vec![value; 65_536]
    }

    #[test]
    fn a_difference_and_what_was_known_are_the_activations() {
        let mut recall = recall();
        assert!(!recall.knows(0, &[7, 8]));
        let before: Vec<f32> = [activations(1.0), activations(2.0)].concat();
        recall.remember(0, &[7, 8], &before);
        assert!(recall.knows(0, &[8, 7]) && !recall.knows(1, &[7]) && !recall.knows(0, &[7, 9]));
        let mut values: Vec<f32> = [activations(2.5), activations(1.25)].concat();
        recall.subtract(0, &[8, 7], &mut values);
        assert_eq!((values[0], values[65_536]), (0.5, 0.25));
        recall.add(0, &[8, 7], &mut values);
        assert_eq!((values[0], values[65_536]), (2.5, 1.25));
    }

    #[test]
    fn the_oldest_are_forgotten_where_memory_ends_and_a_chunk_has_its_own() {
        let mut recall = recall();
        for name in 0..4 {
            recall.remember(0, &[name], &activations(0.0));
        }
        assert!(recall.knows(0, &[0, 1, 2, 3]));
        // A known sequence takes no more memory.
        recall.remember(0, &[0], &activations(3.0));
        recall.remember(1, &[9], &activations(0.0));
        assert!(recall.knows(0, &[0, 1, 2, 3]));
        recall.remember(0, &[4], &activations(0.0));
        assert!(!recall.knows(0, &[0]) && recall.knows(0, &[1, 2, 3, 4]) && recall.knows(1, &[9]));
    }

    #[test]
    fn a_sequence_that_has_no_room_is_not_remembered() {
        let mut recall = ActivationCache::new(Differences { values: ValueFormat::Int4, memory_mib: 1 }, 8);
        recall.remember(0, &[1], &activations(1.0));
        assert!(!recall.knows(0, &[1]) && recall.chunks[&0].bytes == 0);
    }
}
