//! Spans, and their traces.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use longhaul_common::id::{Round, RunId};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, IdGenerator as _, RandomIdGenerator, SpanData, SpanEvents, SpanLinks,
    SpanProcessor as _,
};

use super::SCOPE;

/// A queue of `OTEL_BSP_MAX_QUEUE_SIZE` (2048) spans, which drops new ones while full.
#[derive(Clone, Debug)]
pub struct Spans {
    processor: Arc<BatchSpanProcessor>,
    scope: InstrumentationScope,
}

/// A finished operation.
#[derive(Clone, Debug)]
pub struct Span {
    /// Name.
    pub name: &'static str,
    /// Round to which it belongs, if any; a round's trace contains its spans of all machines.
    pub round: Option<Round>,
    /// Whether it is the round's own span, the parent of the others.
    pub is_the_round: bool,
    /// Start, in microseconds of Unix time.
    pub began_us: u64,
    /// End, in microseconds of Unix time.
    pub ended_us: u64,
    /// Further attributes.
    pub attributes: Vec<KeyValue>,
}

/// The traces of a run: one per round, and one for the rest. Their ids are hashes, so that all processes
/// derive the same ones.
#[derive(Clone, Copy, Debug)]
pub struct RunTraces(pub RunId);

impl RunTraces {
    /// Returns the trace of a round, and the span of the round itself; `None`: the rest of the run.
    #[must_use]
    pub fn of(self, round: Option<Round>) -> (TraceId, SpanId) {
        let mut hasher = blake3::Hasher::new_derive_key("longhaul 2026 traces of a run");
        hasher.update(&self.0.0);
        if let Some(round) = round {
            hasher.update(&round.0.to_le_bytes());
        }
        let (mut trace, mut span) = ([0; 16], [0; 8]);
        let mut reader = hasher.finalize_xof();
        reader.fill(&mut trace);
        reader.fill(&mut span);
        (TraceId::from_bytes(trace), SpanId::from_bytes(span))
    }
}

impl Spans {
    pub(super) fn start(exporter: SpanExporter, resource: &Resource) -> Self {
        let mut processor = BatchSpanProcessor::builder(exporter).build();
        processor.set_resource(resource);
        let scope = InstrumentationScope::builder(SCOPE).with_version(env!("CARGO_PKG_VERSION")).build();
        Self { processor: Arc::new(processor), scope }
    }

    /// Queues a span, or drops it if the queue is full. Never blocks.
    pub fn put(&self, traces: RunTraces, span: Span) {
        let Span { name, round, is_the_round, began_us, ended_us, attributes } = span;
        let (trace, of_round) = traces.of(round);
        let id = if is_the_round { of_round } else { RandomIdGenerator::default().new_span_id() };
        let parent = if is_the_round || round.is_none() { SpanId::INVALID } else { of_round };
        let at = |us: u64| UNIX_EPOCH + Duration::from_micros(us);
        self.processor.on_end(SpanData {
            span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: parent,
            parent_span_is_remote: parent != SpanId::INVALID,
            span_kind: SpanKind::Internal,
            name: name.into(),
            start_time: at(began_us),
            end_time: at(ended_us.max(began_us)),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        });
    }

    pub(super) fn end(&self, within: Duration) {
        // Failures have been logged, and the process ends.
        let _ = self.processor.shutdown_with_timeout(within);
    }
}
