//! The `wan-emulator` binary: emulated WAN links for UDP (relays) and for anything over IP (TUN devices).
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Arguments, Mode};

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::WARN).init();
    let arguments = Arguments::parse();
    let result = match &arguments.mode {
        Some(Mode::Tun(tun)) => cli::tun::run(tun),
        None => cli::udp::run(&arguments.relays),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => cli::report(&error),
    }
}
