//! What leaves this worker when the run is private, and what does not.

use anyhow::{Context, Result};
use longhaul_common::config::RunConfig;
use longhaul_common::id::Round;

use super::synchroniser::Synchroniser;
use crate::encode::mechanism::GaussianMechanism;

impl Synchroniser {
    /// What tells of the data, such as a loss, as the coordinator may know it.
    pub(super) fn disclosed<T>(&self, told: Option<T>) -> Option<T> {
        told.filter(|_| self.config.reports_losses())
    }
}

/// The mechanism that a run asks for, if it does.
pub(super) fn mechanism_of(config: &RunConfig, next_round: Round) -> Result<Option<GaussianMechanism>> {
    let Some(privacy) = &config.privacy else { return Ok(None) };
    let rounds = config.round_schedule().rounds();
    tracing::info!(
        epsilon = privacy.epsilon(rounds),
        delta = privacy.delta,
        rounds,
        epsilon_of_a_round = privacy.epsilon(1),
        "this site's contributions are private: so much is spent when the run is over"
    );
    if next_round > Round(0) {
        tracing::warn!(
            next_round = next_round.0,
            "what was contributed from this round on before the run went back to it has been spent as well"
        );
    }
    Ok(Some(GaussianMechanism::new(privacy).context("draw this site's secret")?))
}
