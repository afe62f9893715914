//! Files as people have them, whole and damaged, read as the field's own readers read them: `cargo run --release -p longhaul-bench --bin bench-cases -- --python PROGRAM [--quick] [--seed N] [--keep FOLDER]`.
//!
//! The Python needs `tokenizers` and `pyarrow`. For each kind of file, JSON lines tell how many were read as the reader does, how many both refuse, how many are refused that the reader takes, and how many differ, which fails.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use longhaul_bench::figures::print;
use longhaul_common::config::{DataConfig, read_toml};
use longhaul_data::{Dataset, Tokenizer, Work};
use serde::Deserialize;
use serde_json::{Value, json};

/// Instances of each kind.
const COUNT: u64 = 200;
const COUNT_QUICK: u64 = 20;
/// Between records, for a tokenizer of bytes and for those of the fixture.
const SEPARATOR: &str = "==end==";
const SEPARATOR_OF_CLASSES: &str = "</s>";

#[derive(Deserialize)]
struct Case {
    kind: String,
    folder: String,
    reader: String,
    data: BTreeMap<String, String>,
    /// Texts, tokens, or whole files; none: the reader refuses the file.
    expected: Option<Vec<Value>>,
}

/// What came of a file, against what comes of it for the reader.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Same,
    BothRefuse,
    RefusedMore,
    Differs,
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::BothRefuse => "both_refuse",
            Self::RefusedMore => "refused_more",
            Self::Differs => "differs",
        }
    }
}

struct Options {
    python: PathBuf,
    seed: u64,
    count: u64,
    keep: Option<PathBuf>,
}

impl Options {
    fn read() -> Result<Self> {
        let (mut python, mut seed, mut count, mut keep) = (None, 1, COUNT, None);
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
            match &*argument {
                "--quick" => count = COUNT_QUICK,
                "--python" => python = Some(value()?.into()),
                "--seed" => seed = value()?.parse().context("--seed NUMBER")?,
                "--keep" => keep = Some(value()?.into()),
                _ => bail!("{argument} is none of --python, --quick, --seed and --keep"),
            }
        }
        let python = python.context("--python PROGRAM: one that has tokenizers and pyarrow")?;
        Ok(Self { python, seed, count, keep })
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(differ) => {
            eprintln!("{differ} files are read in another way than their reader does, and nothing says so");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// How many differ.
fn run() -> Result<u64> {
    let options = Options::read()?;
    let temporary = tempfile::tempdir()?;
    let folder = options.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = Command::new(&options.python)
        .arg(here.join("src/bin/cases/make.py"))
        .arg(&folder)
        .args([options.seed.to_string(), options.count.to_string()])
        .arg(here.join("data/tests/fixtures/tokenizers.json"))
        .status()
        .with_context(|| format!("start {}", options.python.display()))?;
    ensure!(made.success(), "the files could not be made: {made}");
    let cases: Vec<Case> = serde_json::from_slice(&std::fs::read(folder.join("cases.json"))?)?;
    let mut counts: BTreeMap<(String, String), BTreeMap<Outcome, u64>> = BTreeMap::new();
    for case in &cases {
        let (outcome, what) = look(case, &folder.join(&case.folder))?;
        if outcome == Outcome::Differs || outcome == Outcome::RefusedMore && options.keep.is_some() {
            eprintln!("{} {}: {what}", case.folder, outcome.word());
        }
        *counts.entry((case.kind.clone(), case.reader.clone())).or_default().entry(outcome).or_default() += 1;
    }
    let mut differ = 0;
    for ((kind, reader), outcomes) in counts {
        for outcome in [Outcome::Same, Outcome::BothRefuse, Outcome::RefusedMore, Outcome::Differs] {
            let count = outcomes.get(&outcome).copied().unwrap_or_default();
            print("cases", &format!("{kind} ({reader})"), outcome.word(), count, "files");
        }
        differ += outcomes.get(&Outcome::Differs).copied().unwrap_or_default();
    }
    Ok(differ)
}

fn look(case: &Case, folder: &Path) -> Result<(Outcome, String)> {
    let read = prepare(case, folder);
    Ok(match (read, &case.expected) {
        (Err(error), None) => (Outcome::BothRefuse, format!("{error:#}")),
        (Err(error), Some(_)) => (Outcome::RefusedMore, format!("{error:#}")),
        (Ok(tokens), None) => {
            (Outcome::Differs, format!("the reader refuses it, and here are {} tokens", tokens.len()))
        }
        (Ok(tokens), Some(expected)) => {
            let expected = tokens_of(expected)?;
            let at = tokens.iter().zip(&expected).position(|(one, other)| one != other);
            match tokens == expected {
                true => (Outcome::Same, String::new()),
                false => (
                    Outcome::Differs,
                    format!(
                        "{} tokens where the reader gives {}, other ones from {at:?} on",
                        tokens.len(),
                        expected.len()
                    ),
                ),
            }
        }
    })
}

fn prepare(case: &Case, folder: &Path) -> Result<Vec<u32>> {
    let tokenizer = folder.join("tokenizer.json");
    let (tokenizer, separator) = match tokenizer.exists() {
        true => (Tokenizer::load(&tokenizer.display().to_string())?, SEPARATOR_OF_CLASSES),
        false => (Tokenizer::Bytes, SEPARATOR),
    };
    let keys: Vec<String> =
        case.data.iter().map(|(key, value)| format!("{key} = {}", json!(value))).collect();
    let config: DataConfig = read_toml(&format!(
        "sequence_length = 2\nvalidation_share = 0.0\nseparator = \"{separator}\"\nsources = [{{ {} }}]",
        keys.join(", ")
    ))?;
    let cache = tempfile::tempdir()?;
    let data = Dataset::open(&config.found_at(folder), &tokenizer, cache.path(), &Work::default())?;
    Ok(data.peek(0, u64::MAX)?)
}

/// Of texts with what follows a record, in bytes; of whole files without; or as they are.
fn tokens_of(expected: &[Value]) -> Result<Vec<u32>> {
    let mut tokens = Vec::new();
    for record in expected {
        match record {
            Value::String(text) => {
                tokens.extend(text.bytes().chain(SEPARATOR.bytes()).map(u32::from));
            }
            Value::Object(whole) => {
                let text = whole.get("whole").and_then(Value::as_str).context("a whole file")?;
                tokens.extend(text.bytes().map(u32::from));
            }
            ids => tokens.extend(serde_json::from_value::<Vec<u32>>(ids.clone())?),
        }
    }
    Ok(tokens)
}
