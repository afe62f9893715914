//! The coordinator as a unit of systemd.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Parser as _;
use longhaul_coordinator::cli::{Cli, Command};
use longhaul_tests::systemd::{Unit, folder, variables};

#[test]
fn the_unit_starts_a_coordinator_that_remembers_in_its_state_directory() {
    let unit = Unit::read("longhaul-coordinator.service", "").unwrap();
    let state = Path::new("/var/lib").join(unit.get("StateDirectory").unwrap());
    let mut known: BTreeMap<_, _> =
        variables(&std::fs::read_to_string(folder().join("coordinator.env")).unwrap()).unwrap();
    known.insert("STATE_DIRECTORY".to_owned(), state.display().to_string());
    let line = unit.command_line(&known).unwrap();
    let up = match Cli::try_parse_from(&line).unwrap_or_else(|error| panic!("{line:?}: {error}")).command {
        Command::Up(up) => up,
        other => panic!("{other:?}"),
    };
    assert_eq!(up.state_dir, state);
    assert!(up.token_file.unwrap().starts_with(&state));
    assert_eq!(up.advertise.as_deref(), Some("head.example.org:4800"));
    assert!(!up.stay, "a run that is finished ends the unit");
    assert!(up.http.ip().is_loopback());
    let unit_file = unit.get("EnvironmentFile").unwrap();
    assert!(unit_file.starts_with("-/etc/longhaul/"), "none is needed: {unit_file}");
}
