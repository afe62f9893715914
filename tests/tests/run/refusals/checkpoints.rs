//! Damaged checkpoints.

use std::path::{Path, PathBuf};
use std::process::Command;

use longhaul_tests::cluster::Process;

use super::{assert_says, refusal};
use crate::scenario::{RUN_MAX, Scenario, Setup};

const MODEL: &str = "model.safetensors";

/// Damage to a file.
type Damage = fn(&Path);

/// A run of two workers, killed as a whole after its second checkpoint.
fn killed_after_two_checkpoints() -> (Scenario, PathBuf) {
    let checkpoint = "every_rounds = 25\nkeep = 8";
    let mut scenario = Setup { steps: 100_000, checkpoint, ..Setup::reproducible() }.start();
    let runs = scenario.cluster.folder().join("checkpoints");
    scenario.cluster.wait_for("two checkpoints", RUN_MAX, |_| checkpoints_of(&runs).len() >= 2).unwrap();
    scenario.cluster.kill_coordinator();
    scenario.cluster.kill_worker(0);
    scenario.cluster.kill_worker(1);
    (scenario, runs)
}

/// Returns the checkpoints of the only run in a folder, oldest first.
fn checkpoints_of(runs: &Path) -> Vec<PathBuf> {
    let folders = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let mut found: Vec<_> = folders(runs).iter().flat_map(|run| folders(run)).collect();
    found.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("round-"));
    found.sort();
    found
}

/// Returns the round in a checkpoint's name.
fn round_of(checkpoint: &Path) -> u64 {
    checkpoint.to_string_lossy().rsplit('-').next().unwrap().parse().unwrap()
}

fn flip_a_byte(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

fn truncate(file: &Path) {
    let bytes = std::fs::read(file).unwrap();
    std::fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
}

fn sample(folder: &Path, name: &str, checkpoint: &Path) -> Process {
    Process::start_as("worker", name, folder, |command| {
        command.arg("sample").arg("--checkpoint").arg(checkpoint);
        command.args(["--prompt", "In the beginning", "--tokens", "4", "--device", "cpu"]);
    })
    .unwrap()
}

/// Runs `worker sample` on copies of the checkpoints, with different damage to the newest.
fn assert_sample_refuses(folder: &Path, runs: &Path) {
    let cases: [(&str, &str, Damage, &str); 3] = [
        ("flipped", MODEL, flip_a_byte, "is damaged: its hash is not the recorded one"),
        ("truncated", MODEL, truncate, " bytes; the newest whole"),
        (
            "incomplete",
            "config.json",
            |file| std::fs::remove_file(file).unwrap(),
            "is damaged: it is missing",
        ),
    ];
    let started = cases.map(|(name, file, damage, reason)| {
        let copy = folder.join(name);
        assert!(Command::new("cp").arg("-a").args([runs, &copy]).status().unwrap().success());
        let all = checkpoints_of(&copy);
        let [.., before, newest] = &all[..] else { panic!("{all:?}") };
        damage(&newest.join(file));
        let offered = format!("the newest whole checkpoint before it is {}", before.display());
        (sample(folder, &format!("sample-{name}"), &copy), newest.join(file), reason, offered)
    });
    for (process, file, reason, offered) in started {
        assert_says(&refusal(process), &[&file.display().to_string(), reason, &offered]);
    }
}

#[test]
fn a_damaged_checkpoint_is_named_the_one_before_it_is_used_and_the_same_round_is_written_again() {
    let (mut scenario, runs) = killed_after_two_checkpoints();
    let folder = scenario.cluster.folder().to_owned();
    assert_sample_refuses(&folder, &runs);

    let all = checkpoints_of(&runs);
    let [.., before, newest] = &all[..] else { panic!("{all:?}") };
    let whole = std::fs::read(newest.join(MODEL)).unwrap();
    flip_a_byte(&newest.join(MODEL));
    let mut sampled = sample(&folder, "sample-before", before);
    assert!(sampled.wait(RUN_MAX).unwrap().success(), "{}", sampled.log_tail());

    scenario.cluster.start_coordinator().unwrap();
    scenario.cluster.start_worker(0).unwrap();
    scenario.cluster.start_worker(1).unwrap();
    let source = format!("goes on from the checkpoint before r{} of 2 workers", round_of(before));
    let resumed = |status: &serde_json::Value| status["events"].to_string().contains(&source);
    scenario.cluster.wait_for(&source, RUN_MAX, resumed).unwrap();
    let damaged = newest.join(MODEL).display().to_string();
    for worker in 0..2 {
        let log = scenario.cluster.worker(worker).unwrap().log();
        assert_says(&log, &["a checkpoint is of no use; older ones are offered", &damaged, "is damaged"]);
    }
    // The resumed run reaches that round again, with the same bits.
    let mended = |_: &serde_json::Value| std::fs::read(newest.join(MODEL)).is_ok_and(|bytes| bytes == whole);
    scenario.cluster.wait_for("the damaged checkpoint to be whole again", RUN_MAX, mended).unwrap();
    scenario.wait_for_round(round_of(newest) + 1);
}
