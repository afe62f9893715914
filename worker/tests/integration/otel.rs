//! The records of a worker as received by an OpenTelemetry collector.

use longhaul_common::id::{FragmentId, Round, RunId, WorkerId};
use longhaul_flight::{Export, Recorder};
use longhaul_member::activity::Activity;
use longhaul_proto::frame::FrameKind;
use longhaul_proto::telemetry::{RunTraces, Settings, Telemetry};
use longhaul_tests::collector::Collector;
use longhaul_tests::own_process;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

const RUN: RunId = RunId([7; 16]);

/// The process that the test starts, as it needs its own environment.
#[test]
#[ignore = "the process that the test beside it starts"]
fn a_worker_that_does_something() {
    let telemetry = Telemetry::start(&Settings::of_the_environment(), "longhaul-worker").unwrap().unwrap();
    let recorder = std::sync::Arc::new(Recorder::default());
    recorder.note(Activity::Evaluate);
    recorder.export(Export::new(telemetry.spans().unwrap(), RUN, WorkerId(1), "amsterdam"));
    drop(recorder.begin(Activity::Compute { round: Round(3), step: 11 }));
    let (from, kind, round, fragment) = (WorkerId(2), FrameKind::Result, Round(3), FragmentId(5));
    recorder.note(Activity::Receive { from, kind, round, fragment, bytes: 1000 });
    recorder.note(Activity::Receive { from, kind: FrameKind::Stage, round, fragment, bytes: 1000 });
    telemetry.end();
}

#[test]
fn what_ends_is_a_span_of_its_round_with_all_that_is_known_of_it() {
    let collector = Collector::start().unwrap();
    let mut process = own_process::of_test("otel::a_worker_that_does_something");
    process.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint()).env("OTEL_SERVICE_NAME", "mine");
    own_process::run(process);
    let exports = collector.posted("/v1/traces");
    let exports: Vec<_> =
        exports.iter().map(|body| ExportTraceServiceRequest::decode(body.as_slice()).unwrap()).collect();
    let resources: Vec<_> = exports.iter().flat_map(|export| &export.resource_spans).collect();
    let about = &resources[0].resource.as_ref().unwrap().attributes;
    assert!(
        about.iter().any(|known| known.key == "service.name" && format!("{known:?}").contains("mine")),
        "{about:?}"
    );
    let spans: Vec<&Span> =
        resources.iter().flat_map(|of| &of.scope_spans).flat_map(|of| &of.spans).collect();
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["compute", "receive", "receive"], "what ended before is not told");
    let (trace, round) = RunTraces(RUN).of(Some(Round(3)));
    for span in &spans[..2] {
        assert_eq!(
            (&span.trace_id[..], &span.parent_span_id[..]),
            (&trace.to_bytes()[..], &round.to_bytes()[..])
        );
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano && span.start_time_unix_nano > 0);
    }
    let (of_no_round, _) = RunTraces(RUN).of(None);
    assert_eq!((&spans[2].trace_id[..], spans[2].parent_span_id.len()), (&of_no_round.to_bytes()[..], 0));
    assert_eq!(attributes(spans[0]), ["round=3", "site=amsterdam", "step=11", "track=device", "worker=w1"]);
    let of_frame = [
        "bytes=1000",
        "fragment=5",
        "frame=result",
        "peer=w2",
        "round=3",
        "site=amsterdam",
        "track=network",
        "worker=w1",
    ];
    assert_eq!(attributes(spans[1]), of_frame);
}

/// Attributes in the order of their names, without the common prefix.
fn attributes(span: &Span) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let told = span.attributes.iter().map(|known| {
        let value = known.value.as_ref().and_then(|value| value.value.as_ref()).unwrap();
        format!("{}={}", known.key.strip_prefix("longhaul.").unwrap(), text(value))
    });
    let mut told: Vec<String> = told.collect();
    told.sort();
    told
}
