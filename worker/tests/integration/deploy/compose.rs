//! The workers of `deploy/compose`.

use std::net::IpAddr;

use clap::Parser as _;
use longhaul_tests::compose::{Compose, Service};
use longhaul_worker::agent::HANDING_OVER_MAX;
use longhaul_worker::cli::{Cli, Command, JoinArgs};

/// The port that the image's health check queries.
const PORT: u16 = 4801;

/// Parses a command line after adding the option for an environment variable, as this process has another environment.
fn join(service: &Service) -> JoinArgs {
    let file = format!("--token-file={}", service.environment["LONGHAUL_TOKEN_FILE"]);
    match Cli::try_parse_from(service.command_line().chain([file.as_str()])).unwrap().command {
        Command::Join(args) => args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_worker_listens_at_its_address_in_the_network_that_its_site_is_called_by() {
    let compose = Compose::read().unwrap();
    for (name, service) in compose.built_from("worker") {
        let args = join(service);
        let [(network, attachment)] = service.networks.iter().collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(*network, args.site, "{name}");
        assert_eq!(
            (args.listen.unwrap().ip(), args.listen.unwrap().port()),
            (IpAddr::V4(attachment.ipv4_address), PORT),
            "{name}"
        );
        let coordinator: std::net::SocketAddr = args.coordinator.parse().unwrap();
        assert_eq!(coordinator.ip(), same_network(&compose, network, coordinator.ip()), "{name}");
    }
}

/// Returns the address if a service has it in that network.
fn same_network(compose: &Compose, network: &str, address: IpAddr) -> IpAddr {
    let there = compose.services.values().filter_map(|service| service.networks.get(network));
    let mut addresses = there.map(|attachment| IpAddr::V4(attachment.ipv4_address));
    addresses.find(|found| *found == address).unwrap_or_else(|| panic!("{address} is not in {network}"))
}

#[test]
fn every_worker_is_told_to_the_other_site_by_a_relay_that_leads_to_it() {
    let compose = Compose::read().unwrap();
    let relays: Vec<String> = compose.services["wan"].command.clone();
    for (name, service) in compose.built_from("worker") {
        let args = join(service);
        let other = if args.site == "first" { "second" } else { "first" };
        let relay = format!(
            "--relay={}={}@{other}-{site}/{site}-{other}",
            args.advertise.unwrap(),
            args.listen.unwrap(),
            site = args.site
        );
        assert!(relays.contains(&relay), "{name}: {relay} is not among {relays:?}");
    }
}

#[test]
fn the_token_is_where_the_coordinator_writes_it_and_workers_may_only_read_it() {
    let compose = Compose::read().unwrap();
    let written = compose.services["coordinator"].mounted_at("/run/longhaul").unwrap();
    for (name, service) in compose.built_from("worker") {
        let file = join(service).token.token_file.unwrap();
        let (volume, writable) = service.mounted_at(file.parent().unwrap().to_str().unwrap()).unwrap();
        assert_eq!((volume, true), written, "{name}");
        assert!(!writable, "{name}");
    }
}

#[test]
fn a_worker_has_the_time_that_leaving_takes_and_is_not_started_for_ever() {
    let compose = Compose::read().unwrap();
    for (name, service) in compose.built_from("worker") {
        let grace = service.stop_grace_period.as_deref().unwrap();
        let grace_s: u64 = grace.strip_suffix('s').unwrap().parse().unwrap();
        assert!(grace_s > HANDING_OVER_MAX.as_secs(), "{name}: {grace}");
        let (when, times) = service.restart.as_deref().unwrap().split_once(':').unwrap();
        assert!(when == "on-failure" && times.parse::<u32>().unwrap() > 0, "{name}");
    }
}
