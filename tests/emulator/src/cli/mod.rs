//! The command line of `wan-emulator`.

mod arguments;
mod control;
mod session;
pub mod tun;
pub mod udp;

use std::io::Write;
use std::process::ExitCode;

use longhaul_emulator::tun::TunError;

pub use self::arguments::{Arguments, Mode};

/// Exit code if this machine or user cannot run TUN mode: callers then skip instead of failing.
const EXIT_UNAVAILABLE: u8 = 3;

/// Prints the error to standard error and returns the exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "wan-emulator: {error:#}");
    match error.downcast_ref() {
        Some(TunError::Unavailable { .. }) => ExitCode::from(EXIT_UNAVAILABLE),
        _ => ExitCode::FAILURE,
    }
}
