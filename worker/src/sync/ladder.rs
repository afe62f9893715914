//! Which chain spends a given number of bits on a value best.

use longhaul_common::config::ValueFormat;
use longhaul_proto::codec::{CodecSpec, Selection};

use super::chain::with_entropy_where_it_pays;

/// Formats for all values, and the bits that a value of theirs takes at most, scales and header included: from the most to the least.
const WHOLE: [(ValueFormat, f64); 5] = [
    (ValueFormat::F32, 32.01),
    (ValueFormat::Bf16, 16.01),
    (ValueFormat::Int8, 8.14),
    (ValueFormat::Int4, INT4_BITS),
    (ValueFormat::TwoBit, TWO_BITS),
];

/// Bits of a value among all in four bits.
pub const INT4_BITS: f64 = 4.14;
/// The same in two bits.
pub const TWO_BITS: f64 = 2.02;
/// Bits of a kept value besides its position: sign and level.
const LEVEL_BITS: f64 = 2.0;
/// Bits of a chunk's two levels.
const SCALES_BITS: f64 = 32.0;

/// The chain that takes at most `bits` for each value: all values in the finest format that there is room for, or else the largest of each
/// chunk in two bits, as many as there is room for and one at least. (Two bits a kept value cost nothing in quality against eight: more
/// positions buy more than finer values: decision 0011.)
#[must_use]
pub fn chain_for(bits: f64, chunk: u32) -> CodecSpec {
    match WHOLE.iter().find(|(_, needed)| *needed <= bits) {
        Some((values, _)) => with_entropy_where_it_pays(CodecSpec::new(Selection::All, *values)),
        None => CodecSpec::new(Selection::TopK { chunk, keep: keep_for(bits, chunk) }, ValueFormat::TwoBit),
    }
}

/// The largest number of values of a chunk whose positions and levels take at most `bits` for each value of the chunk.
fn keep_for(bits: f64, chunk: u32) -> u32 {
    let fits = |keep: u32| bits_of(keep, chunk) <= bits;
    // The bits rise with the number up to half of the chunk, and a chain with more than half would take more than all in two bits.
    let (mut low, mut high) = (1, (chunk / 2).max(1));
    while low < high {
        let middle = (low + high).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

/// Bits for each value of a chunk when so many are kept: log2 C(chunk, keep) by Stirling's formula, and the levels.
fn bits_of(keep: u32, chunk: u32) -> f64 {
    let (k, n) = (f64::from(keep), f64::from(chunk));
    let density = k / n;
    let entropy = -(density * density.log2() + (1.0 - density) * (1.0 - density).log2());
    entropy + (k * LEVEL_BITS + SCALES_BITS) / n
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_proto::codec::Encoder;
    use rand::{Rng, SeedableRng};

    /// What the codec really writes for a fragment of values as they come.
    fn written(spec: CodecSpec) -> f64 {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let values: Vec<f32> = (0..65_536).map(|_| rng.random::<f32>() - rng.random::<f32>()).collect();
        let mut frame = Vec::new();
        Encoder::new(spec).unwrap().encode(0, &values, &mut frame).unwrap();
        frame.len() as f64 * 8.0 / values.len() as f64
    }

    #[test]
    fn a_chain_takes_the_bits_that_it_was_given_and_not_many_less() {
        for step in 0..120 {
            let bits = 0.03 * 1.06f64.powi(step);
            let taken = written(chain_for(bits, 4096));
            assert!(taken <= 1.02 * bits + 0.004, "{taken} bits were written for {bits}");
            // Between the formats for all values there is nothing.
            assert!(taken > 0.9 * bits || bits > 1.9, "only {taken} bits were written for {bits}");
        }
    }

    #[test]
    fn the_least_is_one_value_of_a_chunk_and_the_most_is_everything() {
        assert_eq!(chain_for(0.0, 4096).selection, Selection::TopK { chunk: 4096, keep: 1 });
        let all = chain_for(100.0, 4096);
        assert_eq!((all.selection, all.values), (Selection::All, ValueFormat::F32));
        assert_eq!(chain_for(0.0, 16).selection, Selection::TopK { chunk: 16, keep: 1 });
    }
}
