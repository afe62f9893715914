//! The `coordinator` binary.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    longhaul_coordinator::cli::main(std::env::args_os())
}
