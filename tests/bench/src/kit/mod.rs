//! Common parts of benchmarks: options, figures, clocks, statistics, and paths.

pub mod args;
pub mod checkout;
pub mod clock;
pub mod cpu;
pub mod figures;
pub mod memory;
#[cfg(feature = "data")]
pub mod python;
pub mod recorder;
pub mod ring;
#[cfg(feature = "torch")]
pub mod selected_step;
pub mod stats;

use std::fmt::Display;

/// Reports progress on standard error.
#[allow(clippy::print_stderr, reason = "progress of a command")]
pub fn progress(words: impl Display) {
    eprintln!("{words}");
}
