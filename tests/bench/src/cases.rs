//! Typical files, intact and damaged, compared with the standard readers of their formats.
//!
//! The Python needs `tokenizers`, `pyarrow`, `numpy` and Pillow. For each kind of file, JSON lines count the files read alike,
//! refused by both, refused only here, and read differently, which is a failure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use longhaul_common::config::{DataConfig, read_toml};
use longhaul_data::{Content, Dataset, Sample, Tokenizer, Work};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kit::args::{Quick, Seed};
use crate::kit::recorder::Recorder;
use crate::kit::{checkout, progress, python};

/// Instances of each kind.
const COUNT: u64 = 200;
const COUNT_QUICK: u64 = 20;
/// Separators of records, for a tokenizer of bytes and for those of the fixture.
const SEPARATOR: &str = "==end==";
const SEPARATOR_OF_CLASSES: &str = "</s>";

#[derive(Deserialize)]
struct Case {
    kind: String,
    folder: String,
    reader: String,
    data: BTreeMap<String, String>,
    /// Texts, tokens, or whole files; `None`: the reader refuses the file.
    expected: Option<Vec<Value>>,
    /// The lines of `[data.image]`, for images.
    #[serde(default)]
    image: Option<BTreeMap<String, u64>>,
    /// `None`: the reader refuses the file.
    #[serde(default)]
    images: Option<Vec<Image>>,
}

/// Our result for a file, compared with the reader's.
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

/// Typical files, intact and damaged, compared with standard readers
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
    #[command(flatten)]
    seed: Seed,
    /// A Python with `tokenizers`, `pyarrow`, `numpy` and Pillow
    #[arg(long, value_name = "PROGRAM")]
    python: PathBuf,
    /// Keeps the files in this folder, and names the refused ones
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
}

/// A class, and pixels `[channels, height, width]`.
type Image = (u32, Vec<u8>);

/// By kind and reader: number of files per outcome.
type Counts = BTreeMap<(String, String), BTreeMap<Outcome, u64>>;

/// Makes the files and reads them.
///
/// # Errors
/// A file is read differently than by its reader.
pub fn run(args: &Args) -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let folder = args.keep.as_deref().unwrap_or(temporary.path());
    let mut counts = Counts::new();
    for case in &make(args, folder)? {
        let (outcome, what) = look(case, &folder.join(&case.folder))?;
        if outcome == Outcome::Differs || outcome == Outcome::RefusedMore && args.keep.is_some() {
            progress(format!("{} {}: {what}", case.folder, outcome.word()));
        }
        *counts.entry((case.kind.clone(), case.reader.clone())).or_default().entry(outcome).or_default() += 1;
    }
    let differ = report(&counts);
    ensure!(differ == 0, "{differ} files are silently read differently than by their reader");
    Ok(())
}

fn make(args: &Args, folder: &Path) -> Result<Vec<Case>> {
    let count = args.quick.choose(COUNT_QUICK, COUNT);
    let (seed, count) = (args.seed.seed.to_string().into(), count.to_string().into());
    let fixture = checkout::file("worker/data/tests/fixtures/tokenizers.json");
    python::run(&args.python, "cases.py", [folder.to_owned(), seed, count, fixture])?;
    let file = folder.join("cases.json");
    let cases = std::fs::read(&file).with_context(|| format!("read {}", file.display()))?;
    Ok(serde_json::from_slice(&cases)?)
}

/// Prints all counts; returns the number of differences.
fn report(counts: &Counts) -> u64 {
    let recorder = Recorder::new("cases");
    for ((kind, reader), outcomes) in counts {
        for outcome in [Outcome::Same, Outcome::BothRefuse, Outcome::RefusedMore, Outcome::Differs] {
            let count = outcomes.get(&outcome).copied().unwrap_or_default();
            recorder.print(&format!("{kind} ({reader})"), outcome.word(), count, "files");
        }
    }
    counts.values().filter_map(|outcomes| outcomes.get(&Outcome::Differs)).sum()
}

fn look(case: &Case, folder: &Path) -> Result<(Outcome, String)> {
    if case.image.is_some() {
        return Ok(look_at_images(case, folder));
    }
    let read = prepare(case, folder).and_then(|(data, _cache)| Ok(data.peek(0, u64::MAX)?));
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

/// Pixels may differ by so much: Pillow rounds twice when it scales, and decoders of JPEG round otherwise.
const LEVELS_MAX: u8 = 3;

fn look_at_images(case: &Case, folder: &Path) -> (Outcome, String) {
    let read = prepare(case, folder).and_then(|(data, _cache)| images_of(&data));
    match (read, &case.images) {
        (Err(error), None) => (Outcome::BothRefuse, format!("{error:#}")),
        (Err(error), Some(_)) => (Outcome::RefusedMore, format!("{error:#}")),
        (Ok(images), None) => {
            (Outcome::Differs, format!("the reader refuses it, and here are {} images", images.len()))
        }
        (Ok(images), Some(expected)) => {
            let are_near = |one: &[u8], other: &[u8]| {
                one.len() == other.len()
                    && one.iter().zip(other).all(|(one, other)| one.abs_diff(*other) <= LEVELS_MAX)
            };
            let is_same = |((class, pixels), (label, other)): (&Image, &Image)| {
                class == label && are_near(pixels, other)
            };
            let at = images.iter().zip(expected).position(|pair| !is_same(pair));
            match images.len() == expected.len() && at.is_none() {
                true => (Outcome::Same, String::new()),
                false => (
                    Outcome::Differs,
                    format!(
                        "{} images where the reader gives {}, the first other one {at:?}",
                        images.len(),
                        expected.len()
                    ),
                ),
            }
        }
    }
}

/// Returns the classes and pixels of all images, as they are stored.
fn images_of(data: &Dataset) -> Result<Vec<Image>> {
    let mut images = Vec::new();
    for position in 0..data.samples() {
        let Sample { index, content, .. } = data.sample(position, 1)?;
        let Content::Image { pixels, class } = content else { bail!("tokens in place of an image") };
        images.push((index, class, pixels));
    }
    images.sort();
    Ok(images.into_iter().map(|(_, class, pixels)| (class, pixels)).collect())
}

/// Returns the prepared data, and the cache that they are in.
fn prepare(case: &Case, folder: &Path) -> Result<(Dataset, TempDir)> {
    let tokenizer = folder.join("tokenizer.json");
    let (tokenizer, separator) = match tokenizer.exists() {
        true => (Tokenizer::load(&tokenizer.display().to_string())?, SEPARATOR_OF_CLASSES),
        false => (Tokenizer::Bytes, SEPARATOR),
    };
    let keys: Vec<String> =
        case.data.iter().map(|(key, value)| format!("{key} = {}", json!(value))).collect();
    let image = case.image.iter().flatten().map(|(key, value)| format!("image.{key} = {value}\n"));
    let config: DataConfig = read_toml(&format!(
        "sequence_length = 2\nvalidation_share = 0.0\nseparator = \"{separator}\"\nsources = [{{ {} }}]\n{}",
        keys.join(", "),
        image.collect::<String>()
    ))?;
    let cache = tempfile::tempdir()?;
    Ok((Dataset::open(&config.found_at(folder), &tokenizer, cache.path(), &Work::default())?, cache))
}

/// Concatenates the tokens: texts with their separator, in bytes; whole files without; tokens unchanged.
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
