//! What the command line says to people: output, messages as `--log-format` says, and a line at the foot of the terminal.

use std::io::Write as _;

use longhaul_common::terminal::{foot, moves_cursors, takes_colours};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::{CliError, LogFormat};

/// Where lines come from that are said whatever LONGHAUL_LOG leaves out.
const SAID: &str = "coordinator::said";

/// A line for a person. One that nobody reads any more is no reason to complain.
pub(super) fn say(line: &str) {
    let _ = foot().above(|out| writeln!(out, "{line}"));
}

/// A line of output. A reader that has gone away (`| head`) is no reason to complain.
pub(super) fn print(line: &str) {
    let _ = foot().above(|_| writeln!(std::io::stdout(), "{line}"));
}

impl LogFormat {
    /// Begins the log, and on a terminal the line at its foot.
    pub(super) fn start(self) {
        if self == Self::Text && moves_cursors(&std::io::stderr()) {
            foot().enable();
        }
        let chosen = std::env::var("LONGHAUL_LOG").ok().and_then(|chosen| chosen.parse::<Targets>().ok());
        let filter = chosen.unwrap_or_else(|| {
            Targets::new().with_default(LevelFilter::INFO).with_target("quinn", LevelFilter::WARN)
        });
        let log = tracing_subscriber::fmt::layer().with_writer(foot);
        let registry = tracing_subscriber::registry();
        // Tests start several in one process; the first log stays.
        let _ = match self {
            Self::Text => {
                let colours = takes_colours(&std::io::stderr());
                let log = log.with_target(false).with_ansi(colours);
                registry.with(log.with_filter(filter)).try_init()
            }
            Self::Json => {
                // What is said is no log: nothing leaves it out.
                let filter = filter.with_target(SAID, LevelFilter::INFO);
                registry.with(log.json().flatten_event(true).with_filter(filter)).try_init()
            }
        };
    }

    /// A line for a person, or a message like those of the log.
    pub(super) fn say(self, line: &str) {
        match self {
            Self::Text => say(line),
            Self::Json => tracing::info!(target: SAID, "{line}"),
        }
    }

    /// Why a command failed.
    pub(super) fn complain(self, error: &CliError) {
        match self {
            Self::Text => say(&format!("error: {error}")),
            Self::Json => tracing::error!(target: SAID, "{error}"),
        }
    }
}
