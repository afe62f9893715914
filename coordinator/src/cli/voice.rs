//! What the command line says to people: output, messages as `--log-format` says, and a line at the foot of the terminal.

use std::io::Write as _;

use longhaul_common::terminal::{foot, moves_cursors, takes_colours};
use tracing_subscriber::EnvFilter;

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
        let filter =
            EnvFilter::try_from_env("LONGHAUL_LOG").unwrap_or_else(|_| EnvFilter::new("info,quinn=warn"));
        let log = tracing_subscriber::fmt().with_writer(foot);
        // Tests start several in one process; the first log stays.
        let _ = match self {
            Self::Text => {
                let colours = takes_colours(&std::io::stderr());
                log.with_env_filter(filter).with_target(false).with_ansi(colours).try_init()
            }
            Self::Json => {
                // What is said is no log: nothing leaves it out.
                let filter = match format!("{SAID}=info").parse() {
                    Ok(said) => filter.add_directive(said),
                    Err(_) => filter,
                };
                log.with_env_filter(filter).json().flatten_event(true).try_init()
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
