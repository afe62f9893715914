//! `longhaul-demo` as in an unpacked tarball.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::process::{Command, Output};

fn demo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_longhaul-demo")).args(arguments).output().unwrap()
}

#[test]
fn a_folder_without_the_programs_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (programs, dir) = (folder.path().join("bin"), folder.path().join("demo"));
    std::fs::create_dir(&programs).unwrap();
    let output = demo(&["--programs", programs.to_str().unwrap(), "--dir", dir.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("there is no coordinator in") && said.contains("--programs"), "{said}");
    assert!(!dir.exists());
}

#[test]
fn its_help_tells_the_link_and_where_files_go() {
    let output = demo(&["--help"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(["--rate-mbit", "--rtt-ms", "--loss", "--dir"].iter().all(|word| said.contains(word)), "{said}");
}
