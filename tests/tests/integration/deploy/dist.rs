//! The archive of `cargo xtask dist`, on a machine without anything else.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use longhaul_tests::cluster::binary;
use longhaul_tests::pip::Package;
use longhaul_tests::tools::skipped;
use serde_json::Value;

/// Contains the library with CycloneDX's schemas.
const CYCLONEDX: Package = Package { name: "cyclonedx-bom", version: "7.3.0" };
/// Fails if a file violates the schema, including the formats of its strings.
const VALIDATE: &str = "
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())
sys.exit(0 if error is None else str(error))
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn succeeded(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Packs the programs built here; `None`, with a notice: libtorch may not be redistributed.
fn packed(out: &Path) -> Option<PathBuf> {
    let libtorch = std::env::var_os("LIBTORCH").map_or_else(|| root().join(".libtorch"), PathBuf::from);
    if !libtorch.canonicalize().unwrap().parent().unwrap().join("licences").is_dir() {
        skipped("libtorch was assembled without its licences");
        return None;
    }
    let mut xtask = Command::new(binary("xtask").unwrap());
    xtask.arg("dist").arg("--programs").arg(binary("worker").unwrap().parent().unwrap());
    xtask.arg("--out").arg(out).env("SOURCE_DATE_EPOCH", "1700000000");
    Some(succeeded(&mut xtask).lines().last().unwrap().into())
}

/// Unpacks it; returns the folder in it.
fn unpacked(tarball: &Path, into: &Path) -> PathBuf {
    fs::create_dir_all(into).unwrap();
    succeeded(Command::new("tar").arg("-C").arg(into).arg("-xzf").arg(tarball));
    let entries: Vec<_> = fs::read_dir(into).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [folder] = entries.try_into().unwrap();
    assert_eq!(
        format!("{}.tar.gz", folder.display()).rsplit('/').next(),
        tarball.to_str().unwrap().rsplit('/').next()
    );
    folder
}

/// Installs the libraries named on the page where this system's loader searches for them, and nothing else.
fn provide(machine: &Path, folder: &Path) {
    let page = fs::read_to_string(folder.join("README.md")).unwrap();
    let named: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `lib")?.split_once("` |"))
        .map(|(name, _)| format!("lib{name}"))
        .collect();
    assert!(named.contains(&"libc.so.6".to_owned()), "{page}");
    let mut loaded = String::new();
    for program in ["coordinator", "worker", "worker-torch", "wan-emulator", "longhaul-demo"] {
        loaded += &succeeded(
            Command::new("ldd").arg(folder.join("bin").join(program)).env_remove("LD_LIBRARY_PATH"),
        );
    }
    let word = |line: &str, at| line.split_whitespace().nth(at).map(str::to_owned);
    for line in loaded.lines() {
        let path = match word(line, 0) {
            // The loader itself, which every program names.
            Some(path) if path.starts_with('/') => path,
            Some(name) if named.contains(&name) => word(line, 2).unwrap(),
            _ => continue,
        };
        let there = machine.join(path.trim_start_matches('/'));
        fs::create_dir_all(there.parent().unwrap()).unwrap();
        fs::copy(path, there).unwrap();
    }
}

/// Returns a command that enters another root folder, with its own `/proc`, from which the loader determines
/// a program's place; needs root, or a user namespace.
fn entering(machine: &Path) -> Option<Vec<String>> {
    let proc = machine.join("proc");
    fs::create_dir_all(&proc).unwrap();
    let mounted = format!("--mount-proc={}", proc.display());
    let ways = [vec!["unshare"], vec!["unshare", "--map-root-user"]];
    let ways = ways.map(|way| [way, vec!["--fork", "--pid", &mounted]].concat());
    let way = ways.into_iter().find(|words| {
        let output = Command::new(words[0]).args(&words[1..]).args(["chroot", "/", "true"]).output();
        output.is_ok_and(|output| output.status.success())
    })?;
    Some(way.into_iter().chain(["chroot"]).map(str::to_owned).collect())
}

struct Machine<'a> {
    entering: &'a [String],
    root: &'a Path,
    /// Name of the unpacked folder there.
    folder: &'a str,
}

impl Machine<'_> {
    fn run(&self, program: &str, args: &[&str]) -> Output {
        let mut command = Command::new(&self.entering[0]);
        command
            .args(&self.entering[1..])
            .arg(self.root)
            .arg(format!("{}/bin/{program}", self.folder))
            .args(args);
        // Path for finding them here.
        let path = std::env::var_os("PATH").unwrap();
        command.env_clear().env("PATH", path).env("HOME", "/root").output().unwrap()
    }

    fn says(&self, program: &str, args: &[&str]) -> String {
        let output = self.run(program, args);
        assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn a_machine_with_a_c_library_and_nothing_else_runs_what_is_packed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let Some(tarball) = packed(&out) else { return };
    // No temporary files are left.
    let mut left: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path()).collect();
    left.sort();
    assert_eq!(left.len(), 3, "{left:?}");
    succeeded(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&out));

    let machine = folder.path().join("machine");
    let there = unpacked(&tarball, &machine.join("opt"));
    fs::remove_file(&tarball).unwrap();
    succeeded(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&there));
    everything_is_there(&there);
    the_bill_is_one(&there);
    provide(&machine, &there);
    let Some(entering) = entering(&machine) else {
        return skipped("nobody here may enter another root folder");
    };
    let inside = format!("/opt/{}", there.file_name().unwrap().to_str().unwrap());
    runs(&Machine { entering: &entering, root: &machine, folder: &inside });

    // The libraries come from the folder: without it, none are found.
    fs::rename(there.join("lib"), there.join("elsewhere")).unwrap();
    let output =
        Machine { entering: &entering, root: &machine, folder: &inside }.run("worker", &["--version"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("libtorch"), "{output:?}");
}

fn everything_is_there(folder: &Path) {
    for file in [
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "licences/rust.txt",
        "examples/demo.toml",
        "share/man/man1/worker-join.1",
        "share/man/man1/coordinator.1",
        "share/bash-completion/completions/worker",
        "lib/systemd/system/longhaul-worker.service",
    ] {
        assert!(folder.join(file).is_file(), "{file}");
    }
    for program in ["coordinator", "worker", "wan-emulator", "longhaul-demo"] {
        assert_eq!(
            fs::metadata(folder.join("bin").join(program)).unwrap().permissions().mode() & 0o777,
            0o755
        );
    }
    let licences = fs::read_to_string(folder.join("licences/rust.txt")).unwrap();
    assert!(licences.contains("quinn@") && licences.contains("Permission is hereby granted"));
    assert!(!licences.contains("proptest@"), "only tests need it");
}

fn the_bill_is_one(folder: &Path) {
    let path = folder.join("bom.cdx.json");
    let bill: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(bill["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
    let components = bill["components"].as_array().unwrap();
    let component = |reference: &str| components.iter().find(|it| it["bom-ref"] == reference);
    let worker = &component("file:bin/worker").unwrap()["hashes"][0]["content"];
    let sums = fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
    assert!(sums.contains(&format!("{}  bin/worker\n", worker.as_str().unwrap())));
    // All references resolve.
    for dependency in bill["dependencies"].as_array().unwrap() {
        for reference in dependency["dependsOn"].as_array().unwrap() {
            assert!(component(reference.as_str().unwrap()).is_some(), "{reference}");
        }
    }
    let Some(cyclonedx) = CYCLONEDX.for_a_test() else { return };
    let python = cyclonedx.join("bin/python3");
    succeeded(Command::new(&python).args(["-c", VALIDATE]).arg(&path));
    // It detects errors.
    let spoilt = folder.with_file_name("spoilt.cdx.json");
    fs::write(&spoilt, bill.to_string().replacen("\"library\"", "\"libary\"", 1)).unwrap();
    assert!(!Command::new(&python).args(["-c", VALIDATE]).arg(&spoilt).output().unwrap().status.success());
    fs::remove_file(spoilt).unwrap();
}

fn runs(machine: &Machine<'_>) {
    let version = format!("worker {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(machine.says("worker", &["--version"]), version);
    machine.says("wan-emulator", &["--help"]);
    assert!(machine.says("longhaul-demo", &["--help"]).contains("--rate-mbit"));
    assert!(machine.says("coordinator", &["--help"]).contains("simulate"));
    let example = |name: &str| format!("{}/examples/{name}.toml", machine.folder);
    let plan = ["plan", "--config", &example("demo"), "--topology", &example("machines")];
    machine.says("coordinator", &plan);
    // The connection fails, which ends it; by then it has multiplied matrices.
    let doctor =
        machine.run("worker", &["doctor", "127.0.0.1:9", "--device", "cpu", "--cache-dir", "/cache"]);
    let findings = String::from_utf8(doctor.stdout).unwrap();
    for check in ["libtorch", "device"] {
        let finding = findings.lines().find(|line| line.contains(check));
        assert!(finding.is_some_and(|line| line.trim_start().starts_with("ok")), "{check}: {findings}");
    }
    assert!(findings.contains(&format!("in {}/lib/longhaul/torch", machine.folder)), "{findings}");
}
