//! Telemetry without a collector.

use std::collections::HashSet;
use std::process::Command;

use longhaul_common::id::{Round, RunId};
use longhaul_proto::telemetry::{RunTraces, Settings, Telemetry};

fn wanted(variables: &[(&str, &str)]) -> (bool, bool) {
    let variable = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let Settings { spans, metrics } = Settings::read(variable);
    (spans, metrics)
}

#[test]
fn nothing_is_exported_where_no_endpoint_is_named() {
    const ALL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
    assert_eq!(wanted(&[]), (false, false));
    assert_eq!(
        wanted(&[("OTEL_SERVICE_NAME", "mine"), ("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]),
        (false, false)
    );
    assert_eq!(wanted(&[ALL]), (true, true));
    let of_traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4318/v1/traces");
    assert_eq!(wanted(&[of_traces]), (true, false));
    assert_eq!(wanted(&[ALL, ("OTEL_TRACES_EXPORTER", "none")]), (false, true));
    assert_eq!(wanted(&[ALL, ("OTEL_SDK_DISABLED", "true")]), (false, false));
}

#[test]
fn all_processes_of_a_run_have_the_same_traces_and_no_two_rounds_or_runs_have() {
    let (one, other) = (RunTraces(RunId([1; 16])), RunTraces(RunId([2; 16])));
    assert_eq!(one.of(Some(Round(3))), RunTraces(RunId([1; 16])).of(Some(Round(3))));
    let first = Some(Round(0));
    let all = [one.of(None), one.of(first), one.of(Some(Round(1))), other.of(None), other.of(first)];
    assert_eq!(all.iter().copied().collect::<HashSet<_>>().len(), all.len());
    assert!(all.iter().all(|(trace, span)| trace.to_bytes() != [0; 16] && span.to_bytes() != [0; 8]));
}

/// Body of the process that the test starts, as the environment belongs to a process.
#[tokio::test]
#[ignore = "the process that the test beside it starts"]
async fn a_task_that_starts_telemetry() {
    let error = Telemetry::start(&Settings::of_the_environment(), "tested").unwrap_err().to_string();
    assert!(error.contains("OTEL_EXPORTER_OTLP_"), "{error}");
}

#[test]
fn an_endpoint_that_is_none_is_an_error_wherever_telemetry_is_started() {
    let process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "otel::a_task_that_starts_telemetry"])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://not an address")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&process.stdout);
    assert!(process.status.success() && said.contains("1 passed"), "{process:?}");
}
