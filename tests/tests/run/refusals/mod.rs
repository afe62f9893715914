//! User errors and the binaries' responses: the thing and the remedy, a failure as exit status, and no loss.

mod checkpoints;
mod config;
mod data;
mod device;
mod disk;
mod path;
mod releases;
mod tokens;

use std::net::SocketAddr;
use std::path::Path;

use longhaul_tests::cluster::Process;

use crate::scenario::{RUN_MAX, Scenario};

/// Starts `worker join`; `name` is that of its log and of its cache folder.
fn join(folder: &Path, name: &str, coordinator: SocketAddr, token: &str, more: &[&str]) -> Process {
    Process::start_as("worker", name, folder, |command| {
        command.args(["join", &coordinator.to_string(), "--token", token, "--cache-dir", name]);
        command.args(["--listen", "127.0.0.1:0", "--threads", "1"]).args(more);
    })
    .unwrap()
}

fn join_scenario(scenario: &Scenario, name: &str, token: &str, more: &[&str]) -> Process {
    join(scenario.cluster.folder(), name, scenario.cluster.listen(), token, more)
}

/// Returns the output of a process that must fail.
pub fn refusal(mut process: Process) -> String {
    let status = process.wait(RUN_MAX).unwrap();
    assert!(!status.success(), "{}", process.log_tail());
    process.log()
}

pub fn assert_says(log: &str, words: &[&str]) {
    for word in words {
        assert!(log.contains(word), "{word:?} is not in:\n{log}");
    }
}
