//! The command line.

mod evaluate;
mod model;
mod token;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
pub use evaluate::{EvaluateArgs, TaskName};
use longhaul_proto::identity::Token;
pub use model::{CheckpointArgs, ComputeArgs};
pub use token::TokenArgs;

/// Trains as part of a run, follows the coordinator, and exchanges updates with the other workers.
#[derive(Debug, Parser)]
#[command(name = "worker", version, about, max_term_width = 110)]
pub struct Cli {
    /// The sub-command.
    #[command(subcommand)]
    pub command: Command,
    /// Format of log lines.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// The format of log lines on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Human-readable.
    Text,
    /// One JSON object per line.
    Json,
}

/// The sub-commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Join a run and train until it ends. Ctrl-C leaves; the other workers continue.
    ///
    /// `coordinator up` prints the whole command. Use the same --site on all machines with fast links between them: only traffic between sites is
    /// compressed. A stopped or killed worker returns with the same command.
    Join(JoinArgs),
    /// Check this machine's ability to take part: libtorch, device, UDP path, bandwidth, clock.
    Doctor(DoctorArgs),
    /// Continue a text with a trained checkpoint, chat with it, or continue many prompts at once.
    ///
    /// The prompt and then each token appear on standard output; with `--prompts`, a line of JSON for each text. The model sees at most as many tokens as
    /// its context holds; beyond that, it continues with the newest half of them.
    Sample(SampleArgs),
    /// Evaluate a trained checkpoint, or a pretrained model's folder, on local files: perplexity, multiple choice, exact match.
    ///
    /// Prompts and scores are those of lm-evaluation-harness. Results appear on standard output, one line each; Ctrl-C ends with those of what was done.
    Evaluate(EvaluateArgs),
    /// Prepare, inspect, verify or prune the data of a run.
    Data(DataArgs),
    /// Inspect a model's folder.
    Model(ModelArgs),
    /// Print a shell's completion script for this command.
    ///
    /// For bash: `worker completions bash > ~/.local/share/bash-completion/completions/worker`. For zsh, write it to `_worker` in a folder of `fpath`; for fish, to
    /// `~/.config/fish/completions/worker.fish`.
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

/// `worker model`
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// The sub-command.
    #[command(subcommand)]
    pub command: ModelCommand,
}

/// The sub-commands of `worker model`.
#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// Show the architecture, parameters, tokenizer and chat template of a folder that `save_pretrained` wrote, or adapters and their model.
    ///
    /// Names and shapes of all weights are checked; values only of adapters are read. A key of `config.json` or `adapter_config.json` that cannot be honoured
    /// is named, and the command fails.
    Inspect {
        /// The folder.
        path: PathBuf,
        /// Folder of the pretrained model of adapters. Default: the one they were trained from.
        #[arg(long, value_name = "FOLDER")]
        base: Option<PathBuf>,
    },
}

/// `worker join`
#[derive(Debug, Args)]
#[command(mut_group("join_token", |group| group.required(true)))]
pub struct JoinArgs {
    /// The coordinator's address (UDP), as HOST:PORT. With failover: all addresses, separated by commas.
    pub coordinator: String,
    /// The join token.
    #[command(flatten)]
    pub token: TokenArgs,
    /// The site of this machine: a name of your choice, the same on all machines that share fast links.
    #[arg(long, default_value = "default")]
    pub site: String,
    /// `auto` (a GPU that no other worker on this machine uses, else the CPU), `cpu`, or `cuda:N`.
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// CPU threads for the device. Default: one per core.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Memory in GiB for the model, its optimiser and activations (0.5 is half a GiB); the GPU's memory if the device is one. A larger part of a model is
    /// refused, with a remedy.
    /// Default: all available memory.
    #[arg(long, value_name = "GIB", value_parser = gib)]
    pub memory_gib: Option<f64>,
    /// Folder of identity, prepared data and private state. Default: `$XDG_CACHE_HOME/longhaul` or `~/.cache/longhaul`.
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Limit on prepared data in that folder, in GiB; the least recently used data is deleted first. Default: no limit.
    #[arg(long, value_name = "GIB", allow_negative_numbers = true, value_parser = gib)]
    pub cache_max_gib: Option<f64>,
    /// The UDP address on which this worker accepts other workers. Default: all IPv4 and IPv6 addresses of this machine, with any port.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// The address by which workers of other sites reach this one if a router forwards a port. Default: as the coordinator sees it.
    #[arg(long, value_name = "ADDR")]
    pub advertise: Option<SocketAddr>,
    /// The training data on this machine, instead of the run's `data.path`; with `data.sources`, the base folder of their relative paths. `remote`: this
    /// machine has no data
    /// and fetches it from other workers, those of its own site first (for a folder of that name, write `./remote`).
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// The folder of the pretrained model on this machine, in runs that start from one, instead of the run's `model.from`. Without the folder, this machine
    /// fetches the model from other workers; `remote`: it does so in any case.
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// Checkpoint folder of this machine, instead of the run's `checkpoint.dir`.
    #[arg(long, value_name = "DIR", env = "LONGHAUL_CHECKPOINT_DIR")]
    pub checkpoint_dir: Option<PathBuf>,
}

/// Value of `--data`: other workers have the data.
const REMOTE: &str = "remote";

impl JoinArgs {
    /// Returns the join token, from the command line or its file.
    ///
    /// # Errors
    /// The file cannot be read or has no token in it, or the token is damaged.
    pub fn join_token(&self) -> Result<Token> {
        self.token.read()?.context("give --token or --token-file")
    }

    /// Returns whether this machine has no training data and fetches it from other workers.
    #[must_use]
    pub fn data_is_remote(&self) -> bool {
        self.data.as_ref().is_some_and(|place| place.as_os_str() == REMOTE)
    }

    /// Returns the memory limit of the model in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> Option<u64> {
        self.memory_gib.map(bytes)
    }

    /// Returns the limit on prepared data in bytes.
    #[must_use]
    pub fn cache_bytes_max(&self) -> Option<u64> {
        self.cache_max_gib.map(bytes)
    }
}

/// Converts GiB to bytes; saturates at the largest integer.
fn bytes(gib: f64) -> u64 {
    (gib * f64::from(1 << 30)) as u64
}

fn gib(text: &str) -> Result<f64, String> {
    let gib = text.parse().map_err(|_| "a number is wanted".to_owned())?;
    if gib > 0.0 { Ok(gib) } else { Err("must be above zero".to_owned()) }
}

/// `worker doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The coordinator's address (UDP), as HOST:PORT.
    pub coordinator: String,
    /// A join token: the doctor then also checks that this coordinator made it. Does not consume the token.
    #[command(flatten)]
    pub token: TokenArgs,
    /// `auto`, `cpu`, or `cuda:N`.
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// The cache folder of `worker join`.
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
}

/// `worker data`
#[derive(Debug, Args)]
pub struct DataArgs {
    /// The sub-command.
    #[command(subcommand)]
    pub command: DataCommand,
}

/// The sub-commands of `worker data`.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Prepare the tokens of a run's sources. `worker join` does so too, but then the other workers wait for this machine.
    ///
    /// Ctrl-C stops it; finished work is kept, and the same command continues from there.
    Prepare(DataRunArgs),
    /// Show a run's sources, their state of preparation, and samples as the model will see them. Prepares nothing.
    Inspect(DataInspectArgs),
    /// Verify every byte of a run's prepared data, and prepare damaged parts again.
    Verify(DataRunArgs),
    /// Delete prepared data, the least recently used first. Data in use by a run is kept.
    Prune(DataPruneArgs),
}

/// The run and the location of its data.
#[derive(Debug, Args)]
pub struct DataRunArgs {
    /// The run's configuration.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// As for `worker join`: the training data, or the base folder of relative paths in `data.sources`.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// The cache folder of `worker join`.
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Limit on prepared data in that folder, in GiB; the least recently used data is deleted first. Default: no limit.
    #[arg(long, value_name = "GIB", allow_negative_numbers = true, value_parser = gib)]
    pub cache_max_gib: Option<f64>,
}

impl DataRunArgs {
    /// Returns the limit on prepared data in bytes.
    #[must_use]
    pub fn cache_bytes_max(&self) -> Option<u64> {
        self.cache_max_gib.map(bytes)
    }
}

/// `worker data inspect`
#[derive(Debug, Args)]
pub struct DataInspectArgs {
    /// The run.
    #[command(flatten)]
    pub run: DataRunArgs,
    /// Samples to show: 0 to 1000.
    #[arg(long, value_name = "COUNT", default_value_t = 2, allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(..=1000))]
    pub samples: u64,
}

/// `worker data prune`
#[derive(Debug, Args)]
pub struct DataPruneArgs {
    /// Limit on the remaining data, in GiB (0.5 is half a GiB); 0 deletes everything that is not in use.
    #[arg(long, value_name = "GIB", allow_negative_numbers = true, value_parser = some_gib)]
    pub max_gib: f64,
    /// The cache folder of `worker join`.
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
}

fn some_gib(text: &str) -> Result<f64, String> {
    let gib: f64 = text.parse().map_err(|_| "a number is wanted".to_owned())?;
    if gib >= 0.0 { Ok(gib) } else { Err("must be zero or more".to_owned()) }
}

/// `worker sample`
#[derive(Debug, Args)]
pub struct SampleArgs {
    /// The checkpoint.
    #[command(flatten)]
    pub model: CheckpointArgs,
    /// The text to continue, or with `--chat` the user's message; several may be given. Default with `--chat`: each line of standard input.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, required_unless_present_any = ["chat", "prompts"])]
    pub prompt: Vec<String>,
    /// A file of prompts: lines of JSON if its name ends in `.jsonl` (strings, or objects with `prompt`), otherwise a prompt in each line; `-`: standard
    /// input. Prints {"prompt", "text", "finish_reason"} and the other keys of its line (none of these) for each, the reason being `stop` or `length`. With `--chat` each is a chat of its own.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub prompts: Option<PathBuf>,
    /// Prompts continued at once: 1 to 1024. Each takes memory for a whole context.
    #[arg(long, value_name = "COUNT", default_value_t = 8, requires = "prompts", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub batch: u32,
    /// Chat: render messages with the model's chat template, and print answers.
    #[arg(long)]
    pub chat: bool,
    /// The system's message of a chat.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,
    /// A chat template's file. Default: that of the model.
    #[arg(long, value_name = "FILE", requires = "chat")]
    pub chat_template: Option<PathBuf>,
    /// The day for templates that ask for it, as `2024-07-26`.
    #[arg(long, value_name = "DAY", requires = "chat")]
    pub date: Option<String>,
    /// Stop before this token, given as its text, besides the model's own end tokens; several may be given.
    #[arg(long, value_name = "TOKEN")]
    pub stop: Vec<String>,
    /// Tokens to draw: 1 to 100000. With the tokenizer `bytes`, a token is a byte.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 300,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub tokens: u32,
    /// 0 always takes the likeliest token; 1 draws from the model's own distribution; higher values are more random.
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true, value_parser = temperature)]
    pub temperature: f64,
    /// Draw only from this many likeliest tokens; 0: from all.
    #[arg(long, value_name = "COUNT", default_value_t = 0, allow_negative_numbers = true)]
    pub top_k: u32,
    /// Draw only from the likeliest tokens that have this probability together: above 0, to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = top_p)]
    pub top_p: f64,
    /// Make tokens that are in the text already less likely: 1 does not, 1.1 a little.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = penalty)]
    pub repetition_penalty: f64,
    /// The same seed draws the same text.
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    pub seed: u64,
    /// The device.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

fn top_p(text: &str) -> Result<f64, String> {
    let share = text.parse().map_err(|_| "not a number".to_owned())?;
    if 0.0 < share && share <= 1.0 { Ok(share) } else { Err("it is above 0, and 1 at most".to_owned()) }
}

fn penalty(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if factor > 0.0 && factor.is_finite() { Ok(factor) } else { Err("it is above 0, and finite".to_owned()) }
}

fn temperature(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=f64::MAX).contains(&value) => Ok(value),
        Ok(_) => Err("a temperature is 0 or more, and finite".to_owned()),
        Err(_) => Err("not a number".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(arguments: &[&str]) -> Result<SampleArgs, String> {
        let line = ["worker", "sample", "--checkpoint", "c", "--prompt", "- p"].iter().chain(arguments);
        match Cli::try_parse_from(line).map_err(|error| error.to_string())?.command {
            Command::Sample(args) => Ok(args),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn a_prompt_may_begin_with_a_dash() {
        assert_eq!(sample(&[]).map(|args| args.prompt), Ok(vec!["- p".to_owned()]));
    }

    #[test]
    fn a_count_that_cannot_be_is_told_from_a_flag() {
        for flag in ["--tokens", "--top-k", "--seed"] {
            let message = sample(&[flag, "-1"]).unwrap_err();
            assert!(message.contains("invalid value '-1'"), "{message}");
        }
    }

    #[test]
    fn a_temperature_is_a_finite_number_that_is_not_negative() {
        for (text, value) in [("0", 0.0), ("0.7", 0.7), ("2", 2.0)] {
            assert_eq!(sample(&["--temperature", text]).map(|args| args.temperature), Ok(value));
        }
        for text in ["-1", "-0.5", "inf", "NaN"] {
            let message = sample(&["--temperature", text]).unwrap_err();
            assert!(message.contains("a temperature is 0 or more, and finite"), "{message}");
        }
        assert!(sample(&["--temperature", "warm"]).unwrap_err().contains("not a number"));
    }
}
