//! The commands that a person types. Parsing is here, so that tests can parse what documents and manifests say.

mod addresses;
mod checkpoint;
mod checkpoints;
mod client;
mod export;
mod follow;
mod fork;
mod members;
mod operate;
mod pages;
mod plan;
mod progress;
mod recorded_run;
mod replay;
pub(crate) mod show;
mod simulate;
mod stop;
mod token;
mod up;
mod view;
mod voice;
mod watch;
mod whole_run;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use longhaul_common::explained::Explained;

use voice::{print, say};

pub use checkpoints::{CheckpointLocation, CheckpointsCommand};
pub use client::{Client, ClientError};
pub use fork::ForkArgs;
pub use recorded_run::RecordedRun;
pub use view::ViewArgs;
pub use watch::StatusArgs;

/// Where the state directory is unless told otherwise.
pub const STATE_DIR: &str = "longhaul-state";

/// The coordinator of a Longhaul run.
///
/// One coordinator per run, on a machine that all workers reach by UDP. Begin with `coordinator up --config run.toml`: it
/// prints the `worker join …` line to paste on every machine that is to train.
#[derive(Clone, Debug, Parser)]
#[command(name = "coordinator", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Start or continue the coordinator of a run.
    ///
    /// The state directory holds all state of the run: a coordinator restarted on it continues with the same workers. Workers
    /// train on in its absence. Ctrl-C stops the coordinator, not the run: `coordinator stop` ends the run.
    Up(Up),
    /// Predict speed, memory and traffic of a run on given machines and links, before renting any.
    #[command(long_about = plan::HELP)]
    Plan(PlanArgs),
    /// Simulate a whole run in virtual time: the real coordinator, and workers as fast as the planner predicts.
    #[command(long_about = simulate::HELP)]
    Simulate(SimulateArgs),
    /// Show the state of the run.
    #[command(long_about = watch::HELP)]
    Status(StatusArgs),
    /// Show all workers, including absent ones.
    ///
    /// For each: number, host and device, site, part of the model, state, time of its last message, current step, and speed.
    /// Workers lost since this coordinator started are shown with the reason.
    Members(AskArgs),
    /// Drain a worker: it leaves in an orderly way.
    #[command(long_about = operate::DRAIN_HELP)]
    Drain(WorkerArgs),
    /// Remove a worker from the run for good.
    #[command(long_about = operate::KICK_HELP)]
    Kick(WorkerArgs),
    /// Make all workers write a checkpoint and continue training.
    #[command(long_about = checkpoint::HELP)]
    Checkpoint(CheckpointArgs),
    /// Pause training until `coordinator resume`.
    #[command(long_about = operate::PAUSE_HELP)]
    Pause(AskArgs),
    /// Resume training after `coordinator pause`.
    Resume(AskArgs),
    /// Show events: joins and departures, generations, checkpoints, changes of pace.
    #[command(long_about = operate::EVENTS_HELP)]
    Events(EventsArgs),
    /// Show the dashboard of a run from its state directory, without a coordinator.
    #[command(long_about = view::HELP)]
    View(ViewArgs),
    /// Replay the decisions of a coordinator from its record, and compare them with the recorded ones.
    #[command(long_about = replay::HELP)]
    Replay(ReplayArgs),
    /// Create, list and revoke join tokens.
    Token {
        /// The operation.
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// List, verify and export checkpoints.
    #[command(subcommand)]
    Checkpoints(CheckpointsCommand),
    /// End the run in an orderly way, or stop it for now: open rounds finish, and a checkpoint is written.
    #[command(long_about = stop::HELP)]
    Stop(Stop),
    /// Begin a run from a checkpoint of another one, with its moments and another configuration.
    #[command(long_about = fork::HELP)]
    Fork(ForkArgs),
    /// Print the completion script for a shell.
    ///
    /// For bash: `coordinator completions bash > ~/.local/share/bash-completion/completions/coordinator`. For zsh, write it to `_coordinator` in a folder of
    /// `fpath`; for fish, to `~/.config/fish/completions/coordinator.fish`.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual, a page for each subcommand, into a folder.
    #[command(hide = true)]
    Man {
        /// The folder, such as `man/man1`.
        folder: PathBuf,
    },
}

/// `coordinator up`
#[derive(Clone, Debug, Args)]
pub struct Up {
    /// Configuration of the run (see examples/demo.toml).
    #[arg(long, value_name = "FILE", env = "LONGHAUL_CONFIG")]
    pub config: PathBuf,
    /// Address for workers (UDP). Port 0 takes any free port. `[::]` serves IPv6 and IPv4, or only IPv4 on a machine without IPv6.
    #[arg(long, value_name = "ADDR:PORT", default_value = "[::]:4800")]
    pub listen: SocketAddr,
    /// Address of the HTTP API. Except on loopback, every request needs a bearer token.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:4880")]
    pub http: SocketAddr,
    /// State of the run, including its certificate authority: keep it, and keep it private.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, env = "LONGHAUL_STATE_DIR")]
    pub state_dir: PathBuf,
    /// Keep the run's records in etcd, so that another coordinator with the same --state can take over:
    /// `etcd://HOST:PORT[,HOST:PORT]/PREFIX`, or etcds:// for TLS. User, password and certificates: LONGHAUL_ETCD_USER, _PASSWORD, _CA, _CERT, _KEY.
    #[arg(long, value_name = "URL", env = "LONGHAUL_STATE", hide_env_values = true, value_parser = StateUrl::keep)]
    pub state: Option<StateUrl>,
    /// Write the join line to this file (mode 0600). Unless standard output is a terminal, the line is then only in this file: a token does not belong in a log.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Addresses that workers dial. Default: this machine's address and the port of --listen. With standby coordinators: the addresses of all, separated by commas,
    /// this one's first.
    #[arg(long, value_name = "HOST:PORT[,HOST:PORT]", value_parser = addresses::parse)]
    pub advertise: Option<String>,
    /// Write the run's curves as TensorBoard event files into a subfolder of this folder.
    #[arg(long, value_name = "DIR", env = "LONGHAUL_TENSORBOARD")]
    pub tensorboard: Option<PathBuf>,
    /// Train a finished run further: a stopped run to its end, a completed run to a larger `run.steps`. It continues from its last checkpoints; the learning rate
    /// follows the new number of steps.
    #[arg(long)]
    pub extend: bool,
    /// Print the configuration with all defaults, and exit.
    #[arg(long)]
    pub print_config: bool,
    /// Keep the HTTP API up after the run has finished, instead of exiting.
    #[arg(long)]
    pub stay: bool,
    /// Format of all messages on standard error, including errors.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// `--state` as it was given. It may hold a password, so nothing shows it.
#[derive(Clone)]
pub struct StateUrl(pub String);

impl StateUrl {
    /// Takes any text: clap repeats what it refuses.
    fn keep(text: &str) -> Result<Self, std::convert::Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl std::fmt::Debug for StateUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StateUrl(…)")
    }
}

/// `coordinator plan`
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// The configuration of the run.
    #[arg(long, value_name = "FILE", env = "LONGHAUL_CONFIG")]
    pub config: PathBuf,
    /// The file with the machines and the links between them.
    #[arg(long, value_name = "FILE")]
    pub topology: PathBuf,
    /// Print the whole report as JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

/// `coordinator simulate`
#[derive(Clone, Debug, Args)]
pub struct SimulateArgs {
    /// The configuration of the run.
    #[arg(long, value_name = "FILE", env = "LONGHAUL_CONFIG")]
    pub config: PathBuf,
    /// The file with the machines and the links between them, as for `coordinator plan`. All machines join.
    #[arg(long, value_name = "FILE")]
    pub topology: PathBuf,
    /// The file with the faults. Default: no faults.
    #[arg(long, value_name = "FILE")]
    pub faults: Option<PathBuf>,
    /// Seed of all random draws.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Limit of virtual time: the simulation ends then, or with the run.
    #[arg(long, value_name = "HOURS", default_value_t = 24.0, value_parser = simulate::parse_hours)]
    pub hours: f64,
    /// Print the whole report as JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

/// How messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One plain line per message.
    Text,
    /// One JSON object per message.
    Json,
}

/// Where the running coordinator is.
#[derive(Clone, Debug, Args)]
pub struct Where {
    /// The state directory of the running coordinator, with the address and the token of its HTTP API.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, env = "LONGHAUL_STATE_DIR")]
    pub state_dir: PathBuf,
    /// Address of the HTTP API. Default: the one in the state directory. The token then comes from LONGHAUL_API_TOKEN, or from
    /// the state directory.
    #[arg(long, value_name = "ADDR:PORT")]
    pub http: Option<String>,
}

/// `coordinator members`, `pause` and `resume`; others take this and more.
#[derive(Clone, Debug, Args)]
pub struct AskArgs {
    /// Print all details as JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would show it as help")]
    pub at: Where,
}

/// `coordinator drain` and `kick`
#[derive(Clone, Debug, Args)]
pub struct WorkerArgs {
    /// The worker, such as w3 (see `coordinator members`).
    pub worker: String,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would show it as help")]
    pub ask: AskArgs,
}

/// `coordinator events`
#[derive(Clone, Debug, Args)]
pub struct EventsArgs {
    /// Keep printing new events.
    #[arg(long, short)]
    pub follow: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would show it as help")]
    pub ask: AskArgs,
}

/// `coordinator replay`
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// The record: a file `decisions/*.log` in a state directory.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Also show events without a decision.
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    pub json: bool,
}

/// `coordinator token`
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a join token and print its `worker join` line.
    Create {
        /// Validity: 90s, 30m, 24h or 7d, for example.
        #[arg(long, default_value = "24h", value_parser = token::parse_life)]
        life: std::time::Duration,
        /// Number of workers that can join with it. Default: any number.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        uses: Option<u32>,
        #[command(flatten)]
        #[allow(missing_docs, reason = "clap would show it as help")]
        at: Where,
    },
    /// List the join tokens, without their secrets.
    List {
        #[command(flatten)]
        #[allow(missing_docs, reason = "clap would show it as help")]
        at: Where,
    },
    /// Revoke a join token. Workers that joined with it stay.
    Revoke {
        /// The token id (see `coordinator token list`).
        id: String,
        #[command(flatten)]
        #[allow(missing_docs, reason = "clap would show it as help")]
        at: Where,
    },
}

/// `coordinator checkpoint`
#[derive(Clone, Debug, Args)]
pub struct CheckpointArgs {
    /// Wait until all workers have written it.
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would show it as help")]
    pub at: Where,
}

/// `coordinator stop`
#[derive(Clone, Debug, Args)]
pub struct Stop {
    /// Stop for now: all workers write a checkpoint and leave, and the same commands continue the run.
    #[arg(long)]
    pub resumable: bool,
    /// Wait until the run, and the coordinator unless it runs with --stay, has ended or stopped.
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would show it as help")]
    pub at: Where,
}

/// Exit code for a command that could not do what it was asked.
const FAILED: u8 = 1;
/// Exit code for a configuration or an argument that makes no sense; clap uses the same.
const MISUSED: u8 = 2;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// What was asked makes no sense.
    #[error("{0}")]
    Misuse(String),
    /// It could not be done.
    #[error("{}", explain(.0))]
    Failed(#[from] anyhow::Error),
}

fn explain(error: &anyhow::Error) -> String {
    Explained(&**error).to_string()
}

/// Runs the command line: 0 done, 1 failed, 2 misused.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        // Help and version are "errors" too, which know where they belong and how to exit.
        Err(error) => error.exit(),
    };
    let format = match &cli.command {
        Command::Up(up) => up.log_format,
        _ => LogFormat::Text,
    };
    let (code, error) = match run(cli.command) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error @ CliError::Misuse(_)) => (MISUSED, error),
        Err(error) => (FAILED, error),
    };
    format.complain(&error);
    ExitCode::from(code)
}

/// Does what one subcommand says.
fn run(command: Command) -> Result<(), CliError> {
    match command {
        Command::Up(up) => up::run(&up),
        Command::Plan(args) => plan::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Status(args) => watch::run(&args),
        Command::Members(args) => members::run(&args),
        Command::Drain(args) => operate::drain(&args),
        Command::Kick(args) => operate::kick(&args),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Pause(args) => operate::pause(&args),
        Command::Resume(args) => operate::resume(&args),
        Command::Events(args) => operate::events(&args),
        Command::View(args) => view::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Token { command } => token::run(command),
        Command::Checkpoints(command) => checkpoints::run(command),
        Command::Stop(stop) => stop::run(&stop),
        Command::Fork(args) => fork::run(&args),
        Command::Completions { shell } => {
            pages::completions(shell);
            Ok(())
        }
        Command::Man { folder } => pages::man(&folder),
    }
}

/// The file that a help text shows.
#[cfg(test)]
fn file_in_help(help: &str) -> String {
    help.lines().filter_map(|line| line.strip_prefix("    ")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
