//! Of a program that was built without the feature `otel`: nothing is exported.

use std::convert::Infallible;
use std::sync::Arc;

use crate::history::RoundPoint;
use longhaul_run::{Run, Status};

/// Exports of this process: none.
#[derive(Debug)]
pub struct Exports;

/// An exported run: none exists.
#[derive(Debug)]
pub struct Exported(Infallible);

impl Exports {
    /// Warns that nothing will come, if a collector is configured.
    #[must_use]
    pub fn start() -> Self {
        if std::env::var_os("OTEL_EXPORTER_OTLP_ENDPOINT").is_some_and(|endpoint| !endpoint.is_empty()) {
            tracing::warn!(
                "OTEL_EXPORTER_OTLP_ENDPOINT is set, and nothing is exported: this coordinator was built without the feature `otel`"
            );
        }
        Self
    }

    /// None.
    #[must_use]
    pub fn begin(&self, _: &Run, _: u64) -> Option<Exported> {
        None
    }

    /// There is nothing to stop.
    pub fn rest(&self) {}

    /// There is nothing left.
    pub fn end(&self) {}
}

impl Exported {
    /// Never called.
    pub fn note(&mut self, _: u64, _: &Arc<Status>) {
        match self.0 {}
    }

    /// Never called.
    pub fn note_round(&mut self, _: u64, _: &RoundPoint) {
        match self.0 {}
    }
}
