//! What this process does, for a collector of OpenTelemetry.

use longhaul_flight::{Export, FlightLog};
use longhaul_proto::identity::Identity;
use longhaul_proto::telemetry::{Settings, Telemetry};

/// What this process exports, if the environment names a collector.
#[derive(Debug)]
pub(super) struct Exports(Option<Telemetry>);

impl Exports {
    /// As the environment says. Where that makes no sense, people are told, and nothing is exported.
    pub fn start() -> Self {
        let settings = Settings { metrics: false, ..Settings::of_the_environment() };
        let started = Telemetry::start(&settings, "longhaul-worker");
        Self(started.unwrap_or_else(|error| {
            tracing::warn!("{error}; training goes on without");
            None
        }))
    }

    /// From now on, what is recorded is this worker's.
    pub fn follow(&self, flight: &FlightLog, identity: &Identity, site: &str) {
        if let Some(spans) = self.0.as_ref().and_then(Telemetry::spans) {
            flight.recorder().export(Export::new(spans, identity.run(), identity.worker(), site));
        }
    }

    /// The process ends: what is left is sent, for some seconds at most.
    pub async fn end(&self) {
        if let Some(telemetry) = self.0.clone() {
            // One that panicked has said so.
            let _ = tokio::task::spawn_blocking(move || telemetry.end()).await;
        }
    }
}
