//! What a user types.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

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
    Sample(SampleArgs),
}

/// `worker join`
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// Where the coordinator listens (UDP): HOST:PORT.
    pub coordinator: String,
    /// The join token that the coordinator printed.
    #[arg(long, env = "LONGHAUL_TOKEN", hide_env_values = true)]
    pub token: String,
    /// The cluster that this machine belongs to: a name of your choice, the same on all machines that share fast links.
    #[arg(long, default_value = "default")]
    pub site: String,
    /// `auto` (a GPU if there is one), `cpu`, or `cuda:N`.
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// CPU threads for the device. Default: one for each core.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Where identity, prepared data and private state are kept. Default: `$XDG_CACHE_HOME/longhaul` or `~/.cache/longhaul`.
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// The UDP address on which other workers reach this one.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:0")]
    pub listen: SocketAddr,
    /// The address by which workers of other sites reach this one, when a router forwards a port. Default: as the coordinator sees it.
    #[arg(long, value_name = "ADDR")]
    pub advertise: Option<SocketAddr>,
    /// The training text on this machine, instead of the run's `data.path`.
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Where this machine's checkpoints go, instead of the run's `checkpoint.dir`.
    #[arg(long, value_name = "DIR")]
    pub checkpoint_dir: Option<PathBuf>,
}

/// `worker doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Where the coordinator listens (UDP): HOST:PORT.
    pub coordinator: String,
    /// A join token: the doctor then says, too, whether that coordinator made it. It is not used up.
    #[arg(long, env = "LONGHAUL_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// `auto`, `cpu`, or `cuda:N`.
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// The cache folder that `worker join` would be given.
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
}

/// `worker sample`
#[derive(Debug, Args)]
pub struct SampleArgs {
    /// A checkpoint, or a folder of checkpoints: then the newest.
    #[arg(long, value_name = "DIR")]
    pub checkpoint: PathBuf,
    /// The text to continue.
    #[arg(long)]
    pub prompt: String,
    /// Tokens to draw.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub tokens: u32,
    /// 0 always takes the likeliest token; 1 draws from the model's own distribution.
    #[arg(long, default_value_t = 0.8)]
    pub temperature: f64,
    /// Draw only among so many likeliest tokens; 0: among all.
    #[arg(long, default_value_t = 0)]
    pub top_k: u32,
    /// The same seed draws the same text.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// `auto`, `cpu`, or `cuda:N`.
    #[arg(long, default_value = "auto")]
    pub device: String,
}
