//! The contents and health check of the worker's image.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;

use longhaul_tests::dockerfile::{folder, stages};

fn list(program: &str) -> (bool, String, String) {
    let output = Command::new("sh").arg(folder().join("runtime-libraries.sh")).arg(program).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_libraries_of_the_image_are_those_of_libtorch_that_the_loader_opens() {
    let (listed, libraries, error) = list(env!("CARGO_BIN_EXE_worker-torch"));
    assert!(listed, "{error}");
    let names: BTreeSet<_> = libraries.lines().map(|path| Path::new(path).file_name().unwrap()).collect();
    for needed in ["libtorch.so", "libtorch_cpu.so", "libc10.so", "libgomp.so.1"] {
        assert!(names.contains(std::ffi::OsStr::new(needed)), "{needed} is not in {libraries}");
    }
    for path in libraries.lines() {
        assert!(Path::new(path).is_file() && path.contains(".so"), "{path}");
        assert!(!path.starts_with("/lib") && !path.starts_with("/usr/lib"), "the system has {path}");
    }
    // The base image has the other libraries.
    let loaded = Command::new("ldd").arg(env!("CARGO_BIN_EXE_worker-torch")).output().unwrap();
    let loaded = String::from_utf8(loaded.stdout).unwrap();
    let others = loaded.lines().filter_map(|line| line.split_once(" => ")).map(|(name, _)| name.trim());
    let others: Vec<_> = others.filter(|name| !names.contains(std::ffi::OsStr::new(name))).collect();
    for name in others {
        let of_the_system =
            ["libc.", "libm.", "libdl.", "libpthread.", "librt.", "libutil.", "libgcc_s.", "libstdc++."];
        assert!(of_the_system.iter().any(|prefix| name.starts_with(prefix)), "{name}");
    }
}

#[test]
fn a_program_without_libtorch_is_no_worker() {
    let (listed, _, error) = list("/bin/sh");
    assert!(!listed && error.contains("does not load libtorch"), "{error}");
}

#[test]
fn the_health_check_sees_a_socket_on_the_port_that_the_image_declares() {
    let stages = stages().unwrap();
    let worker = stages.iter().find(|stage| stage.name == "worker").unwrap();
    assert!(worker.last("EXPOSE").unwrap().starts_with("4801/udp"));
    let command = worker.health_check().unwrap();
    assert_eq!(command[2], format!(":{:04X} ", 4801));
    let is_well = |port: u16| {
        let words = command.iter().map(|word| word.replace(":12C1 ", &format!(":{port:04X} ")));
        let words: Vec<String> = words.collect();
        Command::new(&words[0]).args(&words[1..]).status().unwrap().success()
    };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    assert!(is_well(port));
    drop(socket);
    assert!(!is_well(port), "nobody listens there any more");
}
