//! Measures every synchronisation strategy: whole runs, speed over links, loss of quality, traffic, the time to
//! the loss of PyTorch's DDP, and that of a run's first steps. One JSON line per figure goes to stdout, progress to stderr;
//! `docs/benchmarks/sync.md` describes the methods.

mod book;
mod first;
mod method;
mod pace;
mod plot;
mod point;
mod quality;
mod reach;
mod session;
mod small;
mod speed;
mod traffic;
mod watch;
mod whole;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use longhaul_common::config::SyncPreset;
use longhaul_tests::interrupt;

use crate::kit::args::{Only, Quick};
use session::{Sample, Selected, Session};

/// Speed, quality and traffic of every synchronisation strategy
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
    #[command(flatten)]
    only: Only,
    /// Only these parts
    #[arg(long, value_delimiter = ',', default_values = ["whole", "speed", "sites", "quality", "traffic", "reach", "first"])]
    part: Vec<Section>,
    /// Rates of the links of `whole` (default: 100,10,1), of `speed` (default: 1,10,100,1000) and of `first` (default: 1), in Mbit/s
    #[arg(long, value_delimiter = ',')]
    rates: Option<Vec<f64>>,
    /// Steps of the runs of `whole`. Default: 1500,6000; with `--quick` 300
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(60..))]
    steps: Option<Vec<u64>>,
    /// Further keys of `[sync]` for the methods of `whole`, `speed` and `first`, on trial: `--sync "groups = 3; bits_max = 1.0"`. The case is named after them
    #[arg(long, value_name = "KEYS")]
    sync: Option<String>,
    /// Seed of the runs of `whole`. A file has figures of one seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Text for our methods in `whole` (default: the demo's, also for PyTorch's). A file has figures of one text
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Appends figures to this file and skips those in it, so that an interrupted run can continue
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Starts no case that might exceed this time
    #[arg(long)]
    hours: Option<f64>,
    /// Measures nothing; plots this file
    #[arg(long, value_name = "FILE", requires = "out")]
    plot: Option<PathBuf>,
    /// Folder of the plots
    #[arg(long, value_name = "FOLDER", requires = "plot")]
    out: Option<PathBuf>,
}

/// Links of `sites`: one that streamed data fits, and one where it takes most of the time.
const SITES_RATES_MBIT: [f64; 2] = [1000.0, 100.0];

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Share of local speed, loss and bits of whole runs, by link
    Whole,
    /// Share of local speed, by link
    Speed,
    /// The same with two workers per site, where steps wait for their exchange
    Sites,
    /// Validation loss, and bits per parameter and step
    Quality,
    /// Bytes by number of sites
    Traffic,
    /// Time to the loss that PyTorch's DDP has after ten minutes
    Reach,
    /// Time of a run's first thousand steps beside a machine alone
    First,
}

/// Measures the requested parts, or plots results. Quick runs are short, with one learning rate and one seed.
pub fn run(args: Args) -> Result<()> {
    if let (Some(results), Some(folder)) = (&args.plot, &args.out) {
        return plot::draw(results, folder);
    }
    let reads_trials = |part: &Section| matches!(part, Section::Whole | Section::Speed | Section::First);
    ensure!(
        args.sync.is_none() || args.part.iter().all(reads_trials),
        "--sync is for the parts whole, speed and first: name them with --part"
    );
    ensure!(
        args.seed == 1 && args.text.is_none() || args.part == [Section::Whole],
        "--seed and --text are for the part whole: name it with --part"
    );
    interrupt::watch()?;
    let sample = Sample { seed: args.seed, text: args.text };
    let selected = Selected { only: args.only, on_trial: args.sync, sample };
    let mut session = Session::start(args.results.as_deref(), selected, args.quick.quick, args.hours)?;
    for part in args.part {
        match part {
            Section::Whole => {
                let rates = args.rates.as_deref().unwrap_or(&whole::RATES_MBIT);
                whole::measure(&mut session, rates, args.steps.as_deref())?;
            }
            Section::Speed => {
                speed::measure(&mut session, args.rates.as_deref().unwrap_or(&speed::RATES_MBIT))?;
            }
            Section::Sites => {
                speed::sites_of(&mut session, 2, &[SyncPreset::Dense], &SITES_RATES_MBIT)?;
            }
            Section::Quality => quality::measure(&mut session)?,
            Section::Traffic => traffic::measure(&mut session)?,
            Section::Reach => reach::measure(&mut session)?,
            Section::First => first::measure(&mut session, args.rates.as_deref().unwrap_or(&[1.0]))?,
        }
    }
    session.finish()
}
