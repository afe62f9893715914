//! Of a program that was built without the feature `otel`: nothing is exported.

use longhaul_flight::FlightLog;
use longhaul_proto::identity::Identity;

/// What this process exports: nothing.
#[derive(Debug)]
pub(super) struct Exports;

impl Exports {
    /// Tells people who have named a collector that nothing will come.
    pub fn start() -> Self {
        if std::env::var_os("OTEL_EXPORTER_OTLP_ENDPOINT").is_some_and(|endpoint| !endpoint.is_empty()) {
            tracing::warn!(
                "OTEL_EXPORTER_OTLP_ENDPOINT is set, but nothing is exported: this worker was built without the feature `otel`"
            );
        }
        Self
    }

    /// Nobody is told.
    pub fn follow(&self, _: &FlightLog, _: &Identity, _: &str) {}

    /// There is nothing left.
    pub async fn end(&self) {}
}
