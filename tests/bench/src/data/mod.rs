//! Cost of data for training.
//!
//! With a Python that has PyTorch, numpy and Pillow, images are compared with its DataLoader.

mod disk;
mod images;
mod memory_limit;
mod order;
mod wait;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::ValueEnum;
use longhaul_common::config::{DataConfig, read_toml};
use longhaul_data::{Dataset, Tokenizer, Work};
use longhaul_engine::keep_freed_memory;

use crate::kit::args::{Python, Quick};
use crate::kit::recorder::Recorder;

const SEED: u64 = 1;

/// Cost of data for training
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
    #[command(flatten)]
    python: Python,
    /// Only these parts
    #[arg(long, value_delimiter = ',', default_values = ["wait", "order", "images"])]
    part: Vec<Section>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Cost of waiting
    Wait,
    /// Cost of reading in training order
    Order,
    /// Images decoded once, or each time
    Images,
}

/// Measures the requested parts.
pub fn run(args: &Args) -> Result<()> {
    keep_freed_memory();
    let quick = args.quick.quick;
    let folder = tempfile::tempdir().context("make a folder for the data")?;
    if args.part.contains(&Section::Wait) {
        wait::bench(folder.path(), quick)?;
    }
    if args.part.contains(&Section::Order) {
        order::bench(folder.path(), quick)?;
    }
    if args.part.contains(&Section::Images) {
        images::bench(folder.path(), args.python.python.as_deref(), quick)?;
    }
    Ok(())
}

/// Opens prepared tokens of one source, as sequences of `length`.
fn open(folder: &Path, file: &str, length: u32) -> Result<Arc<Dataset>> {
    let config =
        format!("sources = [{{ path = \"{file}\" }}]\nsequence_length = {length}\nvalidation_share = 0.0");
    let config: DataConfig = read_toml(&config)?;
    let data = config.found_at(folder);
    Ok(Arc::new(Dataset::open(&data, &Tokenizer::Bytes, &folder.join("cache"), &Work::default())?))
}

/// Writes a file of this many pseudo-random tokens.
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
    Recorder::new("data").print(case, metric, value, unit);
}
