//! Runs of the files in `examples`, shortened, with small data of the same shape where a file names data
//! outside the checkout.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use longhaul_common::config::RunConfig;
use serde_json::Value as Status;
use tempfile::TempDir;
use toml::{Table, Value};

use crate::faults::assert_exactly_once;
use crate::scenario::{Scenario, applied_rounds};

/// Not a run: machines for `coordinator plan`, whose tests read it.
const NO_RUNS: [&str; 1] = ["machines.toml"];

/// Images of a file, and their classes: a few steps of [`STEPS`] are an epoch.
const IMAGES: u32 = 800;
const CLASSES: u32 = 10;
/// Pixels of a row, and rows.
const SIDE: u32 = 28;

const STEPS: i64 = 30;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn example(name: &str) -> Table {
    fs::read_to_string(root().join("examples").join(name)).unwrap().parse().unwrap()
}

/// Returns a folder with the examples, as in a clone.
fn checkout() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    symlink(root().join("examples"), folder.path().join("examples")).unwrap();
    folder
}

/// Trains a run for a few rounds.
fn train(mut run: Table, folder: TempDir) -> Status {
    run["run"].as_table_mut().unwrap().insert("steps".into(), Value::Integer(STEPS));
    run["train"].as_table_mut().unwrap().insert("warmup_steps".into(), Value::Integer(4));
    let status = Scenario::start_in(folder, run.to_string()).finish();
    assert_exactly_once(&status);
    assert!(applied_rounds(&status) >= 2, "{status:#}");
    status
}

/// Checks that a run has learnt from text: equally likely bytes have a loss of 5.5.
fn assert_it_learns(status: &Status) {
    let loss = status["loss"].as_f64().unwrap();
    assert!(loss < 4.5, "{status:#}");
}

#[test]
fn every_example_of_a_run_is_one() {
    let mut no_runs = Vec::new();
    for path in fs::read_dir(root().join("examples")).unwrap().map(|entry| entry.unwrap().path()) {
        if path.extension().is_none_or(|end| end != "toml") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        if text.parse::<Table>().unwrap().contains_key("run") {
            RunConfig::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        } else {
            no_runs.push(path.file_name().unwrap().to_str().unwrap().to_owned());
        }
    }
    assert_eq!(no_runs, NO_RUNS);
}

#[test]
#[ignore = "nightly: covered by the_example_of_a_mixture_trains"]
fn the_example_of_parquet_files_trains() {
    assert_it_learns(&train(example("parquet.toml"), checkout()));
}

#[test]
fn the_example_of_a_mixture_trains() {
    assert_it_learns(&train(example("mixture.toml"), checkout()));
}

/// Writes images like those of Fashion-MNIST, each with noise and a bar at its class's place, and their
/// classes.
fn write_images(images: &Path, labels: &Path) {
    let mut noise = 1_u32;
    let (mut pixels, mut classes) = (Vec::new(), Vec::new());
    for image in 0..IMAGES {
        let class = image % CLASSES;
        classes.push(u8::try_from(class).unwrap());
        for at in 0..SIDE * SIDE {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let is_bar = at / SIDE / 2 == class;
            pixels.push(if is_bar { 255 } else { (noise >> 25) as u8 });
        }
    }
    for (path, head, content) in
        [(images, vec![0x803, IMAGES, SIDE, SIDE], pixels), (labels, vec![0x801, IMAGES], classes)]
    {
        let mut file = GzEncoder::new(fs::File::create(path).unwrap(), Compression::fast());
        head.iter().for_each(|word: &u32| file.write_all(&word.to_be_bytes()).unwrap());
        file.write_all(&content).unwrap();
        file.finish().unwrap();
    }
}

#[test]
fn the_example_of_fashion_mnist_trains_on_what_is_hard() {
    let (mut run, folder) = (example("fashion.toml"), checkout());
    let data = run["data"].as_table_mut().unwrap();
    for part in ["sources", "validation"] {
        for source in data[part].as_array_mut().unwrap() {
            // Files installed elsewhere keep their name here.
            let mut named = |key: &str| {
                let name = Path::new(source[key].as_str().unwrap()).file_name().unwrap().to_owned();
                let here = folder.path().join(name);
                source[key] = Value::String(here.to_str().unwrap().to_owned());
                here
            };
            write_images(&named("path"), &named("labels"));
        }
    }
    let status = train(run, folder);
    // After the first epoch one in two of those that a step examines.
    let share = status["selected_share"].as_f64().unwrap();
    assert!((0.3..0.9).contains(&share), "{status:#}");
}
