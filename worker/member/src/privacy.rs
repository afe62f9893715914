//! Disclosure by this worker in a private run.

use anyhow::{Context, Result};
use longhaul_common::config::RunConfig;
use longhaul_common::id::Round;

use super::synchroniser::Synchroniser;
use crate::encode::mechanism::GaussianMechanism;

impl Synchroniser {
    /// Returns a value that depends on the data, such as a loss, if the coordinator may know it.
    pub(super) fn disclosed<T>(&self, told: Option<T>) -> Option<T> {
        told.filter(|_| self.config.reports_losses())
    }
}

pub(super) fn mechanism_of(config: &RunConfig, next_round: Round) -> Result<Option<GaussianMechanism>> {
    let Some(privacy) = &config.privacy else { return Ok(None) };
    let rounds = config.round_schedule().rounds();
    tracing::info!(
        epsilon = privacy.epsilon(rounds),
        delta = privacy.delta,
        rounds,
        epsilon_of_a_round = privacy.epsilon(1),
        "this site's contributions are private, with this total budget at the end of the run"
    );
    if next_round > Round(0) {
        tracing::warn!(
            next_round = next_round.0,
            "earlier contributions from this round on, before the run returned to it, have spent budget as well"
        );
    }
    Ok(Some(GaussianMechanism::new(privacy).context("draw this site's secret")?))
}
