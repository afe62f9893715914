//! The two sites of `deploy/compose`, except their command lines, which the programs' own tests check.

use std::net::Ipv4Addr;

use longhaul_common::config::RunConfig;
use longhaul_tests::compose::{Compose, Service};

#[test]
fn every_container_has_an_address_of_its_networks_and_only_the_emulator_is_in_both() {
    let compose = Compose::read().unwrap();
    let mut addresses = Vec::new();
    for (name, service) in &compose.services {
        assert_eq!(service.networks.len() > 1, name == "wan", "{name}");
        for (network, attachment) in &service.networks {
            let [pool] = compose.networks[network].ipam.config.as_slice() else { panic!("{network}") };
            let (first, bits) = pool.subnet.split_once('/').unwrap();
            assert_eq!(bits, "24");
            let first: Ipv4Addr = first.parse().unwrap();
            assert_eq!(attachment.ipv4_address.octets()[..3], first.octets()[..3], "{name} in {network}");
            addresses.push(attachment.ipv4_address);
        }
    }
    let count = addresses.len();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), count);
}

#[test]
fn every_container_is_confined_and_writes_to_volumes_that_are_declared() {
    let compose = Compose::read().unwrap();
    for (name, Service { read_only, cap_drop, security_opt, volumes, .. }) in &compose.services {
        assert!(read_only, "{name}");
        assert_eq!(cap_drop.as_slice(), ["ALL"], "{name}");
        assert_eq!(security_opt.as_slice(), ["no-new-privileges:true"], "{name}");
        for volume in volumes {
            let source = volume.split(':').next().unwrap();
            let path = source.starts_with('.').then(|| Compose::folder().join(source));
            assert!(
                path.map_or(compose.volumes.contains_key(source), |path| path.exists()),
                "{name}: {source}"
            );
            assert!(!source.starts_with('.') || volume.ends_with(":ro"), "{name}: {volume}");
        }
    }
}

#[test]
fn images_are_built_from_this_checkout() {
    for (name, service) in Compose::read().unwrap().services {
        let context = Compose::folder().join(&service.build.context);
        assert!(context.join(&service.build.dockerfile).is_file(), "{name}");
        let stages = longhaul_tests::dockerfile::stages().unwrap();
        assert!(stages.iter().any(|stage| stage.name == service.build.target), "{name}");
    }
}

#[test]
fn the_run_is_one_that_its_workers_can_begin() {
    let compose = Compose::read().unwrap();
    let run = std::fs::read_to_string(Compose::folder().join("run.toml")).unwrap();
    let run = RunConfig::parse(&run).unwrap();
    assert_eq!(compose.built_from("worker").count(), run.run.workers as usize);
    for (name, worker) in compose.built_from("worker") {
        let data = run.data.path.as_deref().unwrap();
        let (source, _) = worker.mounted_at(data.parent().unwrap().to_str().unwrap()).unwrap();
        assert!(Compose::folder().join(source).join(data.file_name().unwrap()).is_file(), "{name}");
        let (volume, writable) = worker.mounted_at("/var/lib/longhaul").unwrap();
        assert!(writable && volume == name, "each worker has a volume of its own: {name}");
        assert!(run.checkpoint.dir.starts_with("/var/lib/longhaul"));
    }
}
