//! `worker data`: a run's data, before and after the run.

mod conversations;
mod images;
mod inspect;
mod preparing;

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use indicatif::{BinaryBytes, HumanCount};
use longhaul_checkpoint::read_run;
use longhaul_common::config::{DataConfig, TasksConfig, renamed_keys};
use longhaul_common::model::ModelSpec;
use longhaul_data::counted::{are, counted, were};
use longhaul_data::tasks::{TaskError, TaskFile};
use longhaul_data::{DataError, Dataset, SourceSummary, Tokenizer, Work, not_put, prune};

use crate::agent;
use crate::cli::{DataCommand, DataPruneArgs, DataRunArgs};
use crate::data_progress::{self, Far};
use crate::epochs::{EPOCHS_TOLD_MIN, has_weights, times};
use crate::stop::StopSignal;

/// Bytes in a GiB.
const GIB: f64 = (1_u64 << 30) as f64;

/// Runs a sub-command.
///
/// # Errors
/// The error names the file and a remedy.
pub async fn run(command: DataCommand) -> Result<()> {
    match command {
        DataCommand::Prepare(args) => prepare(&args).await,
        DataCommand::Inspect(args) => on_a_thread(move || inspect::inspect(&args)).await,
        DataCommand::Verify(args) => verify(&args).await,
        DataCommand::Prune(args) => prune_cache(&args),
    }
}

/// A run's data on this machine.
struct Data {
    config: DataConfig,
    tokenizer: Tokenizer,
    cache_dir: PathBuf,
    cache_bytes_max: Option<u64>,
    /// Samples of a validation.
    evaluated: u64,
    /// Samples of all steps.
    drawn: u64,
    /// Notes on the files of `evaluate.tasks`.
    tasks: Vec<String>,
}

impl Data {
    fn read(args: &DataRunArgs) -> Result<Self> {
        let text = std::fs::read_to_string(&args.config);
        let text = text.with_context(|| format!("read {}", args.config.display()))?;
        for renamed in renamed_keys(&text) {
            tracing::warn!("{}: {renamed}", args.config.display());
        }
        let run = read_run(&text).with_context(|| format!("read {}", args.config.display()))?;
        let config = args.data.as_ref().map_or_else(|| run.data.clone(), |place| run.data.found_at(place));
        let tokenizer = match (&run.model.from, config.tokenizer == DataConfig::OF_MODEL) {
            (Some(folder), true) => Tokenizer::load(&format!("{folder}/tokenizer.json"))?,
            _ => Tokenizer::load(&config.tokenizer)?,
        };
        // Refuses a mismatch of model and tokens before any data is prepared.
        ModelSpec::of(&run, tokenizer.vocabulary())
            .with_context(|| format!("read {}", args.config.display()))?;
        let tasks = notes_on_tasks(&run.evaluate.tasks)?;
        let cache_dir = agent::cache_dir(args.cache_dir.clone())?;
        let evaluated = run.train.evaluated_samples();
        let drawn = run.train.samples_in(run.run.steps);
        Ok(Self {
            config,
            tokenizer,
            cache_dir,
            cache_bytes_max: args.cache_bytes_max(),
            evaluated,
            drawn,
            tasks,
        })
    }
}

/// Returns the notes on files of `evaluate.tasks`, and those that are not on this machine.
///
/// # Errors
/// One is not of its kind.
fn notes_on_tasks(config: &TasksConfig) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    for (kind, file) in config.files() {
        match TaskFile::read(Path::new(file), Some(kind), config.limit()) {
            Ok(read) if read.notes.are_none() => {}
            Ok(read) => notes.push(format!("{file}: {}", read.notes)),
            Err(TaskError::Missing { .. }) => {
                notes.push(format!(
                    "{file} is not on this machine, and each worker needs it (evaluate.tasks)"
                ));
            }
            Err(error) => return Err(error).context("evaluate.tasks"),
        }
    }
    Ok(notes)
}

async fn prepare(args: &DataRunArgs) -> Result<()> {
    let data = Data::read(args)?;
    let (tokenizer, config, evaluated) = (data.tokenizer.clone(), data.config.clone(), data.evaluated);
    let (drawn, tasks) = (data.drawn, data.tasks.clone());
    let (data, done) = preparing::prepare(data).await?;
    let mut told = Told::default();
    told.line_of_settings(&tokenizer, &config);
    tasks.iter().for_each(|notes| told.line(notes));
    for source in data.sources() {
        told.line(&Line { source: &source, times: times(&source, drawn, &config) });
    }
    told.lines_of_all(&data);
    told.line_of_held_out(&data, evaluated);
    // With a file's list present, shards are not checked individually.
    let shards = match (done.made, done.found) {
        (0, 0) => "all of it was prepared before".to_owned(),
        (made, found) => format!(
            "{} {} made, {} {} there",
            counted(made, "shard"),
            were(made),
            HumanCount(found),
            were(found)
        ),
    };
    told.line(&format_args!("{shards}; {}", Epoch { samples: data.samples(), drawn, config: &config }));
    told.print()
}

async fn verify(args: &DataRunArgs) -> Result<()> {
    let (data, _) = preparing::prepare(Data::read(args)?).await?;
    let verify = move || {
        let (bytes, shards) = (AtomicU64::new(0), AtomicU64::new(0));
        let (all, count) = (data.bytes(), data.sources().iter().map(|source| source.size.shards).sum());
        let far = || {
            let shards = HumanCount(shards.load(Ordering::Relaxed));
            let more = format!("{shards} of {}", counted(count, "shard"));
            Far { done: bytes.load(Ordering::Relaxed), all, found: 0, more }
        };
        let check = || {
            data.verify(|checked| {
                bytes.fetch_add(checked, Ordering::Relaxed);
                shards.fetch_add(1, Ordering::Relaxed);
            })
        };
        let damaged = data_progress::watch("checking data", far, check)??;
        Ok((damaged, bytes.into_inner(), shards.into_inner()))
    };
    let (damaged, bytes, shards) = on_a_thread(verify).await?;
    let mut told = Told::default();
    told.line(&format_args!(
        "{}, {}: each byte was read, {damaged} {} damaged or missing and {} made again",
        counted(shards, "shard"),
        BinaryBytes(bytes),
        were(damaged),
        are(damaged),
    ));
    told.print()
}

fn prune_cache(args: &DataPruneArgs) -> Result<()> {
    // A float that is too large becomes the largest integer.
    let bytes_max = (args.max_gib * GIB) as u64;
    let pruned = prune(&agent::cache_dir(args.cache_dir.clone())?, bytes_max)?;
    let mut told = Told::default();
    told.line(&format_args!(
        "{} were removed, {} are left",
        BinaryBytes(pruned.removed_bytes),
        BinaryBytes(pruned.left_bytes)
    ));
    told.print()?;
    ensure!(
        pruned.left_bytes <= bytes_max,
        "{} of what is left are in use: prune again when the run that uses them has ended",
        BinaryBytes(pruned.in_use_bytes)
    );
    Ok(())
}

/// Runs blocking work on its own thread, which is abandoned on a stop signal.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let mut stop = StopSignal::listen()?;
    tokio::select! {
        done = tokio::task::spawn_blocking(work) => done.context("a thread did not finish")?,
        () = stop.asked() => Err(DataError::Stopped.into()),
    }
}

/// One line of a source.
struct Line<'a> {
    source: &'a SourceSummary,
    /// How often its samples come, where that is told.
    times: Option<u64>,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SourceSummary { name, size, samples, share } = self.source;
        write!(
            f,
            "{name}: {} in {}, {}, ",
            BinaryBytes(size.bytes),
            counted(size.files, "file"),
            counted(size.records, "record"),
        )?;
        match size.classes.len() {
            0 if size.conversations.conversations > 0 => write!(f, "{}", size.conversations)?,
            classes if size.conversations.conversations > 0 => {
                write!(f, "{} of {}", size.conversations, counted_classes(classes))?;
            }
            0 => write!(f, "{}", counted(size.items, "token"))?,
            classes => write!(f, "images of {}", counted_classes(classes))?,
        }
        write!(f, " in {}, {}, ", counted(size.shards, "shard"), counted(*samples, "sample"))?;
        match share {
            Some(share) => write!(f, "{:.1} % of the run's", 100.0 * share)?,
            None => write!(f, "held out")?,
        }
        if let Some(times) = self.times {
            write!(f, ", each about {} times by its weight", HumanCount(times))?;
        }
        if *samples == 0 {
            write!(f, "; warning: it is shorter than one sample, and none of it is used")?;
        }
        if size.passed.count() > 0 {
            write!(f, "; {}", size.passed)?;
        }
        if size.empty_classes.count() > 0 {
            write!(f, "; {}", size.empty_classes)?;
        }
        if size.unknown.count() > 0 {
            let warning = if size.unknown.are_many() { "warning: " } else { "" };
            write!(f, "; {warning}{}", size.unknown)?;
        }
        if size.same.count() > 0 {
            write!(f, "; {}", size.same)?;
        }
        if size.odd.count() > 0 {
            let warning = if size.odd.are_many() { "warning: " } else { "" };
            write!(f, "; {warning}{}", size.odd)?;
        }
        if size.carriage_returns.count() > 0 {
            write!(f, "; {}", size.carriage_returns)?;
        }
        if !size.notes.are_none() {
            write!(f, "; {}", size.notes)?;
        }
        if size.marks.count() > 0 {
            write!(f, "; {}", size.marks)?;
        }
        if size.bad.count > 0 {
            let (bad, examples) = (size.bad.count, size.bad.examples.join("\n  "));
            let of_records = |f: &mut fmt::Formatter<'_>| {
                write!(f, "; {} {} left out:\n  {examples}", counted(bad, "record"), were(bad))
            };
            match size.classes.len() {
                _ if size.conversations.are_of_texts() => of_records(f)?,
                0 => of_records(f)?,
                // Of those that cannot be decoded, another has the place.
                _ => write!(
                    f,
                    "; {} {} not read, or left out:\n  {examples}",
                    counted(bad, "image"),
                    were(bad)
                )?,
            }
        }
        Ok(())
    }
}

fn counted_classes(classes: usize) -> String {
    if classes == 1 { "1 class".to_owned() } else { format!("{classes} classes") }
}

/// The size of an epoch.
struct Epoch<'a> {
    samples: u64,
    /// Samples of the run.
    drawn: u64,
    config: &'a DataConfig,
}

impl fmt::Display for Epoch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an epoch has {}", counted(self.samples, "sample"))?;
        let epochs = self.drawn.checked_div(self.samples).unwrap_or_default();
        if epochs >= EPOCHS_TOLD_MIN {
            let drawn = HumanCount(self.drawn);
            write!(
                f,
                ", and the run takes {drawn} (run.steps × train.batch), {} epochs",
                HumanCount(epochs)
            )?;
        }
        if has_weights(self.config) {
            f.write_str(", drawn by the sources' weights: some may come again before others come once")?;
        }
        Ok(())
    }
}

/// The held-out samples, and how many of them are evaluated.
struct HeldOut {
    samples: u64,
    evaluated: u64,
}

impl fmt::Display for HeldOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { samples, evaluated } = *self;
        write!(f, "{} held out, ", counted(samples, "sample"))?;
        match evaluated {
            0 => f.write_str("none of them evaluated (train.evaluate_batches = 0)"),
            _ if evaluated < samples => write!(
                f,
                "{evaluated} of them in each validation (train.evaluate_batches × train.micro_batch)"
            ),
            _ => f.write_str("all of them in each validation"),
        }
    }
}

/// The final output.
#[derive(Default)]
struct Told(String);

impl Told {
    fn line(&mut self, line: &dyn fmt::Display) {
        self.0 += &format!("{line}\n");
    }

    /// Adds a line if the tokenizer's file has other settings.
    fn line_of_settings(&mut self, tokenizer: &Tokenizer, config: &DataConfig) {
        if !tokenizer.settings().is_empty() {
            let settings = tokenizer.settings().join(", ");
            self.line(&format_args!(
                "the tokenizer's file has settings of its last use, which are ignored: {settings}"
            ));
        }
        tokenizer.notices().iter().for_each(|notice| self.line(notice));
        not_put(config, tokenizer).iter().for_each(|notice| self.line(notice));
    }

    /// Adds a line if sources have equal files, and one if classes occur only in training or only in held-out data.
    fn lines_of_all(&mut self, data: &Dataset) {
        let copies = data.copies();
        if copies.count() > 0 {
            self.line(&copies);
        }
        if !data.class_gaps().are_none() {
            self.line(data.class_gaps());
        }
    }

    /// Adds a line on the held-out samples, if there are any.
    fn line_of_held_out(&mut self, data: &Dataset, evaluated: u64) {
        let samples = data.held_out_samples();
        if samples > 0 {
            self.line(&HeldOut { samples, evaluated });
        }
    }

    /// Prints the text; a closed reader is no error.
    fn print(&self) -> Result<()> {
        match io::stdout().write_all(self.0.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("print"),
            _ => Ok(()),
        }
    }
}

/// Opens a run's data, fully prepared.
fn open(data: &Data, work: &Work) -> Result<Dataset> {
    let cache = (data.cache_dir.as_path(), data.cache_bytes_max);
    let dataset = Dataset::open_within(&data.config, &data.tokenizer, cache, work)?;
    dataset.complete()?;
    Ok(dataset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_data::{BadRecords, SourceSize};

    #[test]
    fn files_of_tasks_are_told_with_unread_columns_and_where_they_are_not_here() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let row = r#"{"question": "q", "answer": "a", "level": 1}"#;
        std::fs::write(path("a.jsonl"), format!("{row}\n{row}\n")).unwrap();
        let config =
            |name: &str| TasksConfig { exact_match: vec![path(name)], questions: 1, ..Default::default() };
        let told = [
            ("a.jsonl", "a.jsonl: columns that are not read: `level` (1 record)"),
            ("b.jsonl", "b.jsonl is not on this machine, and each worker needs it (evaluate.tasks)"),
        ];
        for (name, words) in told {
            let notes = notes_on_tasks(&config(name)).unwrap();
            assert!(notes.len() == 1 && notes[0].ends_with(words), "{notes:?}");
        }
        std::fs::write(path("a.jsonl"), row.replace("\"level\": 1", "\"context\": \"c\"")).unwrap();
        assert!(
            format!("{:#}", notes_on_tasks(&config("a.jsonl")).unwrap_err())
                .contains("its `context` is in no")
        );
    }

    #[test]
    fn one_of_each_is_told_in_the_singular() {
        let examples = vec!["a.jsonl, line 2: it is no JSON object".to_owned()];
        let bad = BadRecords { count: 1, examples };
        let size = SourceSize { files: 1, records: 1, bad, items: 1, ..SourceSize::default() };
        let summary = SourceSummary { name: "a.jsonl".to_owned(), size, samples: 1, share: None };
        let told = Line { source: &summary, times: None }.to_string();
        for words in [
            " in 1 file, 1 record, 1 token in 0 shards, 1 sample, held out",
            "; 1 record was left out:\n  a.jsonl",
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
    }

    #[test]
    fn samples_that_come_several_times_by_weights_are_told_with_their_number() {
        let config = |weights: [&str; 2]| -> DataConfig {
            let sources = weights.map(|weight| format!("{{ path = \"a.txt\"{weight} }}")).join(", ");
            longhaul_common::config::read_toml(&format!("sequence_length = 8\nsources = [{sources}]"))
                .unwrap()
        };
        let (weighted, plain) = (config([", weight = 1.0"; 2]), config([""; 2]));
        for (samples, share, config, told) in [
            (1, Some(0.5), &weighted, Some(1000)),
            (250, Some(0.5), &weighted, Some(4)),
            (300, Some(0.5), &weighted, None),
            (0, Some(0.5), &weighted, None),
            (1, None, &weighted, None),
            (1, Some(0.5), &plain, None),
        ] {
            let size = SourceSize::default();
            let source = SourceSummary { name: "a.txt".to_owned(), size, samples, share };
            let times = times(&source, 2000, config);
            assert_eq!(times, told, "{samples}");
            let line = Line { source: &source, times }.to_string();
            assert_eq!(
                line.contains(", 50.0 % of the run's, each about 1,000 times by its weight"),
                told == Some(1000)
            );
        }
    }
}
