//! Runs on sources of several kinds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use longhaul_tests::cluster::{binary, training};

use crate::faults::assert_exactly_once;
use crate::scenario::{RUN_MAX, Setup};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data")
}

/// Those of `examples/mixture.toml`.
fn mixture() -> String {
    let (text, table) = (examples().join("bible.en.txt.zst"), examples().join("bible.es.parquet"));
    format!(
        "sources = [{{ path = {text:?}, weight = 3 }}, {{ path = {table:?}, column = \"text\", weight = 1 }}]"
    )
}

/// The largest of a worker's shards.
fn shard(cache: &Path) -> PathBuf {
    let files = fs::read_dir(cache.join("data/shards")).unwrap().map(|entry| entry.unwrap().path());
    files.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap()
}

fn worker(arguments: &[&str], folder: &Path) -> Output {
    Command::new(binary("worker").unwrap()).args(arguments).current_dir(folder).output().unwrap()
}

#[test]
fn a_worker_whose_prepared_data_is_damaged_makes_it_again_and_the_mixture_trains_on() {
    let sources = mixture();
    let mut scenario =
        Setup { steps: 3000, sources: &sources, checkpoint: "every_rounds = 100", ..Setup::default() }
            .start();
    scenario.wait_for_round(3);
    scenario.cluster.kill_worker(1);
    scenario.cluster.wait_for("the others to go on", RUN_MAX, |status| training(status) == 3).unwrap();
    let shard = shard(&scenario.cluster.folder().join("cache-1"));
    let whole = fs::read(&shard).unwrap();
    let mut damaged = whole.clone();
    // Somewhere in each of its blocks.
    damaged.chunks_mut(1 << 16).for_each(|part| part[part.len() / 2] ^= 1);
    fs::remove_file(&shard).unwrap();
    fs::write(&shard, damaged).unwrap();
    scenario.cluster.start_worker(1).unwrap();
    scenario.cluster.wait_for("all to train again", RUN_MAX, |status| training(status) == 4).unwrap();
    let status = scenario.finish();
    assert_eq!(status["parity"]["equal"], true, "{status:#}");
    assert_exactly_once(&status);
    assert!(fs::read(&shard).unwrap() == whole, "the shard is not made again");
}

#[test]
fn data_is_prepared_looked_at_checked_and_thrown_away_by_commands() {
    let folder = tempfile::tempdir().unwrap();
    let sources = mixture();
    let run_toml = Setup { sources: &sources, ..Setup::default() }.run_toml();
    fs::write(folder.path().join("run.toml"), run_toml).unwrap();
    let tell = |arguments: &[&str]| {
        let output = worker(&[&["data"], arguments, &["--cache-dir", "cache"]].concat(), folder.path());
        let (out, err) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(output.status.success(), "{arguments:?}: {err}");
        out
    };
    let before = tell(&["inspect", "--config", "run.toml"]);
    assert!(before.contains("bible.es.parquet: ") && before.contains(", not prepared"), "{before}");
    let prepared = tell(&["prepare", "--config", "run.toml"]);
    assert!(prepared.contains("2 shards were made, 0 were there"), "{prepared}");
    assert!(prepared.contains("6,000 records") && prepared.contains("75.0 % of the run's"), "{prepared}");
    let seen = tell(&["inspect", "--config", "run.toml", "--samples", "3"]);
    assert_eq!(seen.matches(", 33 tokens:").count(), 3, "{seen}");

    let shard = shard(&folder.path().join("cache"));
    fs::remove_file(shard).unwrap();
    let checked = tell(&["verify", "--config", "run.toml"]);
    assert!(checked.contains("2 shards, "), "{checked}");
    let pruned = tell(&["prune", "--max-gib", "0"]);
    assert!(pruned.contains("0 B are left"), "{pruned}");
}

#[test]
fn a_column_that_is_not_there_is_told_with_those_that_are() {
    let folder = tempfile::tempdir().unwrap();
    let sources = mixture().replace("\"text\"", "\"txt\"");
    fs::write(folder.path().join("run.toml"), Setup { sources: &sources, ..Setup::default() }.run_toml())
        .unwrap();
    let output = worker(&["data", "prepare", "--config", "run.toml", "--cache-dir", "cache"], folder.path());
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && told.contains("has no column `txt`; its columns are verse, text"),
        "{told}"
    );
}
