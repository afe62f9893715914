//! The coordinator of `deploy/compose`.

use clap::Parser as _;
use longhaul_coordinator::cli::{Cli, Command, Up};
use longhaul_tests::compose::Compose;

fn up(compose: &Compose) -> Up {
    match Cli::try_parse_from(compose.services["coordinator"].command_line()).unwrap().command {
        Command::Up(up) => up,
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_is_told_to_workers_by_the_address_that_it_has_and_to_the_other_site_by_a_relay() {
    let compose = Compose::read().unwrap();
    let up = up(&compose);
    let service = &compose.services["coordinator"];
    let address = format!("{}:{}", service.networks["first"].ipv4_address, up.listen.port());
    assert_eq!(up.advertise.as_deref(), Some(address.as_str()));
    let relay = format!(
        "{}:4800={address}@second-first/first-second",
        compose.services["wan"].networks["second"].ipv4_address
    );
    assert!(compose.services["wan"].command.contains(&format!("--relay={relay}")), "{relay}");
    for (name, worker) in compose.built_from("worker") {
        let asked = &worker.command[1];
        let right =
            if worker.networks.contains_key("first") { asked == &address } else { relay.starts_with(asked) };
        assert!(right, "{name} asks {asked}");
    }
}

#[test]
fn what_it_must_remember_is_on_a_volume_and_its_api_is_for_this_machine() {
    let compose = Compose::read().unwrap();
    let (up, service) = (up(&compose), &compose.services["coordinator"]);
    assert_eq!(service.mounted_at("/var/lib/longhaul"), Some(("coordinator", true)));
    let (_, writable) =
        service.mounted_at(up.token_file.unwrap().parent().unwrap().to_str().unwrap()).unwrap();
    assert!(writable);
    assert_eq!(service.mounted_at(up.config.to_str().unwrap()), Some(("./run.toml", false)));
    assert_eq!(service.ports, [format!("127.0.0.1:{0}:{0}", up.http.port())]);
    assert!(up.stay);
}
