//! Losses on the wire.

use rand::Rng;

use super::LinkConfig;

/// The loss process of one link: independent losses, or bursts.
///
/// Bursts follow a two-state Markov chain that loses every packet in its bad state (the simplified model of
/// Gilbert 1960). With mean burst length b and share p it leaves the bad state with probability 1/b and
/// enters it with p / (b (1 − p)), so that its stationary share of bad packets is p.
#[derive(Clone, Debug, Default)]
pub(super) struct LossProcess {
    in_burst: bool,
}

impl LossProcess {
    /// Whether the next packet is lost.
    pub(super) fn loses<R: Rng + ?Sized>(&mut self, config: &LinkConfig, rng: &mut R) -> bool {
        let Some(burst) = config.loss_burst_packets else {
            return rng.random_bool(config.loss);
        };
        self.in_burst = if self.in_burst {
            !rng.random_bool(1.0 / burst)
        } else {
            rng.random_bool(config.loss / (burst * (1.0 - config.loss)))
        };
        self.in_burst
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    const PACKETS: usize = 1_000_000;

    fn losses(notation: &str) -> Vec<bool> {
        let config: LinkConfig = notation.parse().unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut process = LossProcess::default();
        (0..PACKETS).map(|_| process.loses(&config, &mut rng)).collect()
    }

    fn share(losses: &[bool]) -> f64 {
        losses.iter().filter(|lost| **lost).count() as f64 / losses.len() as f64
    }

    #[test]
    fn independent_losses_take_their_share_within_five_standard_deviations() {
        let sigma = (0.01 * 0.99 / PACKETS as f64).sqrt();
        assert!((share(&losses("loss_percent=1")) - 0.01).abs() < 5.0 * sigma);
    }

    #[test]
    fn bursts_take_the_same_share_with_their_mean_length() {
        let losses = losses("loss_percent=2,loss_burst=8");
        let bursts = losses.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
        let mean_burst = losses.iter().filter(|lost| **lost).count() as f64 / bursts;
        // About 2,500 bursts of geometric length: 5 standard deviations are 5·√56/√2500 = 0.75 packets.
        assert!((mean_burst - 8.0).abs() < 0.75, "mean burst {mean_burst}");
        assert!((share(&losses) - 0.02).abs() < 0.003, "share {}", share(&losses));
    }

    #[test]
    fn a_link_without_loss_loses_nothing_and_one_that_loses_all_keeps_nothing() {
        assert_eq!(share(&losses("")), 0.0);
        assert_eq!(share(&losses("loss_percent=100")), 1.0);
    }
}
