//! Replacement for telemetry in builds without the feature `otel`.

use longhaul_flight::FlightLog;
use longhaul_proto::identity::Identity;

/// An exporter that exports nothing.
#[derive(Debug)]
pub(super) struct Exports;

impl Exports {
    /// Warns if the environment names a collector.
    pub fn start() -> Self {
        if std::env::var_os("OTEL_EXPORTER_OTLP_ENDPOINT").is_some_and(|endpoint| !endpoint.is_empty()) {
            tracing::warn!(
                "OTEL_EXPORTER_OTLP_ENDPOINT is set, but nothing is exported: this worker was built without the feature `otel`"
            );
        }
        Self
    }

    /// Does nothing.
    pub fn follow(&self, _: &FlightLog, _: &Identity, _: &str) {}

    /// Does nothing.
    pub async fn end(&self) {}
}
