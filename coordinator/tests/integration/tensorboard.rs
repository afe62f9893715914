//! Event files, as TensorBoard itself reads them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use longhaul_tests::pip::Package;

use crate::running::fleet::Fleet;
use crate::running::{Site, failure, run_toml};

const TENSORBOARD: Package = Package { name: "tensorboard", version: "2.21.0" };

/// Prints every curve of a folder as JSON: by its tag, a list of steps and values.
const CURVES: &str = "
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1]).Reload()
print(json.dumps({tag: [(it.step, it.value) for it in events.Scalars(tag)] for tag in events.Tags()['scalars']}))
";

type Curves = BTreeMap<String, Vec<(u64, f32)>>;

/// None, with a notice: TensorBoard is not to be had here.
fn read(folder: &Path) -> Option<Curves> {
    let python = TENSORBOARD.for_a_test()?.join("bin/python3");
    let output = Command::new(python).args(["-c", CURVES]).arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// The one folder in this one.
fn only_folder(of: &Path) -> PathBuf {
    let folders: Vec<_> = of.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    let [folder] = folders.try_into().unwrap();
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn tensorboard_reads_the_curves_of_a_run() {
    let site = Site::of(&run_toml().steps(40));
    let curves = site.folder.path().join("curves");
    let running = site.start(&["--tensorboard", curves.to_str().unwrap()]);
    let _fleet = Fleet::join(&running, &["north", "south"], 2).await;
    let (code, said) = tokio::task::block_in_place(|| running.end());
    assert_eq!(code, Some(0), "{said}");
    let folder = only_folder(&curves);
    assert!(folder.file_name().unwrap().to_str().unwrap().starts_with("tested-"));
    let Some(curves) = read(&folder) else { return };
    let steps = |tag: &str| -> Vec<u64> { curves[tag].iter().map(|(step, _)| *step).collect() };
    // Rounds of two steps.
    assert_eq!(steps("train/loss"), (1..=20).map(|round| 2 * round).collect::<Vec<_>>());
    assert!(curves["train/loss"].iter().all(|(_, loss)| (1.0..5.0).contains(loss)), "{curves:?}");
    assert!(curves["train/gradient_norm"].iter().all(|(_, norm)| (0.4..2.2).contains(norm)), "{curves:?}");
    assert_eq!(curves["validation/loss"].last(), Some(&(40, 2.3)), "that of the end");
    for tag in ["speed/tokens_per_second", "bytes/per_second", "time/compute"] {
        assert!(curves[tag].iter().any(|(_, value)| *value > 0.0), "{tag}: {curves:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_is_started_again_takes_back_what_does_not_count() {
    let site = Site::of(&run_toml().steps(4000));
    let curves = site.folder.path().join("curves");
    let more = ["--tensorboard", curves.to_str().unwrap()];
    let running = site.start(&more);
    let fleet = Fleet::join(&running, &["north", "south"], 2).await;
    let reached = |rounds: u64| while site.status()["round"].as_u64().unwrap() < rounds {};
    tokio::task::block_in_place(|| reached(4));
    running.kill();
    drop(fleet);
    let again = site.start(&more);
    let step = site.status()["step"].as_u64().unwrap();
    again.terminate();
    let (code, said) = tokio::task::block_in_place(|| again.end());
    assert_eq!(code, Some(0), "{said}");
    let folder = only_folder(&curves);
    assert_eq!(folder.read_dir().unwrap().count(), 2, "a file of each process");
    let Some(curves) = read(&folder) else { return };
    // It goes on from what was written down, which may be nothing yet.
    let last = curves["train/loss"].last().map_or(0, |(step, _)| *step);
    assert!(last <= step, "{last} is after {step}, where the run goes on");
}

#[test]
fn a_folder_that_cannot_be_written_to_is_an_error() {
    let site = Site::new();
    let file = site.folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (_, said) = failure(&mut site.up(&["--tensorboard", file.to_str().unwrap()]));
    assert!(said.contains("--tensorboard") && said.contains("file"), "{said}");
}
