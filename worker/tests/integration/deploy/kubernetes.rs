//! The workers' part of `deploy/kubernetes`, parsed with the worker's own parser.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use clap::{CommandFactory as _, Parser as _};
use longhaul_tests::dockerfile::stages;
use longhaul_tests::kubernetes::{Container, Manifests, Port, Start};
use longhaul_worker::agent::HANDING_OVER_MAX;
use longhaul_worker::cli::{Cli, Command, JoinArgs};

fn start() -> Start {
    Start {
        pod_ip: IpAddr::V4(Ipv4Addr::new(10, 244, 1, 7)),
        node_ip: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)),
        index: 3,
        secrets: BTreeMap::new(),
    }
}

/// Parses a container's command line. This process has another environment, so clap's variables become options of the line.
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
    assert_eq!(args.site, "first");
}

#[test]
fn a_worker_of_the_second_cluster_joins_from_a_site_of_its_own() {
    let manifests = Manifests::build("overlays/second-site").unwrap();
    assert!(manifests.get("StatefulSet", "coordinator").is_err());
    let args = join(&manifests.container("workers").unwrap());
    let (host, port) = args.coordinator.rsplit_once(':').unwrap();
    host.parse::<IpAddr>().unwrap();
    assert_eq!(port, "4800");
    assert_eq!(args.site, "second");
}

#[test]
fn the_token_is_a_file_of_the_secret_and_in_no_environment() {
    for folder in ["base", "overlays/second-site"] {
        let manifests = Manifests::build(folder).unwrap();
        let container = manifests.container("workers").unwrap();
        let file = join(&container).token.token_file.unwrap();
        let (secret, key) = container.secret_key(&file).unwrap();
        assert_eq!((secret, key), ("join-token", "token"), "{folder}");
        assert!(!container.environment(&start()).unwrap().contains_key("LONGHAUL_TOKEN"), "{folder}");
    }
}

#[test]
fn a_worker_is_reached_at_its_pods_address_on_the_declared_port() {
    let manifests = Manifests::build("base").unwrap();
    let container = manifests.container("workers").unwrap();
    let args = join(&container);
    assert_eq!(args.listen.unwrap().ip(), start().pod_ip);
    let port = |name: &str, protocol: &str| Port {
        name: name.to_owned(),
        protocol: protocol.to_owned(),
        number: args.listen.unwrap().port().into(),
    };
    // Members of a site meet at the same port number.
    assert_eq!(container.ports().unwrap(), [port("data", "UDP"), port("site", "TCP")]);
    let probe = &container.spec["readinessProbe"]["exec"]["command"];
    assert_eq!(probe[2], format!(":{:04X} ", args.listen.unwrap().port()), "as the kernel lists it");
}

#[test]
fn the_readiness_probe_is_the_health_check_of_the_image() {
    let manifests = Manifests::build("base").unwrap();
    let container = manifests.container("workers").unwrap();
    let worker = stages().unwrap().into_iter().find(|stage| stage.name == "worker").unwrap();
    let command = &container.spec["readinessProbe"]["exec"]["command"];
    assert_eq!(*command, serde_json::json!(worker.health_check().unwrap()));
}

#[test]
fn a_worker_behind_a_port_of_its_node_tells_other_sites_of_it() {
    let manifests = combined("base", "worker-node-ports");
    let args = join(&manifests.container("workers").unwrap());
    let advertised = args.advertise.unwrap();
    assert_eq!(advertised.ip(), start().node_ip);
    let service = &manifests.get("Service", &format!("workers-{}", start().index)).unwrap()["spec"];
    assert_eq!(service["ports"][0]["nodePort"], advertised.port());
    assert_eq!(
        service["selector"]["statefulset.kubernetes.io/pod-name"],
        format!("workers-{}", start().index)
    );
}

#[test]
fn a_worker_with_a_gpu_takes_that_and_nothing_else_in_every_cluster() {
    for overlay in ["base", "overlays/ha", "overlays/second-site"] {
        let manifests = combined(overlay, "gpu");
        let container = manifests.container("workers").unwrap();
        assert_eq!(join(&container).device, "cuda:0", "{overlay}");
        assert_eq!(container.spec["resources"]["limits"]["nvidia.com/gpu"], "1", "{overlay}");
        assert!(container.spec["image"].as_str().unwrap().starts_with("longhaul-worker-cuda:"), "{overlay}");
    }
}

/// An overlay with a component, as in a user's own folder.
fn combined(overlay: &str, component: &str) -> Manifests {
    let root = Manifests::root().canonicalize().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (overlay, component) = (root.join(overlay), root.join("components").join(component));
    let kustomization = format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [{}]\ncomponents: [{}]\n",
        overlay.display(),
        component.display()
    );
    std::fs::write(folder.path().join("kustomization.yaml"), kustomization).unwrap();
    Manifests::build(folder.path()).unwrap()
}

#[test]
fn a_worker_keeps_its_identity_and_takes_no_more_threads_than_it_has_cpus() {
    let all = [
        ("base", Manifests::build("base").unwrap()),
        ("overlays/second-site", Manifests::build("overlays/second-site").unwrap()),
        ("cpu", combined("base", "cpu")),
        ("gpu", combined("overlays/second-site", "gpu")),
    ];
    for (name, manifests) in all {
        let container = manifests.container("workers").unwrap();
        let args = join(&container);
        assert!(container.keeps(&args.cache_dir.unwrap()), "{name}");
        assert_eq!(container.spec["resources"]["limits"]["cpu"], args.threads.unwrap().to_string(), "{name}");
    }
}

#[test]
fn a_pod_is_given_the_time_that_leaving_takes() {
    let manifests = Manifests::build("base").unwrap();
    let grace_s =
        manifests.container("workers").unwrap().pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace_s > HANDING_OVER_MAX.as_secs(), "{grace_s}");
}
