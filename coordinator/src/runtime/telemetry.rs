//! Export of the run to an OpenTelemetry collector: the values of `GET /metrics`, and a span for each round and each
//! phase.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longhaul_common::id::Round;
use longhaul_proto::telemetry::{
    KeyValue, Labelled, Observed, Read, RunTraces, Settings, Span, Spans, Telemetry,
};

use crate::history::RoundPoint;
use crate::http::metrics::{self, Metric, Values};
use longhaul_run::{Phase, Run, Status};

/// Exports of this process, for any run it leads.
#[derive(Debug)]
pub struct Exports(Option<Exporting>);

#[derive(Debug)]
struct Exporting {
    telemetry: Telemetry,
    newest: Arc<Newest>,
}

/// The newest status.
#[derive(Debug, Default)]
struct Newest(Mutex<Latest>);

#[derive(Debug, Default)]
struct Latest {
    /// None: this process does not lead.
    status: Option<Arc<Status>>,
    /// The parsed metrics, once read.
    metrics: Option<Arc<Vec<Metric>>>,
    /// Whether metrics are read at all yet.
    is_observed: bool,
}

impl Exports {
    /// Starts by the environment. If that is invalid, a message reports it, and nothing is exported.
    #[must_use]
    pub fn start() -> Self {
        let started = Telemetry::start(&Settings::of_the_environment(), "longhaul-coordinator");
        let telemetry = started.unwrap_or_else(|error| {
            tracing::warn!("{error}; the run goes on without telemetry");
            None
        });
        Self(telemetry.map(|telemetry| Exporting { telemetry, newest: Arc::default() }))
    }

    /// Begins the export of a run that this process leads from now on.
    #[must_use]
    pub fn begin(&self, run: &Run, now_ms: u64) -> Option<Exported> {
        let Exporting { telemetry, newest } = self.0.as_ref()?;
        let status = Arc::new(run.status(now_ms));
        newest.put(Some(Arc::clone(&status)));
        if !std::mem::replace(&mut newest.lock().is_observed, true) {
            telemetry.observe(metrics::of(&status).into_iter().map(|metric| observed(metric, newest)));
        }
        Some(Exported {
            newest: Arc::clone(newest),
            spans: telemetry.spans(),
            traces: RunTraces(run.state().run),
            phase: status.run.phase,
            phase_began_ms: now_ms,
            round_began_ms: now_ms,
            now_ms,
        })
    }

    /// Stops the export, as another coordinator leads.
    pub fn rest(&self) {
        if let Some(Exporting { newest, .. }) = &self.0 {
            newest.put(None);
        }
    }

    /// Sends the remaining data at the end of the process, for some seconds at most.
    pub fn end(&self) {
        if let Some(Exporting { telemetry, .. }) = &self.0 {
            telemetry.end();
        }
    }
}

/// An exported run.
#[derive(Debug)]
pub struct Exported {
    newest: Arc<Newest>,
    spans: Option<Spans>,
    traces: RunTraces,
    phase: Phase,
    phase_began_ms: u64,
    round_began_ms: u64,
    now_ms: u64,
}

impl Exported {
    /// How it goes now.
    pub fn note(&mut self, now_ms: u64, status: &Arc<Status>) {
        self.newest.put(Some(Arc::clone(status)));
        self.now_ms = now_ms;
        if self.phase != status.run.phase {
            self.put_phase();
            (self.phase, self.phase_began_ms, self.round_began_ms) = (status.run.phase, now_ms, now_ms);
        }
    }

    /// Exports a round that counts. It began with the end of the one before, with the phase, or with this process's
    /// first sight of it.
    pub fn note_round(&mut self, now_ms: u64, round: &RoundPoint) {
        let figures = [("longhaul.loss", round.loss), ("longhaul.gradient_norm", round.gradient_norm)];
        let figures =
            figures.into_iter().filter_map(|(name, value)| Some(KeyValue::new(name, f64::from(value?))));
        let counts = [
            ("longhaul.round", round.round),
            ("longhaul.step", round.step),
            ("longhaul.samples", round.samples),
        ];
        self.put(Span {
            name: "round",
            round: Some(Round(round.round)),
            is_the_round: true,
            began_us: 1000 * self.round_began_ms,
            ended_us: 1000 * now_ms,
            attributes: counts.into_iter().map(count).chain(figures).collect(),
        });
        (self.round_began_ms, self.now_ms) = (now_ms, now_ms);
    }

    fn put_phase(&self) {
        let phase = format!("{:?}", self.phase).to_lowercase();
        self.put(Span {
            name: "phase",
            round: None,
            is_the_round: false,
            began_us: 1000 * self.phase_began_ms,
            ended_us: 1000 * self.now_ms,
            attributes: vec![KeyValue::new("longhaul.phase", phase)],
        });
    }

    fn put(&self, span: Span) {
        if let Some(spans) = &self.spans {
            spans.put(self.traces, span);
        }
    }
}

/// This process leads no more. The newest status stays, so that the last export has it.
impl Drop for Exported {
    fn drop(&mut self) {
        self.put_phase();
    }
}

impl Newest {
    fn put(&self, status: Option<Arc<Status>>) {
        let mut latest = self.lock();
        (latest.status, latest.metrics) = (status, None);
    }

    fn metrics(&self) -> Option<Arc<Vec<Metric>>> {
        let mut latest = self.lock();
        if latest.metrics.is_none() {
            latest.metrics = latest.status.as_ref().map(|status| Arc::new(metrics::of(status)));
        }
        latest.metrics.clone()
    }

    /// The values of a metric now.
    fn values(&self, name: &str) -> Option<Values> {
        let metrics = self.metrics()?;
        metrics.iter().find(|metric| metric.full_name() == name).map(|metric| metric.values.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Latest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count((name, value): (&'static str, u64)) -> KeyValue {
    KeyValue::new(name, i64::try_from(value).unwrap_or(i64::MAX))
}

/// A metric of the newest status, whatever that is when it is read.
fn observed(metric: Metric, newest: &Arc<Newest>) -> Observed {
    let (name, newest) = (metric.full_name(), Arc::clone(newest));
    let own = name.clone();
    let read = match metric.values {
        Values::Gauge(_) | Values::Gauges(_) => {
            Read::Gauge(Box::new(move || newest.values(&own).map(gauges).unwrap_or_default()))
        }
        Values::Counter(_) | Values::Counters(_) => {
            Read::Counter(Box::new(move || newest.values(&own).map(counters).unwrap_or_default()))
        }
    };
    Observed { name, help: metric.help, read }
}

fn gauges(values: Values) -> Labelled<f64> {
    match values {
        Values::Gauge(value) => value.map(|value| (Vec::new(), value)).into_iter().collect(),
        Values::Gauges(values) => values,
        Values::Counter(_) | Values::Counters(_) => Vec::new(),
    }
}

fn counters(values: Values) -> Labelled<u64> {
    match values {
        Values::Counter(value) => vec![(Vec::new(), value)],
        Values::Counters(values) => values,
        Values::Gauge(_) | Values::Gauges(_) => Vec::new(),
    }
}
