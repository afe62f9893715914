//! Runs on sources of several kinds.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use longhaul_tests::cluster::{binary, training};

use crate::faults::assert_exactly_once;
use crate::scenario::{RUN_MAX, Setup};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data")
}

/// The sources of `examples/mixture.toml`.
fn mixture() -> String {
    let (text, table) = (examples().join("bible.en.txt.zst"), examples().join("bible.es.parquet"));
    format!(
        "sources = [{{ path = {text:?}, weight = 3 }}, {{ path = {table:?}, column = \"text\", weight = 1 }}]"
    )
}

/// Returns the largest of a worker's shards.
fn shard(cache: &Path) -> PathBuf {
    let files = fs::read_dir(cache.join("data/shards")).unwrap().map(|entry| entry.unwrap().path());
    files.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap()
}

fn worker(arguments: &[&str], folder: &Path) -> Output {
    Command::new(binary("worker").unwrap()).args(arguments).current_dir(folder).output().unwrap()
}

/// Returns the output of a successful command.
fn worker_in(folder: &Path, arguments: &[&str]) -> String {
    let output = worker(arguments, folder);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "nightly: covered by each_of_forty_corruptions_is_found_when_it_is_read_and_only_that_shard_is_made_again"]
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
    // One byte in each of its blocks.
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

/// Writes the image folder of the worker's tests, with each image this many times.
fn many_images(folder: &Path, times: u32) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/data/tests/fixtures/images/folder");
    for class in ["circle", "square", "triangle"] {
        fs::create_dir(folder.join(class)).unwrap();
        for image in fs::read_dir(fixtures.join(class)).unwrap().map(|entry| entry.unwrap().path()) {
            let name = image.file_name().unwrap().to_str().unwrap();
            for time in 0..times {
                fs::copy(&image, folder.join(class).join(format!("{time:03}-{name}"))).unwrap();
            }
        }
    }
}

/// Returns the prepared files, by name.
fn prepared(cache: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let parts = ["lists", "shards", "drafts"].map(|part| cache.join("data").join(part));
    let files = parts.iter().flat_map(|part| fs::read_dir(part).unwrap()).map(|entry| entry.unwrap().path());
    files.map(|path| (path.strip_prefix(cache).unwrap().to_owned(), fs::read(&path).unwrap())).collect()
}

#[test]
#[ignore = "nightly: covered by what_is_used_while_it_is_prepared_is_the_same_and_becomes_the_same_cache_byte_for_byte, who_is_killed_at_any_moment_leaves_what_the_next_one_goes_on_from"]
fn workers_of_a_machine_train_on_a_folder_of_images_while_they_prepare_it_and_one_is_killed() {
    let images = tempfile::tempdir().unwrap();
    many_images(images.path(), 60);
    let sources = format!("sources = [{{ path = {:?}, format = \"images\" }}]", images.path());
    let setup = || Setup {
        sources: &sources,
        images: Some("height = 96\nwidth = 96\nclasses = 3"),
        sites: vec![2],
        ..Setup::default()
    };
    let run_toml = setup().run_toml();
    let mut scenario = setup().start_coordinator();
    let folder = scenario.cluster.folder().to_owned();
    run_toml.write(folder.join("run.toml")).unwrap();
    fs::create_dir(folder.join("cache-0")).unwrap();
    std::os::unix::fs::symlink("cache-0", folder.join("cache-1")).unwrap();
    scenario.cluster.start_worker(0).unwrap();
    scenario.cluster.start_worker(1).unwrap();
    let worker = scenario.cluster.worker(0).unwrap();
    worker.wait_for_words("images are prepared while the run goes on", RUN_MAX).unwrap();
    scenario.wait_for_round(1);
    scenario.cluster.kill_worker(0);
    scenario.cluster.start_worker(0).unwrap();
    let status = scenario.finish();
    assert_exactly_once(&status);
    for cache in ["cache-0", "cache-alone"] {
        let output = worker_in(&folder, &["data", "verify", "--config", "run.toml", "--cache-dir", cache]);
        assert!(output.contains("each byte was read, 0 were damaged"), "{output}");
    }
    assert!(prepared(&folder.join("cache-0")) == prepared(&folder.join("cache-alone")), "the caches differ");
}

#[test]
fn data_is_prepared_looked_at_checked_and_thrown_away_by_commands() {
    let folder = tempfile::tempdir().unwrap();
    let sources = mixture();
    let run_toml = Setup { sources: &sources, ..Setup::default() }.run_toml();
    run_toml.write(folder.path().join("run.toml")).unwrap();
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
    let run_toml = Setup { sources: &sources, ..Setup::default() }.run_toml();
    run_toml.write(folder.path().join("run.toml")).unwrap();
    let output = worker(&["data", "prepare", "--config", "run.toml", "--cache-dir", "cache"], folder.path());
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success()
            && told.contains(
                "has no column `txt`; its columns are verse (text), text (text): say column = \"text\""
            ),
        "{told}"
    );
}
