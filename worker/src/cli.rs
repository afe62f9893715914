//! What a user types.

mod token;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use longhaul_proto::identity::Token;
pub use token::TokenArgs;

/// Trains as part of a run, follows the coordinator, and exchanges updates with the other workers.
#[derive(Debug, Parser)]
#[command(name = "worker", version, about, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How log lines look.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// The form of log lines on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The sub-commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Join a run and train until it ends. Ctrl-C leaves; the others go on.
    ///
    /// `coordinator up` prints the whole line to paste. Give every machine with fast links between them the same --site: only what crosses
    /// between sites is compressed. A worker that was stopped or killed comes back with the same line.
    Join(JoinArgs),
    /// Say what would stop this machine from taking part: libtorch, device, UDP path, bandwidth, clock.
    Doctor(DoctorArgs),
    /// Continue a text with a trained checkpoint.
    ///
    /// The text appears on standard output as it is drawn, the prompt first. The model sees up to as many tokens as its context is long;
    /// when they are more, it goes on with the newest half of them.
    Sample(SampleArgs),
    /// Prepare the data of a run before it starts, look at it, and tidy up.
    Data(DataArgs),
    /// Print what makes a shell complete the words of this command.
    ///
    /// For bash: `worker completions bash > ~/.local/share/bash-completion/completions/worker`. For zsh, write it to `_worker` in a folder of `fpath`; for fish, to
    /// `~/.config/fish/completions/worker.fish`.
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

/// `worker join`
#[derive(Debug, Args)]
#[command(mut_group("join_token", |group| group.required(true)))]
pub struct JoinArgs {
    /// Where the coordinator listens (UDP): HOST:PORT. Where several take over from each other: all of them, with commas between them.
    pub coordinator: String,
    /// What lets this machine in.
    #[command(flatten)]
    pub token: TokenArgs,
    /// The cluster that this machine belongs to: a name of your choice, the same on all machines that share fast links.
    #[arg(long, default_value = "default")]
    pub site: String,
    /// `auto` (a GPU that no other worker here has, or else the CPU), `cpu`, or `cuda:N`.
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// CPU threads for the device. Default: one for each core.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Memory that the model, its optimiser and activations may take, in GiB (0.5 is half of one), of the GPU's where the device is one: a larger part of a model is refused, with what would help. Default: whatever
    /// there is.
    #[arg(long, value_name = "GIB", value_parser = gib)]
    pub memory_gib: Option<f64>,
    /// Where identity, prepared data and private state are kept. Default: `$XDG_CACHE_HOME/longhaul` or `~/.cache/longhaul`.
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// What prepared data may take in that folder, in GiB: what has not been used for longest is thrown away for what is prepared. Default: no limit.
    #[arg(long, value_name = "GIB", allow_negative_numbers = true, value_parser = gib)]
    pub cache_max_gib: Option<f64>,
    /// The UDP address on which other workers reach this one. Default: all of this machine's, of IPv4 and IPv6, with any port.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// The address by which workers of other sites reach this one, when a router forwards a port. Default: as the coordinator sees it.
    #[arg(long, value_name = "ADDR")]
    pub advertise: Option<SocketAddr>,
    /// The training data on this machine, instead of the run's `data.path`; where the run has `data.sources`, the folder from which their relative paths count. `remote`: this machine has none of it, and
    /// takes what it trains on from workers that do, those of its own site first (a folder of that name is `./remote`).
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Where this machine's checkpoints go, instead of the run's `checkpoint.dir`.
    #[arg(long, value_name = "DIR", env = "LONGHAUL_CHECKPOINT_DIR")]
    pub checkpoint_dir: Option<PathBuf>,
}

/// As `--data`: the data is where other workers are.
const REMOTE: &str = "remote";

impl JoinArgs {
    /// The join token, from the command line or from its file.
    ///
    /// # Errors
    /// The file cannot be read or has no token in it, or the token is damaged.
    pub fn join_token(&self) -> Result<Token> {
        self.token.read()?.context("give --token or --token-file")
    }

    /// Whether this machine has none of the training data, and takes it from other workers.
    #[must_use]
    pub fn data_is_remote(&self) -> bool {
        self.data.as_ref().is_some_and(|place| place.as_os_str() == REMOTE)
    }

    /// Memory that the model may take.
    #[must_use]
    pub fn memory_bytes(&self) -> Option<u64> {
        self.memory_gib.map(bytes)
    }

    /// What prepared data may take.
    #[must_use]
    pub fn cache_bytes_max(&self) -> Option<u64> {
        self.cache_max_gib.map(bytes)
    }
}

/// Of so many GiB; a float that is too large becomes the largest integer.
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
    /// Where the coordinator listens (UDP): HOST:PORT.
    pub coordinator: String,
    /// With a join token, the doctor says, too, whether that coordinator made it. It is not used up.
    #[command(flatten)]
    pub token: TokenArgs,
    /// `auto`, `cpu`, or `cuda:N`.
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// The cache folder that `worker join` would be given.
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
}

/// `worker data`
#[derive(Debug, Args)]
pub struct DataArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: DataCommand,
}

/// The sub-commands of `worker data`.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Make tokens of a run's sources. `worker join` does so too, but then the others wait for this machine.
    ///
    /// Ctrl-C stops it; what was made stays, and the same command goes on from there.
    Prepare(DataRunArgs),
    /// Say what a run's sources hold, what of it is prepared, and show samples as the model will see them. Prepares nothing.
    Inspect(DataInspectArgs),
    /// Check every byte that is prepared for a run, and make again what is damaged.
    Verify(DataRunArgs),
    /// Throw away prepared data, what has not been used for longest first. What a run is using stays.
    Prune(DataPruneArgs),
}

/// Whose data, and where.
#[derive(Debug, Args)]
pub struct DataRunArgs {
    /// The run's configuration.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// As `worker join` is given it: the training data, or the folder from which relative paths of `data.sources` count.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// The cache folder that `worker join` is given.
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// What prepared data may take in that folder, in GiB: what has not been used for longest is thrown away for what is prepared. Default: no limit.
    #[arg(long, value_name = "GIB", allow_negative_numbers = true, value_parser = gib)]
    pub cache_max_gib: Option<f64>,
}

impl DataRunArgs {
    /// What prepared data may take.
    #[must_use]
    pub fn cache_bytes_max(&self) -> Option<u64> {
        self.cache_max_gib.map(bytes)
    }
}

/// `worker data inspect`
#[derive(Debug, Args)]
pub struct DataInspectArgs {
    /// Whose data.
    #[command(flatten)]
    pub run: DataRunArgs,
    /// Samples to show: 0 to 1000.
    #[arg(long, value_name = "COUNT", default_value_t = 2, allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(..=1000))]
    pub samples: u64,
}

/// `worker data prune`
#[derive(Debug, Args)]
pub struct DataPruneArgs {
    /// What may be left, in GiB (0.5 is half of one); 0 throws all away that is not in use.
    #[arg(long, value_name = "GIB", allow_negative_numbers = true, value_parser = some_gib)]
    pub max_gib: f64,
    /// The cache folder that `worker join` is given.
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
    /// A checkpoint (`round-000120`), or a folder of checkpoints or of runs, such as a run's `checkpoint.dir`: then the newest.
    #[arg(long, value_name = "DIR")]
    pub checkpoint: PathBuf,
    /// The text to continue: at least a character.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: String,
    /// Tokens to draw: 1 to 100000. With the tokenizer `bytes`, a token is a byte.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 300,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub tokens: u32,
    /// 0 always takes the likeliest token; 1 draws from the model's own distribution; more is more random.
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true, value_parser = temperature)]
    pub temperature: f64,
    /// Draw only among so many likeliest tokens; 0: among all.
    #[arg(long, value_name = "COUNT", default_value_t = 0, allow_negative_numbers = true)]
    pub top_k: u32,
    /// The same seed draws the same text.
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    pub seed: u64,
    /// `auto`, `cpu`, or `cuda:N`.
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// CPU threads for the device; 1 is the fastest for a small model or on a busy machine. Default: one for each core.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
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
        assert_eq!(sample(&[]).map(|args| args.prompt), Ok("- p".to_owned()));
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
