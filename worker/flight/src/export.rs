//! Export of records as spans for an OpenTelemetry collector.

use longhaul_common::id::{RunId, WorkerId};
use longhaul_proto::telemetry::{KeyValue, RunTraces, Span, Spans, Value};
use serde_json::Value as Json;

use super::Record;

/// Destination and attributes of spans.
#[derive(Clone, Debug)]
pub struct Export {
    spans: Spans,
    traces: RunTraces,
    worker: WorkerId,
    site: String,
}

impl Export {
    /// Creates the export of this worker of this run.
    #[must_use]
    pub fn new(spans: Spans, run: RunId, worker: WorkerId, site: &str) -> Self {
        Self { spans, traces: RunTraces(run), worker, site: site.to_owned() }
    }

    /// Exports a finished record without blocking; `began_unix_us` is the recorder's start.
    pub(crate) fn put(&self, began_unix_us: u64, record: &Record) {
        self.spans.put(self.traces, self.span(began_unix_us, record));
    }

    fn span(&self, began_unix_us: u64, record: &Record) -> Span {
        let began_us = began_unix_us.saturating_add(record.began_us);
        let mut attributes = vec![
            KeyValue::new("longhaul.worker", self.worker.to_string()),
            KeyValue::new("longhaul.site", self.site.clone()),
            KeyValue::new("longhaul.track", record.what.track().name()),
        ];
        if let Json::Object(arguments) = record.what.arguments() {
            attributes.extend(arguments.into_iter().map(attribute));
        }
        Span {
            name: record.what.name(),
            round: record.what.round(),
            is_the_round: false,
            began_us,
            ended_us: began_us.saturating_add(record.took_us.unwrap_or_default()),
            attributes,
        }
    }
}

/// Converts an argument of a trace to an attribute. Its worker is the peer, unlike the attribute of that name.
fn attribute((name, value): (String, Json)) -> KeyValue {
    let name = if name == "worker" { "longhaul.peer".to_owned() } else { format!("longhaul.{name}") };
    let value = match value.as_i64() {
        Some(number) => Value::I64(number),
        None => value.as_str().map_or_else(|| value.to_string(), str::to_owned).into(),
    };
    KeyValue::new(name, value)
}
