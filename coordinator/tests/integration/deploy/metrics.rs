//! The page on metrics and the dashboard, held against what a coordinator says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use longhaul_coordinator::http::metrics;
use longhaul_run::Status;
use longhaul_tests::kubernetes::Manifests;
use serde_json::{Value, json};

use crate::running::{Site, read};

/// Labels that Prometheus itself gives to what it reads.
const OF_PROMETHEUS: [&str; 2] = ["job", "instance"];

/// The labels of each metric, by its name.
type Metrics = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The metrics of an answer to `GET /metrics`.
fn told(text: &str) -> Metrics {
    let mut metrics = Metrics::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, labels) = line.split_once(['{', ' ']).unwrap();
        let labels = labels.split_once('}').map_or("", |(labels, _)| labels);
        let names = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
        metrics.entry(name.to_owned()).or_default().extend(names);
    }
    metrics
}

/// Of a run in which everything is known that there is to know.
fn everything() -> Metrics {
    let site = Site::new();
    let _running = site.start(&[]);
    let mut status = site.status();
    for field in [
        "generation",
        "loss",
        "gradient_norm",
        "validation_loss",
        "validation_accuracy",
        "residual_ratio",
        "selected_share",
        "tokens_per_s",
        "share_of_local_speed",
        "data_wait_share",
        "encode_wait_share",
        "bubble_share",
        "checkpoint_stall_share",
    ] {
        assert!(status.get(field).is_some(), "{field}");
        status[field] = json!(1);
    }
    status["parity"] = json!({ "round": 1, "hash": "", "equal": true });
    status["links"] =
        json!([{ "from": "a", "to": "b", "bytes_per_s": 1.0, "round_trip_s": 1.0, "seen_s": null }]);
    status["refused"] = json!([{ "site": "a", "reason": "norm", "count": 1, "round": 1, "by": "w1" }]);
    status["scores"] = json!([{ "task": "arc", "measure": "acc", "value": 0.5, "questions": 4, "step": 1 }]);
    status["members"] = json!([{
        "id": "w1", "site": "a", "part": 1, "device": "cpu", "state": "training", "health": "slow", "step": 1,
        "tokens_per_s": 1.0, "state_hash": null, "density": 0.1, "value_bits": 4.0, "last_seen_s": 1.0,
    }]);
    let status: Status = serde_json::from_value(status).unwrap();
    told(&metrics::encode(&status).unwrap())
}

#[test]
fn the_page_lists_every_metric_as_the_code_describes_it_and_no_other() {
    let site = Site::new();
    let _running = site.start(&[]);
    let status: Status = serde_json::from_value(site.status()).unwrap();
    let made = metrics::of(&status).iter().fold(String::new(), |table, metric| table + &metric.row() + "\n");
    let page = read(&root().join("docs/book/src/metrics.md"));
    let (_, after) = page.split_once("| --- | --- | --- |\n").unwrap();
    let (listed, _) = after.split_once("\n\n").unwrap();
    assert!(listed.trim_end() == made.trim_end(), "the table of docs/book/src/metrics.md has to be\n{made}");
    let mut described = Metrics::new();
    for name in made.lines().map(|row| row.split('`').nth(1).unwrap()) {
        let (name, labels) = name.trim_end_matches('}').split_once('{').unwrap_or((name, ""));
        let labels = labels.split(',').filter(|label| !label.is_empty()).map(str::to_owned).collect();
        described.insert(name.to_owned(), labels);
    }
    assert_eq!(
        described,
        everything(),
        "what is described, and what a run tells of which everything is known"
    );
}

#[test]
fn what_a_coordinator_answers_is_in_the_page() {
    let site = Site::new();
    let _running = site.start(&[]);
    let answer = ureq::get(format!("http://{}/metrics", site.http_address())).call().unwrap();
    let answer = answer.into_body().read_to_string().unwrap();
    assert!(answer.ends_with("# EOF\n"), "OpenMetrics ends so");
    let everything = everything();
    let told = told(&answer);
    assert!(told.len() > 10, "{told:?}");
    for name in told.keys() {
        assert!(everything.contains_key(name), "{name}");
    }
}

/// The metrics of an expression with what is asked of their labels: in braces, and in legends.
fn asked(expression: &str) -> Metrics {
    let mut metrics = Metrics::new();
    for part in expression.split("longhaul_").skip(1) {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len());
        let labels = part[end..]
            .strip_prefix('{')
            .and_then(|rest| rest.split_once('}'))
            .map_or("", |(labels, _)| labels);
        let names =
            labels.split(',').filter_map(|label| Some(label.split_once(['=', '!'])?.0.trim().to_owned()));
        metrics.entry(format!("longhaul_{}", &part[..end])).or_default().extend(names);
    }
    metrics
}

fn assert_known(asked: &Metrics, known: &Metrics, place: &str) {
    assert!(!asked.is_empty(), "{place} asks for nothing");
    for (name, labels) in asked {
        let there = known.get(name).unwrap_or_else(|| panic!("{place}: there is no {name}"));
        for label in labels.iter().filter(|label| !OF_PROMETHEUS.contains(&label.as_str())) {
            assert!(there.contains(label), "{place}: {name} has no label {label}");
        }
    }
}

#[test]
fn every_panel_of_the_dashboard_asks_for_metrics_and_labels_that_there_are() {
    let known = everything();
    let dashboard: Value = serde_json::from_str(&read(&root().join("deploy/grafana/longhaul.json"))).unwrap();
    let mut shown = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
                assert_eq!(
                    expression.matches(open).count(),
                    expression.matches(close).count(),
                    "{expression}"
                );
            }
            let asked = asked(expression);
            assert_known(&asked, &known, title);
            let legend = target["legendFormat"].as_str().unwrap_or_default();
            for label in legend.split("{{").skip(1).map(|rest| rest.split_once("}}").unwrap().0) {
                assert!(asked.keys().any(|name| known[name].contains(label)), "{title}: legend {label}");
            }
            shown.extend(asked.into_keys());
        }
    }
    let missing: Vec<_> = known.keys().filter(|name| !shown.contains(*name)).collect();
    assert!(missing.is_empty(), "the dashboard does not show {missing:?}");
    let query = dashboard["templating"]["list"][1]["query"].as_str().unwrap();
    assert_known(&asked(query), &known, query);
}

#[test]
fn panels_have_numbers_of_their_own_and_do_not_lie_on_each_other() {
    let dashboard: Value = serde_json::from_str(&read(&root().join("deploy/grafana/longhaul.json"))).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in panels {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(x + w <= 24, "{panel}");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{} lies on another", panel["title"]);
        }
    }
}

#[test]
fn the_alerts_of_the_page_ask_for_metrics_that_there_are() {
    let page = read(&root().join("docs/book/src/metrics.md"));
    let alerts = page.split("Worth an alert:").nth(1).unwrap();
    let expressions: Vec<&str> =
        alerts.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert!(expressions.len() > 3, "{expressions:?}");
    let known = everything();
    for expression in expressions {
        assert_known(&asked(expression), &known, expression);
    }
}

#[test]
fn the_monitor_of_the_manifests_asks_for_the_path_that_answers() {
    let site = Site::new();
    let _running = site.start(&[]);
    let text = read(&Manifests::root().join("components/monitoring/service-monitor.yaml"));
    let monitor = Manifests::from_yaml(&text).unwrap();
    let path = monitor.objects[0]["spec"]["endpoints"][0]["path"].as_str().unwrap();
    let answer = ureq::get(format!("http://{}{path}", site.http_address())).call().unwrap();
    assert_eq!(answer.headers()["content-type"], metrics::CONTENT_TYPE);
}
