//! What data costs training, as JSON lines: `cargo run --release -p longhaul-bench --features torch --bin bench-data [-- --quick] [--python PROGRAM]`.
//!
//! With a Python that has PyTorch, numpy and Pillow, images are compared with its DataLoader.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock and prints"
)]

mod disk;
mod images;
mod memory_limit;
mod order;
mod wait;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use longhaul_bench::figures;
use longhaul_common::config::{DataConfig, read_toml};
use longhaul_data::{Dataset, Tokenizer, Work};
use longhaul_engine::keep_freed_memory;

const SEED: u64 = 1;

/// What the command line asks for.
#[derive(Default)]
struct Options {
    quick: bool,
    python: Option<PathBuf>,
    /// Only these of [`PARTS`]; none: all.
    parts: Option<String>,
}

/// What waiting costs, what reading in the order of training does, and images.
const PARTS: [&str; 3] = ["wait", "order", "images"];

impl Options {
    fn read() -> Result<Self> {
        let (mut options, mut arguments) = (Self::default(), std::env::args().skip(1));
        while let Some(argument) = arguments.next() {
            match &*argument {
                "--quick" => options.quick = true,
                "--python" => options.python = Some(arguments.next().context("--python PROGRAM")?.into()),
                "--part" => options.parts = Some(arguments.next().context("--part PART[,…]")?),
                _ => bail!("{argument} is none of --quick, --part and --python"),
            }
        }
        let mut named = options.parts.iter().flat_map(|parts| parts.split(','));
        match named.find(|part| !PARTS.contains(part)) {
            Some(part) => bail!("there is no part {part}: there are {}", PARTS.join(", ")),
            None => Ok(options),
        }
    }

    fn has(&self, part: &str) -> bool {
        self.parts.as_ref().is_none_or(|parts| parts.split(',').any(|named| named == part))
    }
}

fn main() -> Result<()> {
    keep_freed_memory();
    let options = Options::read()?;
    let (quick, python) = (options.quick, options.python.as_deref());
    let folder = tempfile::tempdir().context("make a folder for the data")?;
    if options.has("wait") {
        wait::bench(folder.path(), quick)?;
    }
    if options.has("order") {
        order::bench(folder.path(), quick)?;
    }
    if options.has("images") {
        images::bench(folder.path(), python, quick)?;
    }
    Ok(())
}

/// Tokens of one source, prepared, as sequences of `length`.
fn open(folder: &Path, file: &str, length: u32) -> Result<Arc<Dataset>> {
    let config =
        format!("sources = [{{ path = \"{file}\" }}]\nsequence_length = {length}\nvalidation_share = 0.0");
    let config: DataConfig = read_toml(&config)?;
    let data = config.found_at(folder);
    Ok(Arc::new(Dataset::open(&data, &Tokenizer::Bytes, &folder.join("cache"), &Work::default())?))
}

/// Writes a file of so many tokens that look like anything.
fn write_tokens(path: &Path, tokens: usize) -> Result<()> {
    use std::io::Write;
    let file = std::fs::File::create(path).context("write tokens")?;
    let mut file = std::io::BufWriter::new(file);
    let mut state = 1_u64;
    for _ in 0..tokens {
        // Knuth's multiplier and increment (MMIX).
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        file.write_all(&u16::from(state.to_be_bytes()[0]).to_le_bytes())?;
    }
    file.into_inner().map_err(|error| error.into_error())?.sync_all().context("write tokens")
}

fn print(case: &str, metric: &str, value: f64, unit: &str) {
    figures::print("data", case, metric, value, unit);
}
