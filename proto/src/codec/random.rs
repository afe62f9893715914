//! Numbers derived from a seed and a counter: equal for equal seeds, on every platform.

/// Separates the draws of masks from those of rounding, which use the same seed.
const MASK_DOMAIN: u64 = 0x6d61_736b;
const NOISE_DOMAIN: u64 = 0x6e6f_6973;

/// Step of the counter: 2^64 over the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Draws of one chunk's mask: SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Debug)]
pub(super) struct MaskDraws {
    counter: u64,
}

impl MaskDraws {
    pub fn new(seed: u64, chunk: u64) -> Self {
        Self { counter: mix(mix(seed ^ MASK_DOMAIN).wrapping_add(chunk.wrapping_mul(GOLDEN))) }
    }

    /// Returns a number below `end`, uniform up to a part in 2^64 / `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        self.counter = self.counter.wrapping_add(GOLDEN);
        ((u128::from(mix(self.counter)) * u128::from(end)) >> 64) as u32
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Draws for stochastic rounding, one per value by its index. 32 bits, so that it vectorises.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    key: [u32; 2],
    /// Index of the value at offset 0.
    start: u32,
}

impl Noise {
    pub fn new(seed: u64) -> Self {
        let key = mix(seed ^ NOISE_DOMAIN);
        Self { key: [key as u32, (key >> 32) as u32], start: 0 }
    }

    /// Returns the same draws from `values` further on.
    pub fn skip(self, values: usize) -> Self {
        Self { start: self.start.wrapping_add(values as u32), ..self }
    }

    /// Returns 32 uniform bits.
    pub fn bits(self, index: usize) -> u32 {
        let counter = self.start.wrapping_add(index as u32);
        let mut x = counter.wrapping_mul(GOLDEN as u32) ^ self.key[0];
        x = (x ^ x >> 16).wrapping_mul(0x21f0_aaad);
        x = (x ^ x >> 15 ^ self.key[1]).wrapping_mul(0x735a_2d97);
        x ^ x >> 15
    }

    /// Returns a uniform number in −1/2..1/2.
    pub fn centred(self, index: usize) -> f32 {
        self.unit(index) - 0.5
    }

    /// Returns a uniform number in 0..1, at the middles of 2^23 intervals.
    pub fn unit(self, index: usize) -> f32 {
        // The mantissa of a number in 1..2, and half its unit.
        f32::from_bits(0x3f80_0000 | self.bits(index) >> 9) - (1.0 - 1.0 / (1 << 24) as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_lies_in_its_interval_and_is_uniform_over_positions_and_seeds() {
        const DRAWS: usize = 100_000;
        let over_positions = |i: usize| Noise::new(7).unit(i);
        let over_seeds = |i: usize| Noise::new(i as u64).unit(3);
        for draws in [&over_positions as &dyn Fn(usize) -> f32, &over_seeds] {
            let mut counts = [0_u32; 16];
            for i in 0..DRAWS {
                let unit = draws(i);
                assert!(unit > 0.0 && unit < 1.0);
                counts[(unit * 16.0) as usize] += 1;
            }
            let expected = DRAWS as f64 / 16.0;
            let chi_square: f64 = counts.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
            // 15 degrees of freedom: beyond 37.7 in a thousandth of all cases.
            assert!(chi_square < 37.7, "{chi_square}");
        }
    }

    #[test]
    fn skipped_noise_is_the_noise_further_on() {
        assert_eq!(Noise::new(5).skip(100).bits(3), Noise::new(5).bits(103));
    }
}
