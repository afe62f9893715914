//! Workers on bare machines: units, a cloud's first start, and the files of `install.sh`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{CommandFactory as _, Parser as _};
use longhaul_tests::systemd::{self, Unit};
use longhaul_worker::agent::HANDING_OVER_MAX;
use longhaul_worker::cli::{Cli, Command as Subcommand, JoinArgs};

pub fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

pub fn join(words: impl IntoIterator<Item = String>) -> JoinArgs {
    let words: Vec<_> = words.into_iter().collect();
    match Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{words:?}: {error}")).command {
        Subcommand::Join(args) => args,
        other => panic!("{other:?}"),
    }
}

/// Variables set by systemd in addition to an environment file.
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
    assert_eq!(args.token.token_file.unwrap(), Path::new("/run/credentials/w.service").join(credential));
    assert!(file.starts_with("/etc/longhaul/"));
    let leaving_s: u64 = unit.get("TimeoutStopSec").unwrap().parse().unwrap();
    assert!(leaving_s > HANDING_OVER_MAX.as_secs(), "{leaving_s}");
}

#[test]
fn checkpoints_go_where_the_unit_may_write_unless_its_environment_file_says_otherwise() {
    for (name, state) in
        [("longhaul-worker.service", "longhaul-worker"), ("longhaul-worker@.service", "longhaul-worker-1")]
    {
        let unit = Unit::read(name, "1").unwrap();
        assert_eq!(unit.get("StateDirectory").unwrap(), state);
        let (variable, folder) = unit.get("Environment").unwrap().split_once('=').unwrap();
        assert!(Path::new(folder).starts_with(Path::new("/var/lib").join(state)), "{folder}");
        let cli = Cli::command();
        let mut arguments = cli.find_subcommand("join").unwrap().get_arguments();
        let checkpoint_dir = arguments.find(|argument| argument.get_id() == "checkpoint_dir").unwrap();
        assert_eq!(checkpoint_dir.get_env().unwrap(), variable);
    }
}

#[test]
fn nothing_hides_the_devices_of_a_worker() {
    for name in ["longhaul-worker.service", "longhaul-worker@.service"] {
        let unit = Unit::read(name, "0").unwrap();
        // The first two imply a device list (systemd.exec(5)).
        for hiding in ["ProtectClock", "PrivateDevices", "DevicePolicy", "DeviceAllow"] {
            assert!(unit.settings().all(|(key, _)| key != hiding), "{name}: {hiding}");
        }
        let before = unit.get("ExecStartPre").unwrap();
        assert!(before.starts_with("-+/usr/bin/nvidia-modprobe -u -c 0"), "{name}: {before}");
    }
}

#[test]
fn what_cannot_be_mended_is_not_tried_for_ever() {
    for name in ["longhaul-worker.service", "longhaul-worker@.service"] {
        let unit = Unit::read(name, "0").unwrap();
        let number = |key| unit.get(key).unwrap().parse::<u64>().unwrap();
        assert_eq!(unit.get("RestartPreventExitStatus").unwrap(), "2", "{name}: as clap ends");
        // A limit has no effect if the pauses between starts never reach it.
        let interval = unit.get("StartLimitIntervalSec").unwrap().strip_suffix("min").unwrap();
        let interval_s = interval.parse::<u64>().unwrap() * 60;
        assert!(interval_s > number("StartLimitBurst") * number("RestartSec") * 2, "{name}");
    }
}

#[test]
fn the_two_units_differ_in_their_gpu_and_in_nothing_else() {
    let settings = |name| {
        let unit = Unit::read(name, "7").unwrap();
        unit.settings().map(|(key, value)| (key.to_owned(), value.to_owned())).collect::<Vec<_>>()
    };
    let one = settings("longhaul-worker.service").into_iter();
    let as_one = |(key, value): (String, String)| {
        let value = value.replace(" on GPU 7", "").replace("longhaul-worker-7", "longhaul-worker");
        let value = value.replace(" --device=cuda:7", "").replace(":4817 ", ":4801 ").replace("-c 7", "-c 0");
        (key, value)
    };
    let several = settings("longhaul-worker@.service").into_iter().map(as_one);
    assert_eq!(one.collect::<Vec<_>>(), several.collect::<Vec<_>>());
}

#[test]
fn workers_of_several_gpus_differ_in_their_gpu_their_port_and_their_folder() {
    let unit = |instance: &str| Unit::read("longhaul-worker@.service", instance).unwrap();
    let args = |instance: &str| join(unit(instance).command_line(&example()).unwrap());
    let (first, second) = (args("0"), args("1"));
    assert_eq!([first.device.as_str(), second.device.as_str()], ["cuda:0", "cuda:1"]);
    assert_eq!(first.listen.unwrap().port() + 1, second.listen.unwrap().port());
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
            // The archive is verified before it is unpacked.
            let at = |word: &str| script.find(word).unwrap();
            assert!(
                at("curl ") < at("sha256sum --check") && at("sha256sum --check") < at("tar "),
                "{script}"
            );
            assert!(!script.lines().any(|line| line.contains("curl ") && line.contains('|')), "{script}");
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

#[test]
fn what_is_installed_runs_and_loads_the_libraries_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let built = Path::new(env!("CARGO_BIN_EXE_worker-torch")).parent().unwrap();
    let from = folder.path().join("from");
    fs::create_dir(&from).unwrap();
    for name in ["worker", "worker-torch"] {
        std::os::unix::fs::symlink(built.join(name), from.join(name)).unwrap();
    }
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
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    // As over ssh or in a job: without variables for the loader.
    let start = |program: &str, word: &Path| {
        Command::new(program).arg(word).env_remove("LD_LIBRARY_PATH").output().unwrap()
    };
    let computes = below(&format!("{program}-torch"));
    let loaded = String::from_utf8(start("ldd", &computes).stdout).unwrap();
    assert!(!loaded.contains("not found"), "{loaded}");
    let of_torch = ["libtorch.so", "libtorch_cpu.so", "libc10.so", "libgomp"];
    for library in loaded.lines().filter(|line| of_torch.iter().any(|name| line.contains(name))) {
        assert!(library.contains(below("/usr/local").to_str().unwrap()), "{library}");
    }
    let version = start(below(&program).to_str().unwrap(), "--version".as_ref());
    assert_eq!(String::from_utf8(version.stdout).unwrap(), format!("worker {}\n", env!("CARGO_PKG_VERSION")));
    assert!(below("/usr/local/lib/systemd/system/longhaul-worker@.service").is_file());
    assert!(below("/usr/local/share/man/man1/worker-join.1").is_file(), "the unit names it");
    assert!(!below("/usr/local/bin/coordinator").exists(), "it was not built there");
}

/// The options with which the page and a cloud's machine unpack an archive.
fn unpacking() -> Vec<String> {
    let page = fs::read_to_string(deploy().join("README.md")).unwrap();
    let script = fs::read_to_string(deploy().join("cloud-init/worker.yaml")).unwrap();
    let line = |text: &str| {
        let line = text.lines().find(|line| line.contains("tar ") && line.contains(" -C / ")).unwrap();
        let (_, words) = line.split_once("tar ").unwrap();
        words.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let (words, in_a_cloud) = (line(&page), line(&script));
    // The last argument is the archive.
    assert_eq!(words[..words.len() - 1], in_a_cloud[..in_a_cloud.len() - 1]);
    words
}

#[test]
fn an_archive_leaves_the_folders_of_the_machine_to_their_owners() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    fs::create_dir_all(at("from")).unwrap();
    // Only its manual pages are requested.
    fs::write(at("from/coordinator"), "#!/bin/sh\nif [ \"$1\" = man ]; then mkdir -p \"$2\"; fi\n").unwrap();
    mode(&at("from/coordinator"), 0o700);
    let pack = format!(
        "umask 077; exec {} --from {} --archive {}",
        deploy().join("install.sh").display(),
        at("from").display(),
        at("archive.tar").display()
    );
    let packed = Command::new("sh").args(["-c", &pack]).output().unwrap();
    assert!(packed.status.success(), "{packed:?}");
    let listed =
        Command::new("tar").args(["--numeric-owner", "-tvf"]).arg(at("archive.tar")).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.lines().all(|line| line.contains(" 0/0 ") && !line.ends_with(" ./")), "{listed}");

    // Another machine, with folders unlike the packed ones.
    let there = [at("machine"), at("machine/usr"), at("machine/usr/local")];
    for path in &there {
        fs::create_dir(path).unwrap();
        mode(path, 0o711);
    }
    let mut tar = Command::new("tar");
    for word in unpacking() {
        match word.as_str() {
            "/" => tar.arg(at("machine")),
            "longhaul.tar.zst" => tar.arg(at("archive.tar")),
            word => tar.arg(word),
        };
    }
    let unpacked = tar.output().unwrap();
    assert!(unpacked.status.success(), "{unpacked:?}");
    let mode_of = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    for path in &there {
        assert_eq!(mode_of(path), 0o711, "{}", path.display());
    }
    assert_eq!(mode_of(&at("machine/usr/local/bin")), 0o755);
    assert_eq!(mode_of(&at("machine/usr/local/bin/coordinator")), 0o755);
}

#[test]
fn nothing_to_install_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(deploy().join("install.sh")).arg("--from").arg(folder.path()).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("cargo build --release"));
}
