//! The job of `deploy/slurm`, with a stand-in for the cluster.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use longhaul_worker::agent::LEAVING_MAX;
use longhaul_worker::cli::JoinArgs;
use tempfile::TempDir;

use super::machines::{deploy, join};

/// Runs the tasks one after the other, with the arguments before `bash` as its own options. As in Slurm since 22.05, a task has one CPU unless srun has
/// an option for more.
const SRUN: &str = r#"#!/bin/sh
cpus=1
while [ "$1" != bash ]; do
  case $1 in --cpus-per-task=*) cpus=${1#*=} ;; esac
  printf '%s\n' "$1" >> "$RECORD/options"
  shift
done
for task in 0 1; do
  SLURMD_NODENAME=node-1 SLURM_LOCALID=$task SLURM_PROCID=$task SLURM_CPUS_PER_TASK=$cpus "$@" || exit
done
"#;
/// Records its arguments.
const WORKER: &str = r#"#!/bin/sh
for word in worker "$@"; do printf '%s\n' "$word"; done > "$RECORD/worker-$SLURM_PROCID"
"#;
/// Resolves names with the file `hosts`.
const GETENT: &str = r#"#!/bin/sh
awk -v name="$2" '$2 == name { print $1, "STREAM", name }' "$RECORD/hosts"
"#;
/// A node with two networks.
const IP: &str = r#"#!/bin/sh
case "$*" in
  "-4 route get 192.0.2.9") echo "192.0.2.9 via 10.1.0.1 dev eth0 src 10.1.2.3 uid 1000" ;;
  "-4 -oneline address show dev ib0") echo "3: ib0    inet 10.9.2.3/16 brd 10.9.255.255 scope global ib0" ;;
  *) echo "ip $*: nothing" >&2; exit 1 ;;
esac
"#;

/// A cluster with these names and addresses.
struct Cluster {
    folder: TempDir,
}

impl Cluster {
    fn new(hosts: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, script) in [("srun", SRUN), ("worker", WORKER), ("getent", GETENT), ("ip", IP)] {
            let path = folder.path().join(name);
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(folder.path().join("hosts"), hosts).unwrap();
        Self { folder }
    }

    /// Runs the job as `sbatch` would, in the environment of a job plus these variables.
    fn job(&self, variables: &[(&str, &str)], words: &[&str]) -> Output {
        let mut command = Command::new("bash");
        command.arg(deploy().join("slurm/join.sbatch")).args(words);
        for variable in ["CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE", "LONGHAUL_INTERFACE", "LONGHAUL_PORT"]
        {
            command.env_remove(variable);
        }
        let path = format!("{}:{}", self.folder.path().display(), std::env::var("PATH").unwrap());
        command
            .env("PATH", path)
            .env("RECORD", self.folder.path())
            .env("LONGHAUL_CACHE", "/scratch/longhaul");
        command.env("SLURM_CPUS_PER_TASK", "8").env("LONGHAUL_TOKEN_FILE", "token");
        command.env("LONGHAUL_COORDINATOR", "head:4800,other:4800");
        command.envs(variables.iter().copied()).output().unwrap()
    }

    /// Returns the arguments of a task's worker.
    fn task(&self, task: usize) -> JoinArgs {
        let words = fs::read_to_string(self.folder.path().join(format!("worker-{task}"))).unwrap();
        join(words.lines().map(str::to_owned))
    }
}

const AMSTERDAM: (&str, &str) = ("LONGHAUL_SITE", "amsterdam");

#[test]
fn a_job_starts_workers_that_differ_in_their_port_and_share_a_folder_of_their_node() {
    let cluster = Cluster::new("10.1.2.3 node-1\n192.0.2.9 head\n");
    let data = ["--data", "/scratch/a text.zst"];
    let without = cluster.job(&[], &data);
    assert!(String::from_utf8_lossy(&without.stderr).contains("the name of this cluster"), "{without:?}");
    let output = cluster.job(&[AMSTERDAM], &data);
    assert!(output.status.success(), "{output:?}");
    for (number, args) in [(0, cluster.task(0)), (1, cluster.task(1))] {
        assert_eq!((args.coordinator.as_str(), args.site.as_str()), ("head:4800,other:4800", "amsterdam"));
        assert_eq!(args.listen.unwrap().to_string(), format!("10.1.2.3:{}", 4801 + number));
        assert_eq!(args.threads, Some(8), "as many as it has CPUs");
        assert_eq!(args.cache_dir.unwrap(), Path::new("/scratch/longhaul/node-1"));
        assert_eq!(args.data.unwrap(), Path::new("/scratch/a text.zst"));
        assert_eq!(args.token.token_file.unwrap(), Path::new("token"));
        assert_eq!(args.device, "auto", "there is no GPU");
    }
    let options = fs::read_to_string(cluster.folder.path().join("options")).unwrap();
    assert!(options.contains("--kill-on-bad-exit=0"), "one that fails leaves the others: {options}");
}

#[test]
fn a_node_that_calls_itself_a_loopback_address_is_told_by_the_one_that_leads_to_the_coordinator() {
    let cluster = Cluster::new("127.0.1.1 node-1\n192.0.2.9 head\n");
    let output = cluster.job(&[AMSTERDAM], &[]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(cluster.task(1).listen.unwrap().to_string(), "10.1.2.3:4802");
    let chosen = [AMSTERDAM, ("LONGHAUL_INTERFACE", "ib0"), ("LONGHAUL_PORT", "4901")];
    let output = cluster.job(&chosen, &[]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(cluster.task(1).listen.unwrap().to_string(), "10.9.2.3:4902");
}

#[test]
fn a_node_without_an_address_says_what_to_do() {
    let cluster = Cluster::new("127.0.1.1 node-1\n");
    for variables in [vec![AMSTERDAM], vec![AMSTERDAM, ("LONGHAUL_INTERFACE", "ib7")]] {
        let output = cluster.job(&variables, &[]);
        assert!(!output.status.success());
        assert!(String::from_utf8_lossy(&output.stderr).contains("say LONGHAUL_INTERFACE="), "{output:?}");
    }
}

#[test]
fn a_worker_with_a_gpu_takes_that_and_no_cpu_in_its_place() {
    let cluster = Cluster::new("10.1.2.3 node-1\n");
    let own = ("CUDA_VISIBLE_DEVICES", "3");
    let all = ("CUDA_VISIBLE_DEVICES", "0,1,2,3");
    for (gpus, words, device) in [
        (own, &[][..], "cuda:0"),
        (("SLURM_GPUS_ON_NODE", "4"), &[], "cuda:0"),
        (all, &[], "cuda:1"),
        (all, &["--device", "cpu"], "cpu"),
    ] {
        let output = cluster.job(&[AMSTERDAM, gpus], words);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(cluster.task(1).device, device, "{gpus:?}");
    }
}

#[test]
fn workers_are_asked_to_leave_in_time() {
    let script = fs::read_to_string(deploy().join("slurm/join.sbatch")).unwrap();
    let (_, seconds) = script.split_once("--signal=TERM@").unwrap();
    let before_s: u64 = seconds.lines().next().unwrap().parse().unwrap();
    assert!(before_s > LEAVING_MAX.as_secs(), "{before_s}");
}
