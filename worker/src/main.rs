//! The program that `worker` starts.

use std::process::ExitCode;

use clap::Parser;
use longhaul_common::explained::Explained;
use longhaul_common::terminal::{foot, moves_cursors, takes_colours};
use longhaul_engine::keep_freed_memory;
use longhaul_worker::cli::{Cli, Command, LogFormat};
use longhaul_worker::{agent, data_command, doctor, evaluate, model_command, pages, sample};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Threads for sockets and timers; the device and the synchroniser have their own.
const RUNTIME_THREADS: usize = 2;

fn main() -> ExitCode {
    keep_freed_memory();
    let cli = Cli::parse();
    start_logging(cli.log_format);
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", Explained(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(RUNTIME_THREADS).enable_all().build()?;
    let result = match command {
        Command::Join(args) => runtime.block_on(agent::join(args)),
        Command::Doctor(args) => runtime.block_on(doctor::doctor(args)),
        Command::Sample(args) => sample::sample(&args),
        Command::Evaluate(args) => runtime.block_on(evaluate::evaluate(args)),
        Command::Model(args) => model_command::run(&args.command),
        Command::Data(args) => runtime.block_on(data_command::run(args.command)),
        Command::Completions { shell } => {
            pages::completions(shell);
            Ok(())
        }
        Command::Man { folder } => pages::man(&folder),
    };
    // Neither a device's long step nor an unfinished preparation delays the exit.
    runtime.shutdown_background();
    longhaul_data::abandon();
    result
}

fn start_logging(format: LogFormat) {
    let chosen = std::env::var("LONGHAUL_LOG").ok().and_then(|chosen| chosen.parse::<Targets>().ok());
    let filter = chosen.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let colours = takes_colours(&std::io::stderr());
    let logs = tracing_subscriber::fmt::layer().with_ansi(colours).with_writer(foot);
    let registry = tracing_subscriber::registry();
    if format == LogFormat::Text && moves_cursors(&std::io::stderr()) {
        foot().enable();
    }
    match format {
        LogFormat::Text => registry.with(logs.with_target(false).with_filter(filter)).init(),
        LogFormat::Json => registry.with(logs.json().with_filter(filter)).init(),
    }
}
