//! Workers on bare machines: units, a cloud's first start, a job of Slurm, and what `install.sh` puts where.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser as _;
use longhaul_tests::systemd::{self, Unit};
use longhaul_worker::cli::{Cli, Command as Subcommand, JoinArgs};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn join(words: impl IntoIterator<Item = String>) -> JoinArgs {
    let words: Vec<_> = words.into_iter().collect();
    match Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{words:?}: {error}")).command {
        Subcommand::Join(args) => args,
        other => panic!("{other:?}"),
    }
}

/// What systemd sets, beside an environment file.
fn with_folders(mut variables: BTreeMap<String, String>) -> BTreeMap<String, String> {
    for (name, path) in [
        ("STATE_DIRECTORY", "/var/lib/longhaul-worker"),
        ("CREDENTIALS_DIRECTORY", "/run/credentials/w.service"),
    ] {
        variables.insert(name.to_owned(), path.to_owned());
    }
    variables
}

fn example() -> BTreeMap<String, String> {
    with_folders(
        systemd::variables(&fs::read_to_string(systemd::folder().join("worker.env")).unwrap()).unwrap(),
    )
}

#[test]
fn the_unit_joins_with_what_its_environment_file_says_and_keeps_what_it_must() {
    let unit = Unit::read("longhaul-worker.service", "").unwrap();
    let args = join(unit.command_line(&example()).unwrap());
    assert_eq!((args.coordinator.as_str(), args.site.as_str()), ("head.example.org:4800", "amsterdam"));
    assert_eq!(args.cache_dir.unwrap(), Path::new("/var/lib/longhaul-worker"));
    let (credential, file) = unit.get("LoadCredential").unwrap().split_once(':').unwrap();
    assert_eq!(args.token_file.unwrap(), Path::new("/run/credentials/w.service").join(credential));
    assert!(file.starts_with("/etc/longhaul/"));
    let leaving_s: u64 = unit.get("TimeoutStopSec").unwrap().parse().unwrap();
    assert!(leaving_s > 30, "{leaving_s}");
}

#[test]
fn workers_of_several_gpus_differ_in_their_gpu_their_port_and_their_folder() {
    let unit = |instance: &str| Unit::read("longhaul-worker@.service", instance).unwrap();
    let args = |instance: &str| join(unit(instance).command_line(&example()).unwrap());
    let (first, second) = (args("0"), args("1"));
    assert_eq!([first.device.as_str(), second.device.as_str()], ["cuda:0", "cuda:1"]);
    assert_eq!(first.listen.port() + 1, second.listen.port());
    assert_ne!(unit("0").get("StateDirectory").unwrap(), unit("1").get("StateDirectory").unwrap());
}

#[test]
fn what_cloud_init_writes_is_what_the_unit_reads() {
    let text = fs::read_to_string(deploy().join("cloud-init/worker.yaml")).unwrap();
    assert!(text.starts_with("#cloud-config\n"), "by which cloud-init knows it");
    let config: CloudConfig = serde_saphyr::from_str(&text).unwrap();
    let unit = Unit::read("longhaul-worker.service", "").unwrap();
    let file = |path: &str| config.write_files.iter().find(|file| file.path == path).unwrap();
    let variables =
        with_folders(systemd::variables(&file(unit.get("EnvironmentFile").unwrap()).content).unwrap());
    let args = join(unit.command_line(&variables).unwrap());
    assert!(args.data_is_remote());
    let token = file(unit.get("LoadCredential").unwrap().split_once(':').unwrap().1);
    assert_eq!(token.permissions.as_deref(), Some("0600"));
    assert!(token.content.starts_with("lh1."));
    for words in &config.runcmd {
        if let [shell, options, script] = words.as_slice()
            && shell == "sh"
        {
            assert_eq!(options, "-ec");
            check_syntax("sh", &["-n", "-c", script]);
        }
    }
    assert!(config.packages.contains(&"zstd".to_owned()), "the archive is compressed so");
    let last = config.runcmd.last().unwrap();
    assert_eq!(last.join(" "), "systemctl enable --now longhaul-worker");
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct CloudConfig {
    packages: Vec<String>,
    write_files: Vec<WrittenFile>,
    runcmd: Vec<Vec<String>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFile {
    path: String,
    #[serde(default)]
    permissions: Option<String>,
    content: String,
}

fn check_syntax(shell: &str, args: &[&str]) {
    let output = Command::new(shell).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs each task as Slurm would, one after the other: what comes before `bash` are options of its own.
const SRUN: &str = r#"#!/bin/sh
while [ "$1" != bash ]; do printf '%s\n' "$1" >> "$RECORD/options"; shift; done
for task in 0 1; do
  SLURMD_NODENAME=localhost SLURM_LOCALID=$task SLURM_PROCID=$task SLURM_CPUS_PER_TASK=8 "$@" || exit
done
"#;
/// Writes down with what it was called.
const WORKER: &str = r#"#!/bin/sh
for word in worker "$@"; do printf '%s\n' "$word"; done > "$RECORD/worker-$SLURM_PROCID"
"#;

#[test]
fn a_job_of_slurm_starts_workers_that_differ_in_their_port_and_share_a_folder_of_their_node() {
    let folder = tempfile::tempdir().unwrap();
    for (name, script) in [("srun", SRUN), ("worker", WORKER)] {
        let path = folder.path().join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let job = |site: Option<&str>| {
        let mut command = Command::new("bash");
        command.arg(deploy().join("slurm/join.sbatch")).args(["--data", "/scratch/a text.zst"]);
        command.env("PATH", &path).env("RECORD", folder.path()).env("LONGHAUL_CACHE", "/scratch/longhaul");
        command.env("LONGHAUL_COORDINATOR", "head:4800").env("LONGHAUL_TOKEN_FILE", "token");
        command.envs(site.map(|site| ("LONGHAUL_SITE", site))).output().unwrap()
    };
    let without = job(None);
    assert!(String::from_utf8_lossy(&without.stderr).contains("the name of this cluster"), "{without:?}");
    let output = job(Some("amsterdam"));
    assert!(output.status.success(), "{output:?}");
    let task = |task: usize| {
        let words = fs::read_to_string(folder.path().join(format!("worker-{task}"))).unwrap();
        // The token's file is in the environment, from which clap takes it where it is not given.
        join(words.lines().map(str::to_owned).chain(["--token-file=token".to_owned()]))
    };
    for (number, args) in [(0, task(0)), (1, task(1))] {
        assert_eq!((args.coordinator.as_str(), args.site.as_str()), ("head:4800", "amsterdam"));
        assert_eq!(args.listen.to_string(), format!("127.0.0.1:{}", 4801 + number));
        assert_eq!(args.threads, Some(8));
        assert_eq!(args.cache_dir.unwrap(), Path::new("/scratch/longhaul/localhost"));
        assert_eq!(args.data.unwrap(), Path::new("/scratch/a text.zst"));
    }
    let options = fs::read_to_string(folder.path().join("options")).unwrap();
    assert!(options.contains("--kill-on-bad-exit=0"), "one that fails leaves the others: {options}");
}

#[test]
fn what_is_installed_runs_and_loads_the_libraries_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let built = Path::new(env!("CARGO_BIN_EXE_worker")).parent().unwrap();
    let from = folder.path().join("from");
    fs::create_dir(&from).unwrap();
    std::os::unix::fs::symlink(built.join("worker"), from.join("worker")).unwrap();
    let root = folder.path().join("root");
    let output = Command::new(deploy().join("install.sh"))
        .arg("--root")
        .arg(&root)
        .arg("--from")
        .arg(&from)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let unit = Unit::read("longhaul-worker.service", "").unwrap();
    let program = unit.command_line(&example()).unwrap()[0].clone();
    let (variable, libraries) = unit.get("Environment").unwrap().split_once('=').unwrap();
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    let ldd = Command::new("ldd").arg(below(&program)).env(variable, below(libraries)).output().unwrap();
    let loaded = String::from_utf8(ldd.stdout).unwrap();
    let torch = loaded.lines().find(|line| line.contains("libtorch_cpu.so")).unwrap();
    assert!(torch.contains(below(libraries).to_str().unwrap()), "{torch}");
    let version =
        Command::new(below(&program)).arg("--version").env(variable, below(libraries)).output().unwrap();
    assert_eq!(String::from_utf8(version.stdout).unwrap(), format!("worker {}\n", env!("CARGO_PKG_VERSION")));
    assert!(below("/usr/local/lib/systemd/system/longhaul-worker@.service").is_file());
    assert!(below("/usr/local/share/man/man1/worker-join.1").is_file(), "the unit names it");
    assert!(!below("/usr/local/bin/coordinator").exists(), "it was not built there");
}

#[test]
fn nothing_to_install_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(deploy().join("install.sh")).arg("--from").arg(folder.path()).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("cargo build --release"));
}
