//! Privacy of a contribution: clipping and noise.

use std::f64::consts::TAU;

use longhaul_common::config::PrivacyConfig;
use rand::rngs::OsRng;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{OsError, RngCore, SeedableRng};

/// Least ratio of the noise's deviation to the grid.
const STEPS_PER_DEVIATION: f64 = 1024.0;

/// The Gaussian mechanism for one site's update: x·min(1, C/‖x‖) + N(0, σ²·I), with C and σ from the configuration (Dwork & Roth 2014, appendix A; clipping
/// as Abadi et al. 2016, arXiv 1607.00133).
///
/// The noise is private to this process: the operating system seeds its generator, and no part of it is kept, sent or drawn twice. It is drawn and added in
/// f64, and the sum is rounded to a grid of a thousandth of σ: lower digits would reveal the original f32 (Mironov 2012, "On significance of the least
/// significant bits for differential privacy").
pub struct GaussianMechanism {
    clip: f64,
    deviation: f64,
    grid: f64,
    generator: ChaCha20Rng,
    /// The second of two values drawn together.
    spare: Option<f64>,
}

impl GaussianMechanism {
    /// Creates a mechanism with its own secret seed.
    ///
    /// # Errors
    /// The operating system provides no randomness.
    pub fn new(config: &PrivacyConfig) -> Result<Self, OsError> {
        Ok(Self::with_generator(config, ChaCha20Rng::try_from_rng(&mut OsRng)?))
    }

    fn with_generator(config: &PrivacyConfig, generator: ChaCha20Rng) -> Self {
        let deviation = config.deviation();
        let grid = (deviation / STEPS_PER_DEVIATION).log2().floor().exp2();
        Self { clip: config.clip, deviation, grid, generator, spare: None }
    }

    /// Makes a fragment's update private. `share`: this fragment's share of all values that the site contributes to the round.
    ///
    /// Other members may hold the other fragments, so the norm of the whole is unknown. Each is clipped to C·√share, which bounds the whole by C.
    ///
    /// An update that is not finite stays unchanged, because encoders reject it.
    pub fn release(&mut self, update: &mut [f32], share: f64) {
        let norm = update.iter().map(|value| f64::from(*value) * f64::from(*value)).sum::<f64>().sqrt();
        if !norm.is_finite() {
            return;
        }
        let limit = self.clip * share.sqrt();
        let scale = if norm > limit { limit / norm } else { 1.0 };
        for value in update {
            let noisy = scale * f64::from(*value) + self.deviation * self.standard_normal();
            // A power of two times at most 2²⁰, which f32 holds exactly.
            *value = ((noisy / self.grid).round() * self.grid) as f32;
        }
    }

    /// Draws from N(0, 1), by the Box–Muller transform. With 64 random bits for the length it reaches ±9.4, beyond which less than 10⁻²⁰ of the distribution
    /// lies.
    fn standard_normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let uniform = (self.generator.next_u64() as f64 + 1.0) * (-64.0f64).exp2();
        let angle = TAU * self.generator.next_u64() as f64 * (-64.0f64).exp2();
        let length = (-2.0 * uniform.ln()).sqrt();
        let (sine, cosine) = angle.sin_cos();
        self.spare = Some(length * sine);
        length * cosine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: usize = 1 << 17;

    fn config(clip: f64, noise: f64) -> PrivacyConfig {
        PrivacyConfig { clip, noise, delta: 1e-6, report_loss: false }
    }

    fn mechanism(clip: f64, noise: f64) -> GaussianMechanism {
        GaussianMechanism::with_generator(&config(clip, noise), ChaCha20Rng::seed_from_u64(5))
    }

    fn norm(values: impl IntoIterator<Item = f64>) -> f64 {
        values.into_iter().map(|value| value * value).sum::<f64>().sqrt()
    }

    /// The Kolmogorov–Smirnov test against Φ, and the fourth moment, which uniform or rounded noise would miss.
    #[test]
    fn the_noise_is_normal_and_has_the_deviation_that_was_asked_for() {
        let mut update = vec![0.0f32; VALUES];
        mechanism(0.5, 4.0).release(&mut update, 1.0);
        let mut noise: Vec<f64> = update.iter().map(|value| f64::from(*value) / 2.0).collect();
        let moment = |power: i32| noise.iter().map(|x| x.powi(power)).sum::<f64>() / VALUES as f64;
        // The deviations of these means are 0.0028, 0.0039 and 0.027.
        assert!(moment(1).abs() < 0.014 && (moment(2) - 1.0).abs() < 0.02 && (moment(4) - 3.0).abs() < 0.14);
        noise.sort_by(f64::total_cmp);
        // Φ by Simpson's rule along the sorted values, from the tail below the first one.
        let density = |x: f64| (-0.5 * x * x).exp() / TAU.sqrt();
        let (mut below, mut largest) = (0.5 / VALUES as f64, 0.0f64);
        for (index, pair) in noise.windows(2).enumerate() {
            let (a, b) = (pair[0], pair[1]);
            below += (b - a) * (density(a) + 4.0 * density(0.5 * (a + b)) + density(b)) / 6.0;
            largest = largest.max((below - (index as f64 + 1.5) / VALUES as f64).abs());
        }
        // 1.95/√n is exceeded once in a thousand generators; this one is fixed.
        assert!(largest < 1.95 / (VALUES as f64).sqrt(), "{largest}");
    }

    #[test]
    fn all_fragments_together_are_no_longer_than_the_clip_and_short_ones_stay_as_they_are() {
        // Noise small enough to expose the values under it.
        let mut mechanism = mechanism(3.0, 1e-5);
        let lengths = [4096usize, 4096, 1000];
        let total: usize = lengths.iter().sum();
        let clipped = lengths.map(|len| {
            let mut update: Vec<f32> = (0..len).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
            let before = update.clone();
            mechanism.release(&mut update, len as f64 / total as f64);
            let scale = f64::from(update[0]) / f64::from(before[0]);
            let gap = before.iter().zip(&update).map(|(b, u)| (scale * f64::from(*b) - f64::from(*u)).abs());
            assert!(gap.fold(0.0, f64::max) < 4e-4, "the direction is the same");
            norm(update.iter().map(|value| f64::from(*value)))
        });
        assert!((norm(clipped) - 3.0).abs() < 0.01, "{clipped:?}");
        let mut short = vec![0.01f32; 100];
        mechanism.release(&mut short, 1.0);
        assert!(short.iter().all(|value| (value - 0.01).abs() < 2e-4));
    }

    /// All outputs lie on the same grid, whatever the input.
    #[test]
    fn no_digit_below_the_grid_is_left_of_what_was_there() {
        for (clip, noise) in [(1.0, 0.01), (1e-3, 1.0), (7.0, 300.0)] {
            let mut mechanism = mechanism(clip, noise);
            let mut update: Vec<f32> = (0..4096).map(|i| (i as f32 * 0.37).sin() * clip as f32).collect();
            mechanism.release(&mut update, 1.0);
            let grid = mechanism.grid;
            assert!(grid <= clip * noise / 1024.0 && grid > clip * noise / 2049.0);
            assert!(update.iter().all(|value| (f64::from(*value) / grid).fract() == 0.0));
        }
    }

    #[test]
    fn two_processes_and_two_releases_never_draw_the_same_noise() {
        let mut drawn = Vec::new();
        for _ in 0..2 {
            let mut mechanism = GaussianMechanism::new(&config(1.0, 1.0)).unwrap();
            for _ in 0..2 {
                let mut update = [0.0; 16];
                mechanism.release(&mut update, 1.0);
                drawn.push(update);
            }
        }
        assert!((1..4).all(|at| !drawn[..at].contains(&drawn[at])));
    }

    #[test]
    fn an_update_that_is_not_finite_is_left_for_the_encoder_to_refuse() {
        let mut update = [1.0, f32::NAN, f32::INFINITY];
        mechanism(1.0, 1.0).release(&mut update, 1.0);
        assert!(update[0] == 1.0 && update[1].is_nan() && update[2].is_infinite());
    }
}
