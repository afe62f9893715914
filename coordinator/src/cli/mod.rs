//! The commands that a person types. Parsing is here, so that tests can parse what documents and manifests say.

mod addresses;
mod checkpoint;
mod checkpoints;
mod client;
mod follow;
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
    /// Start the coordinator of a run, or continue it.
    ///
    /// Everything that the run must remember is in the state directory: started again on the same one, the coordinator goes
    /// on with the same workers. While it is away, workers train on. Ctrl-C stops the coordinator, not the run: `coordinator
    /// stop` ends the run.
    Up(Up),
    /// Predict speed, memory and traffic of a run on given machines and links, before any is rented.
    #[command(long_about = plan::HELP)]
    Plan(PlanArgs),
    /// Simulate a whole run in virtual time: the real coordinator, and workers as fast as the planner predicts.
    #[command(long_about = simulate::HELP)]
    Simulate(SimulateArgs),
    /// Show how the run goes.
    #[command(long_about = watch::HELP)]
    Status(StatusArgs),
    /// Show all workers, those that are gone included.
    ///
    /// For each: its number, host and device, site, what it has of the model, what it does, when it was last heard, the step that
    /// it computes, and its speed. Who is gone since this coordinator was started is shown with the reason.
    Members(AskArgs),
    /// Let a worker leave in an orderly way.
    #[command(long_about = operate::DRAIN_HELP)]
    Drain(WorkerArgs),
    /// Take a worker out of the run for good.
    #[command(long_about = operate::KICK_HELP)]
    Kick(WorkerArgs),
    /// Have all workers write a checkpoint, and train on.
    #[command(long_about = checkpoint::HELP)]
    Checkpoint(CheckpointArgs),
    /// Let nobody train until `coordinator resume`.
    #[command(long_about = operate::PAUSE_HELP)]
    Pause(AskArgs),
    /// Let training go on after `coordinator pause`.
    Resume(AskArgs),
    /// Show what has happened: who came and went, generations, checkpoints, changes of pace.
    #[command(long_about = operate::EVENTS_HELP)]
    Events(EventsArgs),
    /// Show the dashboard of a run from its state directory, without a coordinator.
    #[command(long_about = view::HELP)]
    View(ViewArgs),
    /// Replay the decisions of a coordinator from its record, and compare them with the recorded ones.
    #[command(long_about = replay::HELP)]
    Replay(ReplayArgs),
    /// Make, list and revoke join tokens.
    Token {
        /// What to do with tokens.
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// List checkpoints, and verify them.
    #[command(subcommand)]
    Checkpoints(CheckpointsCommand),
    /// End the run in an orderly way, or stop it for now: the rounds that are begun are finished, and a checkpoint is written.
    #[command(long_about = stop::HELP)]
    Stop(Stop),
    /// Print what makes a shell complete the words of this command.
    ///
    /// For bash: `coordinator completions bash > ~/.local/share/bash-completion/completions/coordinator`. For zsh, write it to `_coordinator` in a folder of
    /// `fpath`; for fish, to `~/.config/fish/completions/coordinator.fish`.
    Completions {
        /// Whose.
        shell: Shell,
    },
    /// Write the manual, a page for each subcommand, into a folder.
    #[command(hide = true)]
    Man {
        /// Where: `man/man1`, say.
        folder: PathBuf,
    },
}

/// `coordinator up`
#[derive(Clone, Debug, Args)]
pub struct Up {
    /// The run: what is trained, on what, and how (see examples/demo.toml).
    #[arg(long, value_name = "FILE", env = "LONGHAUL_CONFIG")]
    pub config: PathBuf,
    /// Where workers connect (UDP). Port 0 takes any free one. `[::]` is for IPv6 and IPv4, and for IPv4 alone where there is no IPv6.
    #[arg(long, value_name = "ADDR:PORT", default_value = "[::]:4800")]
    pub listen: SocketAddr,
    /// Where the HTTP API listens. Elsewhere than on loopback it wants a bearer token for everything.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:4880")]
    pub http: SocketAddr,
    /// What the run must remember, its certificate authority included: keep it private, and keep it.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, env = "LONGHAUL_STATE_DIR")]
    pub state_dir: PathBuf,
    /// Keep the run's records in etcd, so that another coordinator with the same --state can take over:
    /// `etcd://HOST:PORT[,HOST:PORT]/PREFIX`, or etcds:// for TLS. User, password and certificates: LONGHAUL_ETCD_USER, _PASSWORD, _CA, _CERT, _KEY.
    #[arg(long, value_name = "URL", env = "LONGHAUL_STATE", hide_env_values = true, value_parser = StateUrl::keep)]
    pub state: Option<StateUrl>,
    /// Write the join line to this file (mode 0600). Where what is printed does not go to a terminal, it is then in this file alone: a token does not belong into a log.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// What workers are told to dial. Default: this machine's address and the port of --listen. Where coordinators take over from each other: the addresses of
    /// all of them, with commas between them and this one's own first.
    #[arg(long, value_name = "HOST:PORT[,HOST:PORT]", value_parser = addresses::parse)]
    pub advertise: Option<String>,
    /// Write the run's curves into a folder of this one, as event files of TensorBoard.
    #[arg(long, value_name = "DIR", env = "LONGHAUL_TENSORBOARD")]
    pub tensorboard: Option<PathBuf>,
    /// Train a run that is over further: one that was stopped to its end, and one that came to its end to a larger `run.steps`. It goes on from its last
    /// checkpoints; the learning rate follows the new number of steps.
    #[arg(long)]
    pub extend: bool,
    /// Print the configuration with every default spelled out, and exit.
    #[arg(long)]
    pub print_config: bool,
    /// Keep the HTTP API up after the run has finished, instead of exiting.
    #[arg(long)]
    pub stay: bool,
    /// How messages are written to standard error: all of them, greetings and errors included.
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
    /// One plain line each.
    Text,
    /// One JSON object each.
    Json,
}

/// Where the running coordinator is.
#[derive(Clone, Debug, Args)]
pub struct Where {
    /// The state directory of the running coordinator, which says where its HTTP API is and holds its token.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, env = "LONGHAUL_STATE_DIR")]
    pub state_dir: PathBuf,
    /// The HTTP API, if not as the state directory says. The token is then taken from LONGHAUL_API_TOKEN, or from the state
    /// directory.
    #[arg(long, value_name = "ADDR:PORT")]
    pub http: Option<String>,
}

/// `coordinator members`, `pause` and `resume`; others take this and more.
#[derive(Clone, Debug, Args)]
pub struct AskArgs {
    /// Print JSON, with all that is known, for programs.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would show it as help")]
    pub at: Where,
}

/// `coordinator drain` and `kick`
#[derive(Clone, Debug, Args)]
pub struct WorkerArgs {
    /// Its number, as `coordinator members` shows it: w3.
    pub worker: String,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would show it as help")]
    pub ask: AskArgs,
}

/// `coordinator events`
#[derive(Clone, Debug, Args)]
pub struct EventsArgs {
    /// Go on as more happens.
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
    /// Print a JSON object a line, for programs.
    #[arg(long)]
    pub json: bool,
}

/// `coordinator token`
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a join token and print the `worker join` line for it.
    Create {
        /// How long it is good for: 90s, 30m, 24h or 7d.
        #[arg(long, default_value = "24h", value_parser = token::parse_life)]
        life: std::time::Duration,
        /// How many workers it lets in. Default: any number.
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
    /// Take a join token back. Workers that have joined with it stay.
    Revoke {
        /// The id, as `coordinator token list` shows it.
        id: String,
        #[command(flatten)]
        #[allow(missing_docs, reason = "clap would show it as help")]
        at: Where,
    },
}

/// `coordinator checkpoint`
#[derive(Clone, Debug, Args)]
pub struct CheckpointArgs {
    /// Wait until all have written it.
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would show it as help")]
    pub at: Where,
}

/// `coordinator stop`
#[derive(Clone, Debug, Args)]
pub struct Stop {
    /// Have all write a checkpoint and leave: with the same commands, the run goes on.
    #[arg(long)]
    pub resumable: bool,
    /// Wait until the run has ended, or stopped for now, and the coordinator with it unless it stays.
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
