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

/// Lines of `meta.yaml` that a later export writes anew. The others are MLflow's from then on.
const RENEWED: [&str; 3] = ["artifact_uri", "end_time", "status"];

/// Writes a run into the store at `dir`. A later export renews the curves, its own parameters and tags, and the state; all else in the run's folder stays.
/// `ended_ms`: Unix time of its end, of a finished run. Returns its folder.
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
    let meta = run_yaml(&folder, history.meta(), ended_ms);
    if folder.exists() {
        fill(&folder, history, &meta)?;
    } else {
        let partial = experiment.join(format!(".{}.partial", history.meta().run));
        remove(&partial)?;
        fill(&partial, history, &meta)?;
        fs::rename(&partial, &folder)?;
    }
    Ok(folder)
}

/// Writes the files of a run into its folder, in place of those of an earlier export.
fn fill(folder: &Path, history: &History, meta_yaml: &str) -> io::Result<()> {
    for name in ["artifacts", "params", "tags"] {
        fs::create_dir_all(folder.join(name))?;
    }
    let (metrics, partial) = (folder.join("metrics"), folder.join(".metrics.partial"));
    remove(&partial)?;
    fs::create_dir_all(&partial)?;
    for (tag, lines) in curves(history) {
        let file = partial.join(&*tag);
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(file, lines)?;
    }
    remove(&metrics)?;
    fs::rename(&partial, &metrics)?;
    let Meta { run, name, steps, batch, about, .. } = history.meta();
    let params = [("steps", steps.to_string()), ("batch", batch.to_string()), ("about", about.clone())];
    params.iter().try_for_each(|(name, value)| fs::write(folder.join("params").join(name), value))?;
    let tags = folder.join("tags");
    let own = [("mlflow.source.name", "longhaul"), ("longhaul.run", run)];
    own.iter().try_for_each(|(name, value)| fs::write(tags.join(name), value))?;
    let name_tag = tags.join("mlflow.runName");
    // MLflow may have another name for it by now.
    if !name_tag.exists() {
        fs::write(name_tag, name)?;
    }
    let meta = folder.join("meta.yaml");
    let text =
        if meta.exists() { renewed(&fs::read_to_string(&meta)?, meta_yaml) } else { meta_yaml.to_owned() };
    let partial = folder.join(".meta.yaml.partial");
    fs::write(&partial, text)?;
    fs::rename(&partial, &meta)
}

/// Returns the present `meta.yaml` with the [renewed](RENEWED) values of `new`.
fn renewed(present: &str, new: &str) -> String {
    let is_renewed = |line: &str| line.split_once(':').is_some_and(|(key, _)| RENEWED.contains(&key));
    let mut lines = Vec::new();
    let mut is_dropped = false;
    for line in present.lines() {
        // YAML continues a long value with indented lines.
        let continues = line.starts_with(' ');
        is_dropped = if continues { is_dropped } else { is_renewed(line) };
        if !is_dropped {
            lines.push(line);
        }
    }
    lines.extend(new.lines().filter(|line| is_renewed(line)));
    lines.join("\n") + "\n"
}

/// Lines of each curve: Unix time in milliseconds, value, step.
fn curves(history: &History) -> BTreeMap<Cow<'static, str>, String> {
    let mut curves: BTreeMap<Cow<'static, str>, String> = BTreeMap::new();
    let mut put = |at_ms: u64, step: u64, scalars: Vec<Scalar>| {
        for Scalar { tag, value } in scalars {
            // Writing to a string succeeds.
            let _ = writeln!(curves.entry(tag).or_default(), "{at_ms} {value} {step}");
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
    curves
}

fn experiment_yaml(folder: &Path, meta: &Meta) -> String {
    let (id, name) = EXPERIMENT;
    let (location, begun) = (quoted(&uri_of(folder)), meta.begun_ms);
    format!(
        "artifact_location: {location}\ncreation_time: {begun}\nexperiment_id: '{id}'\nlast_update_time: {begun}\nlifecycle_stage: active\nname: {name}\n"
    )
}

fn run_yaml(folder: &Path, meta: &Meta, ended_ms: Option<u64>) -> String {
    let Meta { run, name, begun_ms, .. } = meta;
    let status = if ended_ms.is_some() { FINISHED } else { RUNNING };
    let end = ended_ms.map_or_else(|| "null".to_owned(), |at_ms| at_ms.to_string());
    let (id, name) = (EXPERIMENT.0, quoted(name));
    let artifacts = quoted(&uri_of(&folder.join("artifacts")));
    format!(
        "artifact_uri: {artifacts}\nend_time: {end}\nentry_point_name: ''\nexperiment_id: '{id}'\nlifecycle_stage: active\n\
         run_id: '{run}'\nrun_name: {name}\nrun_uuid: '{run}'\nsource_name: longhaul\nsource_type: 4\nsource_version: ''\n\
         start_time: {begun_ms}\nstatus: {status}\ntags: []\nuser_id: ''\n"
    )
}

/// Returns the `file` URI of an absolute path (RFC 8089).
fn uri_of(path: &Path) -> String {
    let mut uri = "file://".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            // Writing to a string succeeds.
            byte => drop(write!(uri, "%{byte:02X}")),
        }
    }
    uri
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::FORMAT;

    fn history() -> History {
        History::new(Meta {
            format: FORMAT,
            run: "cafe".to_owned(),
            name: "tested".to_owned(),
            begun_ms: 5,
            images: false,
            steps: 9,
            batch: 4,
            about: "dense".to_owned(),
        })
    }

    #[test]
    fn a_later_export_renews_its_own_files_and_leaves_the_users() {
        let dir = tempfile::tempdir().unwrap();
        let folder = export(dir.path(), &history(), None).unwrap();
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert!(
            read("meta.yaml").contains("\nstatus: 1\n") && read("meta.yaml").contains("\nend_time: null\n")
        );
        // As MLflow leaves it when its user adds a note and a file, renames and deletes the run.
        let meta =
            read("meta.yaml").replace("lifecycle_stage: active", "deleted_time: 9\nlifecycle_stage: deleted");
        let meta = meta.replace("run_name: \"tested\"", "run_name: a name of\n  two lines");
        for (name, text) in [
            ("meta.yaml", meta.as_str()),
            ("artifacts/plot.png", "plot"),
            ("tags/mlflow.note.content", "note"),
            ("tags/mlflow.runName", "renamed"),
            ("params/own", "value"),
            ("params/steps", "damaged"),
            ("metrics/of an earlier export", "1 2 3"),
        ] {
            fs::write(folder.join(name), text).unwrap();
        }
        assert_eq!(export(dir.path(), &history(), Some(77)).unwrap(), folder);
        for (name, text) in [
            ("artifacts/plot.png", "plot"),
            ("tags/mlflow.note.content", "note"),
            ("tags/mlflow.runName", "renamed"),
            ("tags/longhaul.run", "cafe"),
            ("params/own", "value"),
            ("params/steps", "9"),
        ] {
            assert_eq!(read(name), text, "{name}");
        }
        assert!(!folder.join("metrics/of an earlier export").exists());
        let renewed = read("meta.yaml");
        for line in
            ["deleted_time: 9", "lifecycle_stage: deleted", "  two lines", "status: 3", "end_time: 77"]
        {
            assert_eq!(renewed.lines().filter(|other| *other == line).count(), 1, "{line}: {renewed}");
        }
        assert_eq!(renewed.matches("status: ").count() + renewed.matches("artifact_uri: ").count(), 2);
        let left = fs::read_dir(&folder)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
        assert_eq!(left.count(), 0);
    }

    /// MLflow decodes it (`urllib.parse.unquote`).
    #[test]
    fn a_path_is_encoded_for_its_uri() {
        assert_eq!(uri_of(Path::new("/a b/50%#?/ü/x-1_~.y")), "file:///a%20b/50%25%23%3F/%C3%BC/x-1_~.y");
    }
}
