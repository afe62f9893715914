//! Bits that follow the link: what a round took decides what the next one may take.

use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_common::config::SyncConfig;
use longhaul_common::id::Round;
use longhaul_proto::codec::{CodecSpec, Selection};

use super::ladder::chain_for;
use super::rate::{RateBounds, RateController, RoundTiming};
use super::synchroniser::Running;

/// The controller of a run that adapts, and the round that it watches.
pub(super) struct Adaptation {
    controller: RateController,
    chunk: u32,
    watched: Option<Watched>,
}

/// A round on its way.
struct Watched {
    round: Round,
    contributed_at: Duration,
    window: Duration,
}

impl Adaptation {
    /// None where the configuration does not ask for it.
    pub fn new(config: &SyncConfig) -> Option<Self> {
        let bounds = RateBounds {
            target_utilisation: config.target_utilisation,
            bits_min: config.bits_min,
            bits_max: config.bits_max,
        };
        config.adapt.then(|| Self {
            controller: RateController::new(bounds, BITS_AT_FIRST),
            chunk: config.chunk,
            watched: None,
        })
    }

    /// The chain of the next round.
    pub fn chain(&self) -> CodecSpec {
        chain_for(self.controller.bits(), self.chunk)
    }

    /// A round is contributed now, and its result is needed a `window` later.
    pub fn contributed(&mut self, round: Round, now: Duration, window: Duration) {
        self.watched = Some(Watched { round, contributed_at: now, window });
    }

    /// A round is complete; whether the chain changes.
    pub fn completed(&mut self, round: Round, now: Duration, round_trip: Duration) -> bool {
        let Some(watched) = self.watched.take_if(|watched| watched.round == round) else { return false };
        let taken = now.saturating_sub(watched.contributed_at);
        let (bits, window) = (self.controller.bits(), watched.window);
        let changed = self.controller.observe(RoundTiming { bits, taken, window, round_trip });
        if let Some(wanted) = changed {
            let CodecSpec { selection, values, .. } = self.chain();
            let keep = if let Selection::TopK { keep, .. } = selection { keep } else { self.chunk };
            tracing::info!(
                round = round.0, bits_before = bits, bits = wanted, keep, of = self.chunk, values = %values,
                taken_ms = taken.as_millis(), window_ms = window.as_millis(), round_trip_ms = round_trip.as_millis(),
                "the bits of a value follow the link"
            );
        }
        changed.is_some()
    }
}

/// Bits for each value in the first round, before anything is known of the link: a model of ten million parameters in a second over
/// 1 Mbit/s.
const BITS_AT_FIRST: f64 = 0.1;

/// Puts the controller's chain into effect.
pub(super) fn apply_chain(running: &mut Running) -> Result<()> {
    let Some(adaptation) = &running.adaptation else { return Ok(()) };
    let chain = adaptation.chain();
    running.compressor.adapt(chain);
    running.reducer.adapt(chain).context("adapt the codec to the link")
}
