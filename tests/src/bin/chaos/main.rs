//! Injects faults into a run of real processes over emulated links, and checks its invariants. One JSON line
//! per figure goes to stdout, events to stderr; `tests/docs/chaos.md` explains them.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints")]

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use longhaul_emulator::LinkConfig;
use longhaul_tests::chaos::{BATCH, Kind, Pace, Soak, SoakConfig, run_toml};
use longhaul_tests::cluster::ClusterConfig;
use longhaul_tests::interrupt;

/// Injects faults of all kinds, in a seeded order, into a training run and checks its invariants
#[derive(Parser)]
#[command(name = "chaos")]
struct Args {
    /// Duration of the faults
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// The same seed gives the same faults at the same times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Workers in each site
    #[arg(long, value_delimiter = ',', default_values_t = [2, 2])]
    sites: Vec<usize>,
    /// Seconds from one fault to the next
    #[arg(long, default_value_t = 10.0)]
    gap: f64,
    /// Seconds before the first fault, in which the speed without faults is measured
    #[arg(long, default_value_t = 15.0)]
    calm: f64,
    /// Faults between breaks, with whose throughput the rest is compared: the speed of a shared machine
    /// drifts within half an hour
    #[arg(long, value_name = "FAULTS")]
    break_after: Option<NonZeroUsize>,
    /// Steps from one exchange to the next; a step takes about 25 ms
    #[arg(long, default_value_t = Pace::default().every, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// Steps until the result of an exchange is awaited, at most those from one exchange to the next
    #[arg(long, default_value_t = Pace::default().overlap)]
    overlap: u64,
    /// Maximum seconds without a new round
    #[arg(long, default_value_t = 30.0)]
    progress_max: f64,
    /// Only these faults, such as `kill,freeze,cut`; an unknown word lists all
    #[arg(long, value_delimiter = ',', value_parser = parse_kind)]
    only: Vec<Kind>,
    /// Each direction of each link
    #[arg(long, default_value = "rate_mbit=50,delay_ms=10,loss_percent=0.1")]
    link: LinkConfig,
    /// Keep all files here, including logs
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

fn parse_kind(word: &str) -> Result<Kind, String> {
    let words: Vec<_> = Kind::ALL.map(Kind::word).into();
    let found = Kind::ALL.into_iter().find(|kind| kind.word() == word);
    found.ok_or_else(|| format!("no fault is called `{word}`; the faults are {}", words.join(", ")))
}

fn main() -> Result<()> {
    let args = Args::parse();
    interrupt::watch()?;
    let folder = tempfile::tempdir().context("make a folder for the run")?;
    let folder = args.dir.clone().unwrap_or_else(|| folder.path().to_owned());
    let config = config(&args, folder)?;
    let report = Soak::start(config)?.run(|what| eprintln!("{what}"))?;
    report.lines().iter().for_each(|line| println!("{line}"));
    eprintln!("{} faults, and every guarantee held", report.faults());
    Ok(())
}

fn config(args: &Args, folder: PathBuf) -> Result<SoakConfig> {
    let seconds = |what: &str, value: f64| {
        Duration::try_from_secs_f64(value).with_context(|| format!("{what} of {value} is no time"))
    };
    ensure!(args.sites.iter().all(|&workers| workers > 0), "a site without workers is none");
    ensure!(
        args.overlap <= args.every,
        "--overlap {} is more than --every {}: a result would be waited for after the next exchange",
        args.overlap,
        args.every
    );
    let workers: usize = args.sites.iter().sum();
    let cluster = ClusterConfig {
        run_toml: run_toml(workers, Pace { every: args.every, overlap: args.overlap }).to_string(),
        sites: args.sites.clone(),
        link: args.link.clone(),
        seed: args.seed,
        folder,
        threads: 1,
        own_checkpoints: true,
        worker_arguments: Vec::new(),
        own_calendars: true,
    };
    let kinds = if args.only.is_empty() { Kind::ALL.to_vec() } else { args.only.clone() };
    Ok(SoakConfig {
        cluster,
        batch: (BATCH * workers) as u64,
        seed: args.seed,
        kinds,
        calm: seconds("--calm", args.calm)?,
        break_after: args.break_after,
        duration: seconds("--minutes", args.minutes * 60.0)?,
        gap: seconds("--gap", args.gap)?,
        progress_max: seconds("--progress-max", args.progress_max)?,
    })
}
