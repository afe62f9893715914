//! Export of this process's telemetry to an OpenTelemetry collector.

use longhaul_flight::{Export, FlightLog};
use longhaul_proto::identity::Identity;
use longhaul_proto::telemetry::{Settings, Telemetry};

/// The exporter, if the environment names a collector.
#[derive(Debug)]
pub(super) struct Exports(Option<Telemetry>);

impl Exports {
    /// Configures the exporter from the environment. Invalid settings log a warning and disable it.
    pub fn start() -> Self {
        let settings = Settings { metrics: false, ..Settings::of_the_environment() };
        let started = Telemetry::start(&settings, "longhaul-worker");
        Self(started.unwrap_or_else(|error| {
            tracing::warn!("{error}; training goes on without");
            None
        }))
    }

    /// Exports later records under this worker's identity.
    pub fn follow(&self, flight: &FlightLog, identity: &Identity, site: &str) {
        if let Some(spans) = self.0.as_ref().and_then(Telemetry::spans) {
            flight.recorder().export(Export::new(spans, identity.run(), identity.worker(), site));
        }
    }

    /// Sends remaining records at the end of the process, for some seconds at most.
    pub async fn end(&self) {
        if let Some(telemetry) = self.0.clone() {
            // A panic has been reported.
            let _ = tokio::task::spawn_blocking(move || telemetry.end()).await;
        }
    }
}
