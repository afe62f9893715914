//! Spans and metrics for an OpenTelemetry collector: OTLP over HTTP, as protocol buffers, configured by the
//! standard environment variables.
//!
//! No caller waits. Spans enter a bounded queue, which drops new ones while full; a separate thread reads
//! metrics periodically. An unreachable collector is reported once.

mod client;
mod settings;
mod spans;

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use opentelemetry::metrics::{AsyncInstrument, MeterProvider as _};
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;

pub use opentelemetry::{KeyValue, Value};
pub use settings::Settings;
pub use spans::{RunTraces, Span, Spans};

use client::Client;

/// Maximum wait at process end for data in flight to a collector.
const FAREWELL_MAX: Duration = Duration::from_secs(3);
/// Instrumentation scope.
const SCOPE: &str = "longhaul";

/// Reason why export cannot start.
#[derive(Debug, thiserror::Error)]
#[error("export telemetry as the environment's OTEL_EXPORTER_OTLP_… say: {0}")]
pub struct TelemetryError(String);

/// Export of spans and metrics to a collector.
#[derive(Clone, Debug)]
pub struct Telemetry {
    spans: Option<Spans>,
    metrics: Option<SdkMeterProvider>,
}

/// A metric that is read at each export.
pub struct Observed {
    /// Full name.
    pub name: String,
    /// Description.
    pub help: &'static str,
    /// Values, by labels.
    pub read: Read,
}

/// Values with their labels.
pub type Labelled<T> = Vec<(Vec<(&'static str, String)>, T)>;

/// Reader of a metric. It is called on a thread that may block, and must be short.
pub enum Read {
    /// Current value.
    Gauge(Box<dyn Fn() -> Labelled<f64> + Send + Sync>),
    /// Cumulative count.
    Counter(Box<dyn Fn() -> Labelled<u64> + Send + Sync>),
}

impl Telemetry {
    /// Starts the export that the settings request; `None`: no collector is configured. `service` is the
    /// default service name.
    ///
    /// # Errors
    /// The settings are invalid, or the system provides no thread.
    pub fn start(settings: &Settings, service: &'static str) -> Result<Option<Self>, TelemetryError> {
        if !settings.spans && !settings.metrics {
            return Ok(None);
        }
        let failed = |error: &dyn std::fmt::Display| TelemetryError(error.to_string());
        // One client each, so that neither blocks the other.
        let client = || Client::new().map_err(|error| failed(&error));
        let resource = resource(service);
        let spans = match settings.spans {
            true => {
                let exporter = SpanExporter::builder().with_http().with_http_client(client()?).build();
                Some(Spans::start(exporter.map_err(|error| failed(&error))?, &resource))
            }
            false => None,
        };
        let metrics = match settings.metrics {
            true => {
                let exporter = MetricExporter::builder().with_http().with_http_client(client()?).build();
                let exporter = exporter.map_err(|error| failed(&error))?;
                let provider = SdkMeterProvider::builder().with_resource(resource);
                Some(provider.with_periodic_exporter(exporter).build())
            }
            false => None,
        };
        Ok(Some(Self { spans, metrics }))
    }

    /// Returns the queue of spans, if enabled.
    #[must_use]
    pub fn spans(&self) -> Option<Spans> {
        self.spans.clone()
    }

    /// Reads and exports these periodically from now on (`OTEL_METRIC_EXPORT_INTERVAL`, a minute).
    pub fn observe(&self, metrics: impl IntoIterator<Item = Observed>) {
        let Some(provider) = &self.metrics else { return };
        let meter = provider.meter(SCOPE);
        for Observed { name, help, read } in metrics {
            match read {
                Read::Gauge(read) => {
                    let gauge = meter.f64_observable_gauge(name).with_description(help);
                    let _ = gauge.with_callback(observing(read)).build();
                }
                Read::Counter(read) => {
                    let counter = meter.u64_observable_counter(name).with_description(help);
                    let _ = counter.with_callback(observing(read)).build();
                }
            }
        }
    }

    /// Sends the remaining data, for three seconds at most.
    pub fn end(&self) {
        let (done, all) = sync_channel(1);
        let (spans, metrics) = (self.spans.clone(), self.metrics.clone());
        let ending = move || {
            if let Some(spans) = spans {
                spans.end(FAREWELL_MAX);
            }
            if let Some(metrics) = metrics {
                // Failures have been logged, and the process ends.
                let _ = metrics.shutdown();
            }
            let _ = done.send(());
        };
        // Without a thread, the rest is lost.
        if std::thread::Builder::new().name("telemetry-end".to_owned()).spawn(ending).is_ok() {
            let _ = all.recv_timeout(FAREWELL_MAX);
        }
    }
}

/// Reports the values read.
fn observing<T>(
    read: Box<dyn Fn() -> Labelled<T> + Send + Sync>,
) -> impl Fn(&dyn AsyncInstrument<T>) + Send + Sync {
    move |to| read().into_iter().for_each(|(labels, value)| to.observe(value, &key_values(labels)))
}

fn key_values(labels: Vec<(&'static str, String)>) -> Vec<KeyValue> {
    labels.into_iter().map(|(name, value)| KeyValue::new(name, value)).collect()
}

/// Returns the environment's description of this process (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`).
fn resource(service: &'static str) -> Resource {
    /// The SDK's default service name.
    const UNNAMED: &str = "unknown_service";
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let named = Resource::builder().build();
    let name = named.get(&"service.name".into()).map(|name| name.to_string());
    let ours =
        name.is_none_or(|name| name.starts_with(UNNAMED)).then(|| KeyValue::new("service.name", service));
    let theirs =
        named.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone())).collect::<Vec<_>>();
    Resource::builder_empty().with_attribute(version).with_attributes(theirs).with_attributes(ours).build()
}
