//! Total privacy loss of noisy releases.

use super::normal::{density, mills_ratio};

/// Accountant of releases that each add Gaussian noise to a value of bounded length.
///
/// One release of x + N(0, σ²·I), where x can move by at most Δ when the data change, is exactly as hard to
/// distinguish as N(0, 1) from N(μ, 1) with μ = Δ/σ. Successive releases, each of which may depend on the
/// previous ones, are together exactly as hard as one with μ = √Σμᵢ² (Dong, Roth & Su 2019, arXiv 1905.02383,
/// theorem 2.7 and corollary 3.3). Their curve of ε and δ is known in closed form (Balle & Wang 2018, arXiv
/// 1805.06530, theorem 8), so the result is exact. Rényi accounting (Mironov 2017) is an upper bound of it,
/// as the tests show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaussianAccountant {
    mu: f64,
}

impl GaussianAccountant {
    /// Creates the accountant of releases of a value clipped to length C, with noise of deviation `noise`·C.
    ///
    /// The data of a site may be replaced by any other data. Two updates of length C are at most 2·C apart,
    /// so Δ = 2·C. (Compared with no update at all, Δ is C: half of this μ.)
    #[must_use]
    pub fn of_releases(releases: u64, noise: f64) -> Self {
        Self { mu: 2.0 * (releases as f64).sqrt() / noise }
    }

    /// Returns the smallest δ for which the releases are (ε, δ)-differentially private: Φ(μ/2 − ε/μ) −
    /// e^ε·Φ(−μ/2 − ε/μ).
    #[must_use]
    pub fn delta(self, epsilon: f64) -> f64 {
        let mu = self.mu;
        if mu == 0.0 {
            return 0.0;
        }
        let (near, far) = (epsilon / mu - 0.5 * mu, epsilon / mu + 0.5 * mu);
        // e^ε·φ(far) = φ(near), so the second term needs no large power of e.
        let delta = match near >= 0.0 {
            true => density(near) * (mills_ratio(near) - mills_ratio(far)),
            false => 1.0 - density(near) * (mills_ratio(-near) + mills_ratio(far)),
        };
        delta.clamp(0.0, 1.0)
    }

    /// Returns the smallest ε for which the releases are (ε, δ)-differentially private, for δ > 0.
    #[must_use]
    pub fn epsilon(self, delta: f64) -> f64 {
        if self.delta(0.0) <= delta {
            return 0.0;
        }
        // Upper bound from concentrated differential privacy (Bun & Steinke 2016, proposition 1.3): ρ +
        // 2·√(ρ·ln 1/δ) with ρ = μ²/2.
        let mut above = 0.5 * self.mu * self.mu + self.mu * (2.0 * (1.0 / delta).ln()).sqrt();
        let mut below = 0.0;
        while above - below > 1e-12 * above {
            let middle = 0.5 * (below + above);
            // The precision of f64 is reached.
            if middle <= below || middle >= above {
                break;
            }
            if self.delta(middle) > delta { below = middle } else { above = middle }
        }
        above
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_mu(mu: f64) -> GaussianAccountant {
        GaussianAccountant { mu }
    }

    /// The definition: δ(ε) = ∫ max(0, p − e^ε·q) for p = N(μ, 1) and q = N(0, 1), by Simpson's rule from
    /// where p exceeds e^ε·q.
    fn delta_by_integration(mu: f64, epsilon: f64) -> f64 {
        let start = epsilon / mu + 0.5 * mu;
        let (steps, end) = (200_000u32, f64::max(start, mu) + 14.0);
        let width = (end - start) / f64::from(steps);
        let value = |i: u32| {
            let x = start + f64::from(i) * width;
            density(x - mu) - (epsilon - 0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
        };
        let inner: f64 = (1..steps).map(|i| if i % 2 == 1 { 4.0 } else { 2.0 } * value(i)).sum();
        (value(0) + inner + value(steps)) * width / 3.0
    }

    #[test]
    fn the_curve_is_what_integrating_the_privacy_loss_gives() {
        for mu in [0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0] {
            for epsilon in [0.0, 0.01, 0.1, 1.0, 3.0, 10.0, 30.0] {
                let expected = delta_by_integration(mu, epsilon);
                let delta = of_mu(mu).delta(epsilon);
                let gap = (delta - expected).abs();
                assert!(gap < 1e-13 + 1e-9 * expected, "μ {mu}, ε {epsilon}: {delta} is not {expected}");
            }
        }
    }

    #[test]
    fn epsilon_and_delta_are_each_others_inverse() {
        for (releases, noise) in [(1, 0.5), (1, 4.0), (30, 8.0), (1000, 20.0), (100_000, 3.0), (1, 0.01)] {
            let account = GaussianAccountant::of_releases(releases, noise);
            for delta in [1e-9, 1e-6, 1e-3] {
                let epsilon = account.epsilon(delta);
                assert!(
                    (account.delta(epsilon) / delta - 1.0).abs() < 1e-5,
                    "{account:?}: {epsilon} at {delta}"
                );
                assert!(account.delta(epsilon) <= delta * (1.0 + 1e-9), "no less than is spent");
            }
        }
        assert_eq!(GaussianAccountant::of_releases(0, 1.0).epsilon(1e-6), 0.0);
    }

    /// The noise of Balle & Wang's algorithm for ε = 1 and δ = 10⁻⁵ at sensitivity 1 is 3.730632.
    #[test]
    fn the_published_calibration_comes_out() {
        let epsilon = of_mu(1.0 / 3.730_631_634).epsilon(1e-5);
        assert!((epsilon - 1.0).abs() < 1e-6, "{epsilon}");
    }

    /// Returns ε by Rényi differential privacy: the order α costs α·μ²/2 (Mironov 2017, proposition 7),
    /// converted by Canonne, Kamath & Steinke 2020, proposition 12, at the best of many orders.
    fn epsilon_by_renyi(mu: f64, delta: f64) -> f64 {
        let at = |order: f64| {
            0.5 * order * mu * mu + ((order - 1.0) / order).ln() - (delta.ln() + order.ln()) / (order - 1.0)
        };
        (1..200_000).map(|i| at(1.0 + f64::from(i) * 0.005)).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn renyi_accounting_is_an_upper_bound_and_no_loose_one() {
        for mu in [0.1, 0.3, 1.0, 3.0, 10.0] {
            for delta in [1e-8, 1e-5] {
                let (exact, renyi) = (of_mu(mu).epsilon(delta), epsilon_by_renyi(mu, delta));
                assert!(exact < renyi, "μ {mu}, δ {delta}: {exact} is not below {renyi}");
                assert!(renyi < 1.2 * exact, "μ {mu}, δ {delta}: {renyi} is far above {exact}");
            }
        }
    }

    #[test]
    fn four_times_the_releases_cost_what_half_the_noise_does() {
        assert_eq!(GaussianAccountant::of_releases(400, 8.0), GaussianAccountant::of_releases(100, 4.0));
        let [few, many] =
            [10, 20].map(|releases| GaussianAccountant::of_releases(releases, 5.0).epsilon(1e-6));
        assert!(few < many && many < 2.0 * few);
    }
}
