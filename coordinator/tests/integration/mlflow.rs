//! Runs in MLflow's file store.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::running::fleet::Fleet;
use crate::running::{Site, run_toml};

/// A Python interpreter with MLflow, which then reads the store too.
const PYTHON: &str = "LONGHAUL_MLFLOW_PYTHON";

/// Prints name, state and curves of the only run of a store.
const READ: &str = "
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient('file://' + sys.argv[1])
run, = client.search_runs([client.get_experiment_by_name('longhaul').experiment_id])
history = lambda name: [(it.step, it.value) for it in client.get_metric_history(run.info.run_id, name)]
print(json.dumps([run.info.run_name, run.info.status, run.data.params, {it: history(it) for it in run.data.metrics}]))
";

type Curves = BTreeMap<String, Vec<(u64, f64)>>;

/// The curves of a group in a run's folder.
fn read_group(folder: &Path, group: &str) -> Curves {
    let files = folder.join("metrics").join(group).read_dir().unwrap();
    let curve = |path: &Path| -> Vec<(u64, f64)> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| {
                let [at_ms, value, step] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
                assert!(at_ms.parse::<u64>().unwrap() > 1_600_000_000_000, "{line}");
                (step.parse().unwrap(), value.parse().unwrap())
            })
            .collect()
    };
    let files = files.map(|file| file.unwrap().path());
    files
        .map(|file| (format!("{group}/{}", file.file_name().unwrap().to_str().unwrap()), curve(&file)))
        .collect()
}

fn read_by_mlflow(python: &str, store: &Path) -> (String, String, Value, Curves) {
    let mut command = Command::new(python);
    command.env("MLFLOW_ALLOW_FILE_STORE", "true").args(["-c", READ]).arg(store);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_exported_to_a_store_as_mlflow_has_it() {
    let site = Site::of(&run_toml().steps(40));
    let running = site.start(&[]);
    let _fleet = Fleet::join(&running, &["north", "south"], 2).await;
    let (code, said) = tokio::task::block_in_place(|| running.end());
    assert_eq!(code, Some(0), "{said}");
    let store = site.folder.path().join("mlruns");
    // The second export takes the place of the first.
    for _ in 0..2 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_coordinator"));
        let output = command.arg("view").arg(site.state_dir()).arg("--mlflow").arg(&store).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let experiment = store.read_dir().unwrap().next().unwrap().unwrap().path();
    let folders = experiment.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let [folder] = folders.filter(|path| path.is_dir()).collect::<Vec<_>>().try_into().unwrap();
    let meta = std::fs::read_to_string(folder.join("meta.yaml")).unwrap();
    assert!(meta.contains("\nstatus: 3\n") && meta.contains("\nrun_name: \"tested\"\n"), "{meta}");
    let curves = read_group(&folder, "train");
    let steps: Vec<u64> = curves["train/loss"].iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, (1..=20).map(|round| 2 * round).collect::<Vec<_>>(), "rounds of two steps");

    let Ok(python) = std::env::var(PYTHON) else { return };
    let (name, state, params, read) = read_by_mlflow(&python, &store);
    assert_eq!((name.as_str(), state.as_str(), &params["steps"]), ("tested", "FINISHED", &Value::from("40")));
    for (name, curve) in curves {
        assert_eq!(read[&name], curve, "{name}");
    }
}
