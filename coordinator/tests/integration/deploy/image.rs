//! How the image of a coordinator says that it is well, and what its page tells to type.

use std::process::Command;

use clap::{CommandFactory as _, Parser as _};
use longhaul_coordinator::cli::{Cli, Up};
use longhaul_tests::dockerfile::{Stage, folder, stages};

use crate::running::Site;

fn stage() -> Stage {
    stages().unwrap().into_iter().find(|stage| stage.name == "coordinator").unwrap()
}

/// What clap takes for an option of `coordinator up` that is not given.
fn default_of(option: &str) -> String {
    let cli = Cli::command();
    let up = cli.find_subcommand("up").unwrap();
    let argument = up.get_arguments().find(|argument| argument.get_long() == Some(option)).unwrap();
    argument.get_default_values()[0].to_str().unwrap().to_owned()
}

#[test]
fn the_health_check_tells_a_coordinator_that_serves_from_none() {
    let command = stage().health_check().unwrap();
    let http = default_of("http");
    assert!(command[2].contains(&http.replace(':', "/")), "it asks at {http}");
    let is_well = |address: &str| {
        let script = command[2].replace(&http.replace(':', "/"), &address.replace(':', "/"));
        Command::new(&command[0])
            .arg(&command[1])
            .arg(script)
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap()
            .success()
    };
    let site = Site::new();
    let running = site.start(&[]);
    assert!(is_well(&site.http_address()));
    running.kill();
    assert!(!is_well(&site.http_address()));
}

#[test]
fn the_image_declares_the_ports_that_are_listened_on_by_default_and_a_state_directory_on_its_volume() {
    let port = |option: &str| default_of(option).rsplit_once(':').unwrap().1.to_owned();
    assert_eq!(stage().last("EXPOSE").unwrap(), format!("{}/udp {}/tcp", port("listen"), port("http")));
    let (variable, folder) =
        stage().last("ENV").unwrap().split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    assert!(folder.starts_with(stage().last("VOLUME").unwrap()));
    let cli = Cli::command();
    let mut arguments = cli.find_subcommand("up").unwrap().get_arguments();
    assert!(arguments.any(|argument| argument.get_env().is_some_and(|name| name == variable.as_str())));
}

#[test]
fn the_command_of_the_page_is_understood() {
    let page = std::fs::read_to_string(folder().join("README.md")).unwrap();
    let image = concat!("longhaul-coordinator:", env!("CARGO_PKG_VERSION"), " up");
    let line = page.lines().find_map(|line| Some(line.split_once(image)?.1)).unwrap();
    let words = ["coordinator", "up"].into_iter().chain(line.split_whitespace());
    let Up { advertise, .. } = match Cli::try_parse_from(words).unwrap().command {
        longhaul_coordinator::cli::Command::Up(up) => up,
        other => panic!("{other:?}"),
    };
    assert!(advertise.is_some());
}
