//! The coordinator's part of `deploy/kubernetes`, read by the coordinator's own parsers.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use clap::{CommandFactory as _, Parser as _};
use longhaul_common::config::RunConfig;
use longhaul_coordinator::cli::{Cli, Command, Up};
use longhaul_coordinator::store::etcd::{EtcdAddress, TlsFiles};
use longhaul_tests::kubernetes::{Container, Manifests, Port, Start};

const STATE: &str = "etcds://etcd.etcd:2379/my-run";

fn start(index: u32) -> Start {
    let state = (("etcd".to_owned(), "state".to_owned()), STATE.to_owned());
    Start {
        pod_ip: IpAddr::V4(Ipv4Addr::new(10, 244, 1, 7)),
        node_ip: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)),
        index,
        secrets: BTreeMap::from([state]),
    }
}

fn up(container: &Container<'_>) -> Up {
    up_as(container, 0)
}

/// Its environment is not this process's, so what clap would take from there is put into the line, under the name of the variable that clap asks for.
fn up_as(container: &Container<'_>, index: u32) -> Up {
    let mut line = container.command_line(&start(index)).unwrap();
    let variables = container.environment(&start(index)).unwrap();
    for argument in Cli::command().find_subcommand("up").unwrap().get_arguments() {
        let value = argument.get_env().and_then(|name| variables.get(name.to_str()?));
        if let (Some(value), Some(option)) = (value, argument.get_long())
            && !line.iter().any(|word| word.starts_with(&format!("--{option}=")))
        {
            line.push(format!("--{option}={value}"));
        }
    }
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
    let variables = container.environment(&start(0)).unwrap();
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
fn two_coordinators_of_one_run_name_themselves_first_and_then_each_other() {
    let manifests = Manifests::build("overlays/ha").unwrap();
    let set = &manifests.get("StatefulSet", "coordinator").unwrap()["spec"];
    assert_eq!(set["replicas"], 2);
    let container = manifests.container("coordinator").unwrap();
    let advertised = |index| up_as(&container, index).advertise.unwrap();
    assert_eq!(advertised(0), "coordinator-0:4800,coordinator-1:4800");
    assert_eq!(advertised(1), "coordinator-1:4800,coordinator-0:4800");
    for address in advertised(0).split(',') {
        let (service, port) = address.rsplit_once(':').unwrap();
        assert_eq!(offered(&manifests, service).number.to_string(), port);
    }
    let site = manifests.get("ConfigMap", "site").unwrap();
    assert_eq!(site["data"]["COORDINATOR"], advertised(0), "workers ask both");
}

#[test]
fn two_coordinators_find_etcd_by_what_the_secret_says() {
    let manifests = Manifests::build("overlays/ha").unwrap();
    let container = manifests.container("coordinator").unwrap();
    let url = up(&container).state.unwrap().0;
    let variables = container.environment(&start(0)).unwrap();
    let address = EtcdAddress::read(&url, |name| variables.get(name).cloned()).unwrap();
    let TlsFiles { authority, certificate, key } = address.tls.unwrap();
    let files = [(authority, "ca.crt"), (certificate, "tls.crt"), (key, "tls.key")];
    for (path, file) in files {
        assert_eq!(container.secret_key(&path.unwrap()).unwrap(), ("etcd", file));
    }
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
