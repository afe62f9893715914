//! A run in MLflow's file store: a folder of plain text (`mlflow/store/tracking/file_store.py` of MLflow 2 and 3).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::history::{History, Meta};
use crate::tensorboard::{Scalar, of_round, of_sample};

/// Id and name of the experiment of all runs.
const EXPERIMENT: (&str, &str) = ("510710410397117108", "longhaul");
/// MLflow's numbers of a run's state.
const RUNNING: u8 = 1;
const FINISHED: u8 = 3;

/// Writes a run into the store at `dir`, in the place of an earlier export. `ended_ms`: Unix time of its end, of a
/// finished run. Returns its folder.
///
/// # Errors
/// The system's error.
pub fn export(dir: &Path, history: &History, ended_ms: Option<u64>) -> io::Result<PathBuf> {
    let dir = std::path::absolute(dir)?;
    let experiment = dir.join(EXPERIMENT.0);
    fs::create_dir_all(&experiment)?;
    let meta_of_experiment = experiment.join("meta.yaml");
    if !meta_of_experiment.exists() {
        fs::write(&meta_of_experiment, experiment_yaml(&experiment, history.meta()))?;
    }
    let folder = experiment.join(&history.meta().run);
    let partial = experiment.join(format!(".{}.partial", history.meta().run));
    remove(&partial)?;
    for name in ["artifacts", "metrics", "params", "tags"] {
        fs::create_dir_all(partial.join(name))?;
    }
    fs::write(partial.join("meta.yaml"), run_yaml(&folder, history.meta(), ended_ms))?;
    let Meta { run, name, steps, batch, about, .. } = history.meta();
    let params = [("steps", steps.to_string()), ("batch", batch.to_string()), ("about", about.clone())];
    params.iter().try_for_each(|(name, value)| fs::write(partial.join("params").join(name), value))?;
    let tags =
        [("mlflow.runName", name), ("mlflow.source.name", &"longhaul".to_owned()), ("longhaul.run", run)]
            .map(|(name, value)| (name, value.clone()));
    tags.iter().try_for_each(|(name, value)| fs::write(partial.join("tags").join(name), value))?;
    for (tag, lines) in metrics(history) {
        let file = partial.join("metrics").join(&*tag);
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(file, lines)?;
    }
    remove(&folder)?;
    fs::rename(&partial, &folder)?;
    Ok(folder)
}

/// Lines of each curve: Unix time in milliseconds, value, step.
fn metrics(history: &History) -> BTreeMap<Cow<'static, str>, String> {
    let mut metrics: BTreeMap<Cow<'static, str>, String> = BTreeMap::new();
    let mut put = |at_ms: u64, step: u64, scalars: Vec<Scalar>| {
        for Scalar { tag, value } in scalars {
            // Writing to a string succeeds.
            let _ = writeln!(metrics.entry(tag).or_default(), "{at_ms} {value} {step}");
        }
    };
    let rounds = history.rounds();
    let open = rounds.open().map(|(point, _)| point);
    for round in rounds.kept().iter().chain(open) {
        put(round.at_ms.unwrap_or(history.meta().begun_ms), round.step, of_round(round));
    }
    for pair in history.samples().kept().windows(2) {
        if let [before, sample] = pair {
            put(sample.at_ms, sample.step, of_sample(before, sample));
        }
    }
    metrics
}

fn experiment_yaml(folder: &Path, meta: &Meta) -> String {
    let (id, name) = EXPERIMENT;
    let (location, begun) = (quoted(&format!("file://{}", folder.display())), meta.begun_ms);
    format!(
        "artifact_location: {location}\ncreation_time: {begun}\nexperiment_id: '{id}'\nlast_update_time: {begun}\nlifecycle_stage: active\nname: {name}\n"
    )
}

fn run_yaml(folder: &Path, meta: &Meta, ended_ms: Option<u64>) -> String {
    let Meta { run, name, begun_ms, .. } = meta;
    let status = if ended_ms.is_some() { FINISHED } else { RUNNING };
    let end = ended_ms.map_or_else(|| "null".to_owned(), |at_ms| at_ms.to_string());
    let (id, name) = (EXPERIMENT.0, quoted(name));
    let artifacts = quoted(&format!("file://{}/artifacts", folder.display()));
    format!(
        "artifact_uri: {artifacts}\nend_time: {end}\nentry_point_name: ''\nexperiment_id: '{id}'\nlifecycle_stage: active\n\
         run_id: '{run}'\nrun_name: {name}\nrun_uuid: '{run}'\nsource_name: longhaul\nsource_type: 4\nsource_version: ''\n\
         start_time: {begun_ms}\nstatus: {status}\ntags: []\nuser_id: ''\n"
    )
}

/// A text in YAML's double quotes, which are those of JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
