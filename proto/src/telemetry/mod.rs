//! Spans and metrics for a collector of OpenTelemetry: OTLP over HTTP, as protocol buffers, where the standard environment variables say.
//!
//! Nothing here is waited for. Spans go into a bounded queue, which loses those that come while it is full; metrics are read now and then, by a thread of their own.
//! A collector that is down is told of once.

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

/// How long a process that ends waits for the last that is on its way to a collector.
const FAREWELL_MAX: Duration = Duration::from_secs(3);
/// What all of it is said to come from.
const SCOPE: &str = "longhaul";

/// Why nothing can be exported.
#[derive(Debug, thiserror::Error)]
#[error("export telemetry as the environment's OTEL_EXPORTER_OTLP_… say: {0}")]
pub struct TelemetryError(String);

/// What takes spans and metrics to a collector.
#[derive(Clone, Debug)]
pub struct Telemetry {
    spans: Option<Spans>,
    metrics: Option<SdkMeterProvider>,
}

/// A metric that is read whenever it is exported.
pub struct Observed {
    /// Its whole name.
    pub name: String,
    /// What it is.
    pub help: &'static str,
    /// Its values, by their labels.
    pub read: Read,
}

/// A list of values with what tells them apart.
pub type Labelled<T> = Vec<(Vec<(&'static str, String)>, T)>;

/// How a metric is read. It is called on a thread that may wait, and must not take long.
pub enum Read {
    /// What it is now.
    Gauge(Box<dyn Fn() -> Labelled<f64> + Send + Sync>),
    /// What it has counted.
    Counter(Box<dyn Fn() -> Labelled<u64> + Send + Sync>),
}

impl Telemetry {
    /// What the settings ask for; none where they name no collector. `service` is its name where they have none.
    ///
    /// # Errors
    /// The settings make no sense, or the system gives no thread.
    pub fn start(settings: &Settings, service: &'static str) -> Result<Option<Self>, TelemetryError> {
        if !settings.spans && !settings.metrics {
            return Ok(None);
        }
        let failed = |error: &dyn std::fmt::Display| TelemetryError(error.to_string());
        // One each, so that neither waits for what the other sends.
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

    /// Where spans go, if they are wanted.
    #[must_use]
    pub fn spans(&self) -> Option<Spans> {
        self.spans.clone()
    }

    /// From now on, these are read and exported every so often (`OTEL_METRIC_EXPORT_INTERVAL`, a minute).
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

    /// Sends what has not been sent, and waits for that for three seconds at most.
    pub fn end(&self) {
        let (done, all) = sync_channel(1);
        let (spans, metrics) = (self.spans.clone(), self.metrics.clone());
        let ending = move || {
            if let Some(spans) = spans {
                spans.end(FAREWELL_MAX);
            }
            if let Some(metrics) = metrics {
                // What cannot be said has been told of, and the process ends.
                let _ = metrics.shutdown();
            }
            let _ = done.send(());
        };
        // Without a thread, what is left is lost.
        if std::thread::Builder::new().name("telemetry-end".to_owned()).spawn(ending).is_ok() {
            let _ = all.recv_timeout(FAREWELL_MAX);
        }
    }
}

/// Tells what is read now.
fn observing<T>(
    read: Box<dyn Fn() -> Labelled<T> + Send + Sync>,
) -> impl Fn(&dyn AsyncInstrument<T>) + Send + Sync {
    move |to| read().into_iter().for_each(|(labels, value)| to.observe(value, &key_values(labels)))
}

fn key_values(labels: Vec<(&'static str, String)>) -> Vec<KeyValue> {
    labels.into_iter().map(|(name, value)| KeyValue::new(name, value)).collect()
}

/// What the environment says of this process (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`).
fn resource(service: &'static str) -> Resource {
    /// What the name is where nobody gives one.
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
