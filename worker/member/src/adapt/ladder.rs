//! The best chain for a given number of bits per value.

use longhaul_common::config::ValueFormat;
use longhaul_proto::codec::chain::with_entropy_where_it_pays;
use longhaul_proto::codec::{CodecSpec, Selection, TopK};

/// Formats for all values, from the most bits to the least.
const WHOLE: [ValueFormat; 5] =
    [ValueFormat::F32, ValueFormat::Bf16, ValueFormat::Int8, ValueFormat::Int4, ValueFormat::TwoBit];

/// Bits per value of a frame's header, at most, if all values are sent: for fragments from about ten thousand values on.
const HEADER_BITS: f64 = 0.012;

/// Bits per value of all values in four bits.
#[must_use]
pub fn int4_bits() -> f64 {
    bits_of_all(ValueFormat::Int4)
}

/// Bits per value of all values in two bits.
#[must_use]
pub fn two_bits() -> f64 {
    bits_of_all(ValueFormat::TwoBit)
}

fn bits_of_all(values: ValueFormat) -> f64 {
    CodecSpec::new(Selection::All, values).bits_per_value() + HEADER_BITS
}

/// Returns the chain of at most `bits` per value: all values in the finest format that fits, or else as many of the largest per chunk, at least one, in two
/// bits. (Two bits cost no quality against eight: more positions help more than finer values, decision 0011.)
#[must_use]
pub fn chain_for(bits: f64, chunk: u32) -> CodecSpec {
    match WHOLE.into_iter().find(|&values| bits_of_all(values) <= bits) {
        Some(values) => with_entropy_where_it_pays(CodecSpec::new(Selection::All, values)),
        None => in_two_bits(chunk, keep_for(bits, chunk)),
    }
}

/// Returns the largest number of values of a chunk whose positions and levels take at most `bits` per value of the chunk.
fn keep_for(bits: f64, chunk: u32) -> u32 {
    let fits = |keep: u32| in_two_bits(chunk, keep).bits_per_value() <= bits;
    // The bits rise up to half of the chunk; a chain with more values would exceed all values in two bits.
    let (mut low, mut high) = (1, (chunk / 2).max(1));
    while low < high {
        let middle = (low + high).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

fn in_two_bits(chunk: u32, keep: u32) -> CodecSpec {
    CodecSpec::new(Selection::TopK(TopK { chunk, keep }), ValueFormat::TwoBit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_proto::codec::Encoder;
    use rand::{Rng, SeedableRng};

    /// Bits per value that the codec really writes for a fragment of random values.
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
            // No chain lies between the formats for all values.
            assert!(taken > 0.9 * bits || bits > 1.9, "only {taken} bits were written for {bits}");
        }
    }

    #[test]
    fn the_least_is_one_value_of_a_chunk_and_the_most_is_everything() {
        assert_eq!(chain_for(0.0, 4096).selection, Selection::TopK(TopK { chunk: 4096, keep: 1 }));
        let all = chain_for(100.0, 4096);
        assert_eq!((all.selection, all.values), (Selection::All, ValueFormat::F32));
        assert_eq!(chain_for(0.0, 16).selection, Selection::TopK(TopK { chunk: 16, keep: 1 }));
    }
}
