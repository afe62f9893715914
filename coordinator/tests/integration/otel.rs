//! What a coordinator tells a collector of OpenTelemetry, as the collector hears it.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};

use longhaul_common::id::{Round, RunId};
use longhaul_proto::telemetry::RunTraces;
use longhaul_tests::collector::Collector;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use crate::running::Site;
use crate::running::fleet::Fleet;

/// What came to a path.
fn decoded<T: Message + Default>(collector: &Collector, path: &str) -> Vec<T> {
    collector.posted(path).iter().map(|body| T::decode(body.as_slice()).unwrap()).collect()
}

fn text(value: &Option<AnyValue>) -> String {
    match value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    }
}

fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    attributes.iter().find(|known| known.key == key).map(|known| text(&known.value))
}

fn long_run() -> Site {
    Site::of(&crate::running::run_toml().steps(40))
}

/// Runs with two workers to the end, with these variables; answers the run's id.
async fn run(site: &Site, variables: &[(&str, &str)]) -> (RunId, String) {
    let running = site.start_in(variables, &[]);
    let id: RunId = site.status()["run"].as_str().unwrap().parse().unwrap();
    let _fleet = Fleet::join(&running, &["north", "south"], 2).await;
    let (code, said) = tokio::task::block_in_place(|| running.end());
    assert_eq!(code, Some(0), "{said}");
    (id, said)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_hears_the_metrics_and_a_span_of_each_round_and_phase() {
    let collector = Collector::start().unwrap();
    let endpoint = collector.endpoint();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test"),
    ];
    let (id, said) = run(&long_run(), &variables).await;
    assert!(!said.contains("telemetry"), "{said}");
    check_metrics(&decoded(&collector, "/v1/metrics"));
    check_spans(&decoded(&collector, "/v1/traces"), RunTraces(id));
}

/// The last export is of the run's end.
fn check_metrics(exports: &[ExportMetricsServiceRequest]) {
    let [of_resource] = &exports.last().unwrap().resource_metrics[..] else { panic!("{exports:?}") };
    let about = &of_resource.resource.as_ref().unwrap().attributes;
    assert_eq!(attribute(about, "service.name").as_deref(), Some("longhaul-coordinator"));
    assert_eq!(attribute(about, "deployment.environment.name").as_deref(), Some("test"));
    let [scope] = &of_resource.scope_metrics[..] else { panic!("{of_resource:?}") };
    let metric =
        |name: &str| scope.metrics.iter().find(|metric| metric.name == name).unwrap().data.as_ref().unwrap();
    let Data::Gauge(step) = metric("longhaul_step") else { panic!("not a gauge") };
    assert_eq!(step.data_points[0].value, Some(number_data_point::Value::AsDouble(40.0)));
    let Data::Gauge(norm) = metric("longhaul_gradient_norm") else { panic!("not a gauge") };
    let Some(number_data_point::Value::AsDouble(norm)) = norm.data_points[0].value else {
        panic!("{norm:?}")
    };
    assert!((0.4..2.2).contains(&norm), "{norm}");
    let Data::Sum(tokens) = metric("longhaul_tokens_total") else { panic!("not a counter") };
    assert!(tokens.is_monotonic, "{tokens:?}");
    let Data::Gauge(phases) = metric("longhaul_phase") else { panic!("not a gauge") };
    let now =
        phases.data_points.iter().find(|point| point.value == Some(number_data_point::Value::AsDouble(1.0)));
    assert_eq!(attribute(&now.unwrap().attributes, "phase").as_deref(), Some("finished"));
    // The page lists what there is; see `deploy/metrics.rs`.
    let page = include_str!("../../../docs/book/src/metrics.md");
    assert!(scope.metrics.len() > 20);
    for metric in &scope.metrics {
        let is_listed =
            page.contains(&format!("`{}`", metric.name)) || page.contains(&format!("`{}{{", metric.name));
        assert!(is_listed, "{}", metric.name);
    }
}

fn check_spans(exports: &[ExportTraceServiceRequest], traces: RunTraces) {
    let resources = exports.iter().flat_map(|export| &export.resource_spans);
    let spans: Vec<&Span> = resources.flat_map(|of| &of.scope_spans).flat_map(|of| &of.spans).collect();
    let rounds: Vec<_> = spans.iter().filter(|span| span.name == "round").collect();
    let numbers: Vec<_> =
        rounds.iter().map(|span| attribute(&span.attributes, "longhaul.round").unwrap()).collect();
    assert_eq!(numbers, (0..20).map(|round: u64| round.to_string()).collect::<Vec<_>>());
    for (round, span) in (0..).zip(&rounds) {
        let (trace, id) = traces.of(Some(Round(round)));
        assert_eq!((&span.trace_id[..], &span.span_id[..]), (&trace.to_bytes()[..], &id.to_bytes()[..]));
        assert!(span.parent_span_id.is_empty() && span.start_time_unix_nano <= span.end_time_unix_nano);
    }
    assert!(rounds.windows(2).all(|pair| pair[1].start_time_unix_nano <= pair[1].end_time_unix_nano));
    let phases = spans.iter().filter(|span| span.name == "phase");
    let phases: BTreeSet<_> =
        phases.map(|span| attribute(&span.attributes, "longhaul.phase").unwrap()).collect();
    assert!(
        phases.contains("gathering") && phases.contains("training") && phases.contains("finished"),
        "{phases:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_exported_where_no_endpoint_is_named_or_telemetry_is_off() {
    let collector = Collector::start().unwrap();
    let endpoint = collector.endpoint();
    run(&Site::new(), &[("OTEL_SERVICE_NAME", "mine")]).await;
    run(&Site::new(), &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint), ("OTEL_SDK_DISABLED", "true")]).await;
    assert_eq!(collector.count(), 0);
}

/// One takes connections and never answers; nobody listens at the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_down_or_hangs_stops_no_run() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    for (address, is_told) in [(closed, true), (silent.local_addr().unwrap(), false)] {
        let endpoint = format!("http://{address}");
        // Spans are tried at once, and the queue is full soon.
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
            ("OTEL_BSP_SCHEDULE_DELAY", "1"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "2"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1"),
        ];
        let (_, said) = run(&long_run(), &variables).await;
        assert!(!is_told || said.contains("telemetry cannot be exported"), "{said}");
        assert!(
            said.matches("telemetry cannot be exported").count() <= 2,
            "of spans and of metrics once: {said}"
        );
    }
}
