//! The workers' part of `deploy/kubernetes`, read by the worker's own parser.
#![allow(clippy::unwrap_used, reason = "a test's own helpers fail the test")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use clap::{CommandFactory as _, Parser as _};
use longhaul_tests::kubernetes::{Container, Manifests, Port, Start};
use longhaul_worker::cli::{Cli, Command, JoinArgs};

/// What SIGTERM may take: the rest of a round, in seconds.
const LEAVING_S_MAX: u64 = 30;
const TOKEN: &str = "a token";

fn start() -> Start {
    let secret = (("join-token".to_owned(), "token".to_owned()), TOKEN.to_owned());
    Start { pod_ip: IpAddr::V4(Ipv4Addr::new(10, 244, 1, 7)), secrets: BTreeMap::from([secret]) }
}

/// Parses a container's command line. Its environment is not this process's, so what clap would take from there is put into the
/// line, under the name of the variable that clap asks for.
fn join(container: &Container<'_>) -> JoinArgs {
    let mut line = container.command_line(&start()).unwrap();
    let variables = container.environment(&start()).unwrap();
    let cli = Cli::command();
    for argument in cli.find_subcommand("join").unwrap().get_arguments() {
        let value = argument.get_env().and_then(|name| variables.get(name.to_str()?));
        if let (Some(value), Some(option)) = (value, argument.get_long()) {
            line.push(format!("--{option}={value}"));
        }
    }
    match Cli::try_parse_from(&line).unwrap_or_else(|error| panic!("{line:?}: {error}")).command {
        Command::Join(args) => args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_worker_of_the_base_joins_the_service_of_the_coordinator() {
    let manifests = Manifests::build("base").unwrap();
    let args = join(&manifests.container("workers").unwrap());
    let service = &manifests.get("Service", "coordinator").unwrap()["spec"]["ports"][0];
    assert_eq!(
        (&service["protocol"], args.coordinator),
        (&"UDP".into(), format!("coordinator:{}", service["port"]))
    );
    assert_eq!((args.site.as_str(), args.token.as_str()), ("first", TOKEN));
}

#[test]
fn a_worker_of_the_second_cluster_joins_from_a_site_of_its_own() {
    let manifests = Manifests::build("second-site").unwrap();
    assert!(manifests.get("StatefulSet", "coordinator").is_err());
    let args = join(&manifests.container("workers").unwrap());
    let (host, port) = args.coordinator.rsplit_once(':').unwrap();
    host.parse::<IpAddr>().unwrap();
    assert_eq!(port, "4800");
    assert_eq!((args.site.as_str(), args.token.as_str()), ("second", TOKEN));
}

#[test]
fn a_worker_is_reached_at_its_pods_address_on_the_declared_port() {
    let manifests = Manifests::build("base").unwrap();
    let container = manifests.container("workers").unwrap();
    let args = join(&container);
    assert_eq!(args.listen.ip(), start().pod_ip);
    let data =
        Port { name: "data".to_owned(), protocol: "UDP".to_owned(), number: args.listen.port().into() };
    assert_eq!(container.ports().unwrap(), [data]);
}

#[test]
fn a_worker_keeps_its_identity_and_takes_no_more_threads_than_it_has_cpus() {
    let manifests = Manifests::build("base").unwrap();
    let container = manifests.container("workers").unwrap();
    let args = join(&container);
    assert!(container.keeps(&args.cache_dir.unwrap()));
    assert_eq!(container.spec["resources"]["limits"]["cpu"], args.threads.unwrap().to_string());
}

#[test]
fn a_pod_is_given_the_time_that_leaving_takes() {
    let manifests = Manifests::build("base").unwrap();
    let grace_s =
        manifests.container("workers").unwrap().pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace_s > LEAVING_S_MAX, "{grace_s}");
}
