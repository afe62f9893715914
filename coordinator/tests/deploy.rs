//! The coordinator's part of `deploy/kubernetes`, read by the coordinator's own parsers.
#![allow(clippy::unwrap_used, reason = "a test's own helpers fail the test")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use clap::Parser as _;
use longhaul_common::config::RunConfig;
use longhaul_coordinator::cli::{Cli, Command, Up};
use longhaul_tests::kubernetes::{Container, Manifests, Port, Start};

fn start() -> Start {
    Start { pod_ip: IpAddr::V4(Ipv4Addr::new(10, 244, 1, 7)), secrets: BTreeMap::new() }
}

fn up(container: &Container<'_>) -> Up {
    let line = container.command_line(&start()).unwrap();
    match Cli::try_parse_from(&line).unwrap_or_else(|error| panic!("{line:?}: {error}")).command {
        Command::Up(up) => up,
        other => panic!("{other:?}"),
    }
}

/// The port that a Service offers, by the Service's name.
fn offered(manifests: &Manifests, service: &str) -> Port {
    let service = manifests.get("Service", service).unwrap();
    let [port] = service["spec"]["ports"].as_array().unwrap().as_slice() else { panic!("{service}") };
    Port::read(port, "port").unwrap()
}

fn port(name: &str, protocol: &str, number: u16) -> Port {
    Port { name: name.to_owned(), protocol: protocol.to_owned(), number: number.into() }
}

#[test]
fn the_ports_that_it_listens_on_are_those_that_are_declared_and_offered() {
    let manifests = Manifests::build("base").unwrap();
    let container = manifests.container("coordinator").unwrap();
    let up = up(&container);
    let (quic, http) = (port("quic", "UDP", up.listen.port()), port("http", "TCP", up.http.port()));
    assert_eq!(container.ports().unwrap(), [quic.clone(), http.clone()]);
    assert_eq!(offered(&manifests, "coordinator"), quic);
    assert_eq!(offered(&manifests, "coordinator-http"), http);
    assert_eq!(up.advertise.unwrap(), format!("coordinator:{}", up.listen.port()));
}

#[test]
fn probes_reach_the_paths_that_need_no_token() {
    let manifests = Manifests::build("base").unwrap();
    let container = manifests.container("coordinator").unwrap();
    let up = up(&container);
    assert!(up.http.ip().is_unspecified(), "the kubelet does not come over loopback");
    let http = port("http", "TCP", up.http.port());
    for (probe, path) in
        [("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")]
    {
        assert_eq!(container.http_probe(probe).unwrap(), (http.clone(), path), "{probe}");
    }
}

#[test]
fn what_it_must_remember_is_on_its_claim_and_found_there_by_the_other_commands() {
    let manifests = Manifests::build("base").unwrap();
    let container = manifests.container("coordinator").unwrap();
    let up = up(&container);
    assert!(container.keeps(&up.state_dir), "{}", up.state_dir.display());
    assert!(container.keeps(&up.token_file.unwrap()));
    // `kubectl exec … coordinator status` sees this variable and no argument.
    let variables = container.environment(&start()).unwrap();
    assert_eq!(up.state_dir.to_str().unwrap(), variables["LONGHAUL_STATE_DIR"]);
    assert!(up.stay, "a coordinator that exits when the run is finished is restarted for ever");
}

#[test]
fn the_run_is_one_that_the_workers_of_the_base_can_begin() {
    let manifests = Manifests::build("base").unwrap();
    let coordinator = manifests.container("coordinator").unwrap();
    let run = RunConfig::parse(coordinator.file(&up(&coordinator).config).unwrap()).unwrap();
    let workers = manifests.get("StatefulSet", "workers").unwrap();
    assert_eq!(workers["spec"]["replicas"], run.run.workers);
    let worker = manifests.container("workers").unwrap();
    let (_, file) = worker.config_map_key(run.data.path.as_deref().unwrap()).unwrap();
    assert_eq!(file, "text.zst");
    assert!(worker.keeps(&run.checkpoint.dir), "{}", run.checkpoint.dir.display());
}

#[test]
fn the_commands_that_the_page_tells_to_exec_are_understood() {
    let page = std::fs::read_to_string(Manifests::root().join("README.md")).unwrap();
    let commands =
        page.split('`').chain(page.lines()).filter_map(|text| text.split_once("exec coordinator-0 -- "));
    let ours: Vec<&str> =
        commands.map(|(_, rest)| rest).filter(|rest| rest.starts_with("coordinator ")).collect();
    assert!(ours.len() >= 3, "{ours:?}");
    for line in ours {
        let line = line.split('`').next().unwrap();
        Cli::try_parse_from(line.split_whitespace()).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}
