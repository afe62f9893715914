//! The probability of the gap to the next kept position, given the remaining positions and kept ones.
//!
//! With `left` positions of which `wanted` are kept, and all sets equally likely,
//!
//! ```text
//! P(gap ≥ g) = C(left − g, wanted) / C(left, wanted) ≈ (1 − g / (s·wanted))^wanted,  s = (left − (wanted − 1)/2) / wanted
//! ```
//!
//! In units of s the shape depends on `wanted` alone. The low bits of a gap, within which the probability is
//! nearly flat, are sent raw. The high bits are a symbol of a table chosen by the leading bits of s and by
//! `wanted`.

use std::sync::LazyLock;

use super::rans::{Interval, PROBABILITY_BITS, RansDecoder, RansEncoder, Raw};

/// Symbols of a table. With four to eight of them per s, a gap beyond the last has a probability of at most
/// e^-8.
const SYMBOLS: usize = 64;

/// Symbol of all gaps whose high bits have no symbol; these bits follow as a number below 2^16.
const ESCAPE: usize = SYMBOLS - 1;

/// s is measured in sixteenths. It is at least 1/2, so its binary exponent in that unit is at least this.
const SCALE_EXPONENT_MIN: u32 = 3;

/// Beyond this exponent (s ≥ 8) the gap's low bits are sent raw, and the tables of this exponent apply.
const SCALE_EXPONENT_MAX: u32 = 6;

/// Bits of s that choose a table, besides its exponent.
const SCALE_FRACTION_BITS: u32 = 3;

const SCALES: usize = ((SCALE_EXPONENT_MAX - SCALE_EXPONENT_MIN + 1) as usize) << SCALE_FRACTION_BITS;

/// Representatives of the classes of `wanted`. The shape tends to an exponential.
const WANTED: [u32; 11] = [1, 2, 3, 4, 5, 6, 7, 9, 13, 22, 64];

/// Shares of the probability by symbol.
#[derive(Clone, Debug)]
struct Table {
    /// Start of each symbol's share.
    starts: [u16; SYMBOLS],
    /// Symbol whose share contains the first of each 256 points.
    guide: [u8; 1 << (PROBABILITY_BITS - 8)],
}

static TABLES: LazyLock<Box<[Table]>> = LazyLock::new(|| {
    let scales = || (0..SCALES).map(scale_of_class);
    WANTED.iter().flat_map(|&wanted| scales().map(move |scale| Table::new(scale, wanted))).collect()
});

/// Codes gaps; a reference to tables computed once, identically on every platform.
#[derive(Clone, Copy, Debug)]
pub(super) struct GapModel {
    tables: &'static [Table],
}

impl GapModel {
    pub fn new() -> Self {
        Self { tables: &TABLES }
    }

    /// Maximum symbols of one gap.
    pub const SYMBOLS_MAX: usize = 2;

    /// Appends a gap, where `1 ≤ wanted ≤ left ≤ 2^27`, `left ≤ 2^16·wanted` and `gap ≤ left − wanted` is below 2^16.
    pub fn push(self, gap: u32, left: u32, wanted: u32, coder: &mut RansEncoder) {
        if left == wanted {
            return;
        }
        let (table, bits) = self.table(left, wanted);
        let (high, low) = (gap >> bits, gap & ((1 << bits) - 1));
        let symbol = ESCAPE.min(high as usize);
        coder.push(table.share(symbol), Raw { value: low as u16, bits });
        if symbol == ESCAPE {
            coder.push(point(high as u16), NO_RAW);
        }
    }

    /// Reads the gap encoded with the same `left` and `wanted`. From a damaged stream it may exceed
    /// `left − wanted`.
    pub fn take(self, left: u32, wanted: u32, coder: &mut RansDecoder<'_>) -> u32 {
        if left == wanted {
            return 0;
        }
        let (table, bits) = self.table(left, wanted);
        let symbol = table.symbol_at(coder.peek(0, bits));
        let low = coder.take(0, table.share(symbol), bits);
        let mut high = symbol as u32;
        if symbol == ESCAPE {
            let escaped = coder.peek(0, 0);
            coder.take(0, point(escaped), 0);
            high = escaped.into();
        }
        high << bits | u32::from(low)
    }

    /// Returns the table for this state, and the number of a gap's low bits sent raw.
    fn table(self, left: u32, wanted: u32) -> (&'static Table, u32) {
        let scale = 8 * (2 * left - wanted + 1) / wanted;
        let exponent = scale.ilog2();
        let raw_bits = exponent.saturating_sub(SCALE_EXPONENT_MAX);
        let octave = (exponent - raw_bits - SCALE_EXPONENT_MIN) << SCALE_FRACTION_BITS;
        let fraction = scale >> (exponent - SCALE_FRACTION_BITS) & ((1 << SCALE_FRACTION_BITS) - 1);
        let class = class_of_wanted(wanted) * SCALES + (octave + fraction) as usize;
        (&self.tables[class], raw_bits)
    }
}

const NO_RAW: Raw = Raw { value: 0, bits: 0 };

/// Returns the share of one number among 2^16 equally likely ones.
fn point(number: u16) -> Interval {
    Interval { start: number, frequency: 1 }
}

fn class_of_wanted(wanted: u32) -> usize {
    match wanted {
        0..8 => wanted.saturating_sub(1) as usize,
        8..12 => 7,
        12..16 => 8,
        16..32 => 9,
        _ => 10,
    }
}

/// Returns the middle of a class of s, in units of `1 << raw_bits` positions.
fn scale_of_class(class: usize) -> f64 {
    let exponent = class >> SCALE_FRACTION_BITS;
    let fraction = class & ((1 << SCALE_FRACTION_BITS) - 1);
    let leading = ((1 << SCALE_FRACTION_BITS) + fraction) as f64 + 0.5;
    leading * f64::from(1_u32 << exponent) / 16.0
}

impl Table {
    /// Uses only additions, multiplications and divisions of f64, and truncation. These are exact by IEEE
    /// 754, so encoder and decoder agree on all machines.
    fn new(scale: f64, wanted: u32) -> Self {
        let shared = f64::from((1_u32 << PROBABILITY_BITS) - SYMBOLS as u32);
        let starts = std::array::from_fn(|symbol| {
            let base = (1.0 - symbol as f64 / (scale * f64::from(wanted))).max(0.0);
            let survival = (0..wanted).fold(1.0, |product, _| product * base);
            // Every symbol has a share of at least one, for damage and for gaps outside the model.
            symbol as u16 + (shared * (1.0 - survival)) as u16
        });
        let guide = std::array::from_fn(|step| {
            (starts.partition_point(|&start| usize::from(start) <= step << 8) - 1) as u8
        });
        Self { starts, guide }
    }

    fn share(&self, symbol: usize) -> Interval {
        let start = self.starts[symbol];
        // The last share ends at 1 << PROBABILITY_BITS, which is 0 in 16 bits.
        let end = self.starts.get(symbol + 1).copied().unwrap_or(0);
        Interval { start, frequency: end.wrapping_sub(start) }
    }

    fn symbol_at(&self, point: u16) -> usize {
        let mut symbol = usize::from(self.guide[usize::from(point >> 8)]);
        // The branch lets the processor speculate; without it, decoding waits for each comparison and is
        // slower.
        while symbol < ESCAPE && self.starts[symbol + 1] <= point {
            symbol += 1;
        }
        symbol
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_belongs_to_the_symbol_whose_share_it_lies_in() {
        for table in TABLES.iter() {
            let total: u32 = (0..SYMBOLS).map(|symbol| u32::from(table.share(symbol).frequency)).sum();
            assert_eq!(total, 1 << PROBABILITY_BITS);
            for point in 0..=u16::MAX {
                let symbol = table.symbol_at(point);
                assert!(table.starts[symbol] <= point);
                assert!(point - table.starts[symbol] < table.share(symbol).frequency);
            }
        }
    }

    #[test]
    fn the_tables_are_the_same_on_every_platform() {
        let mut hasher = blake3::Hasher::new();
        for start in TABLES.iter().flat_map(|table| table.starts) {
            hasher.update(&start.to_le_bytes());
        }
        assert_eq!(&hasher.finalize().to_hex()[..32], "f8c5f398c4b01dfb8ba579e622510e5b");
    }

    #[test]
    fn every_state_has_a_table() {
        let model = GapModel::new();
        for left in (1..=64).chain((1..=16).map(|log2| 1 << log2)) {
            for wanted in 1..=left {
                model.table(left, wanted);
            }
        }
    }
}
