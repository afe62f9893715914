//! A really full disk.

use std::path::{Path, PathBuf};
use std::process::Command;

use longhaul_tests::cluster::{Process, binary};
use longhaul_tests::tools::skipped;

use crate::scenario::{RUN_MAX, Setup};

/// Space for one checkpoint of the small model with its private state, about 700 kB, and not for a second.
const DISK: &str = "size=1000k";

/// Gives a program its own small disk: `sh -c SCRIPT sh FOLDER PROGRAM ARGUMENTS`.
const ON_A_SMALL_DISK: &str = "mount -t tmpfs -o \"$0\" tmpfs \"$1\" && shift && exec \"$@\"";

/// How this user can get its own mount, if at all: in a user namespace, or as root.
fn unshare(folder: &Path) -> Option<&'static [&'static str]> {
    let ways: [&[&str]; 2] = [&["--user", "--map-root-user", "--mount"], &["--mount"]];
    ways.into_iter().find(|way| {
        let mut trial = Command::new("unshare");
        trial.args(*way).args(["sh", "-c", ON_A_SMALL_DISK, DISK]).arg(folder).arg("true");
        trial.output().is_ok_and(|output| output.status.success())
    })
}

#[test]
fn a_full_disk_costs_the_checkpoint_is_told_with_the_reason_and_training_goes_on() {
    let mut scenario = Setup { steps: 120, sites: vec![1, 1], ..Setup::default() }.start_coordinator();
    let folder = scenario.cluster.folder().to_owned();
    let disk = folder.join("disk");
    std::fs::create_dir(&disk).unwrap();
    let Some(way) = unshare(&disk) else {
        return skipped("this user may neither make a user namespace nor mount; run it as root");
    };
    let (token, address) = (scenario.cluster.token().unwrap(), scenario.cluster.listen().to_string());
    scenario.cluster.start_worker(0).unwrap();
    let worker = binary("worker").unwrap();
    let mut cramped = Process::start_program(&PathBuf::from("unshare"), "cramped", &folder, |command| {
        command.args(way).args(["sh", "-c", ON_A_SMALL_DISK, DISK]).arg(&disk).arg(worker);
        command.args(["join", &address, "--token", &token, "--site", "site-1", "--device", "cpu"]);
        command.args(["--threads", "1", "--listen", "127.0.0.1:0", "--cache-dir", "cache-cramped"]);
        command.arg("--checkpoint-dir").arg(&disk);
    })
    .unwrap();

    scenario.finish();
    let page = scenario.told(&["status"]);
    let problem = page.lines().find(|line| line.starts_with("problem ")).unwrap_or_default().to_owned();
    for words in ["could not write its newest checkpoint", "No space left on device", "free some space"] {
        assert!(problem.contains(words), "{words:?} is not in the problem of:\n{page}");
    }
    assert!(cramped.wait(RUN_MAX).unwrap().success(), "{}", cramped.log_tail());
    // The checkpoint that fitted is still there, and so are all of the other worker.
    let log = cramped.log();
    assert!(log.contains("checkpoint written") && log.contains("no checkpoint; training goes on"), "{log}");
    let other = scenario.cluster.worker(0).unwrap().log();
    assert!(!other.contains("no checkpoint"), "{other}");
}
