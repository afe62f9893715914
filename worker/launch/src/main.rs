//! The command `worker`: replaces itself with `worker-torch`, the program beside it.
//!
//! A program with a missing library ends in the loader, without a remedy. This program does not need libtorch. It queries the loader first (`LD_TRACE_LOADED_OBJECTS`,
//! ld.so(8)), which takes about ten milliseconds, and if necessary selects another libtorch of the same version.

mod libtorch;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// The program to start.
const PROGRAM: &str = "worker-torch";
/// Exit status of shells for a command that cannot be started.
const NOT_STARTED: u8 = 127;

#[allow(clippy::print_stderr, reason = "a person is told, and there is no log yet")]
fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_else(|| OsString::from("worker"));
    match become_program(&name, words) {
        Err(reason) => {
            eprintln!("worker: {reason}");
            ExitCode::from(NOT_STARTED)
        }
        Ok(never) => match never {},
    }
}

/// Returns only on failure, with the reason.
fn become_program(
    name: &OsStr,
    words: impl Iterator<Item = OsString>,
) -> Result<std::convert::Infallible, String> {
    let here = std::env::current_exe().map_err(|error| format!("find this program: {error}"))?;
    let program = here.with_file_name(PROGRAM);
    if !program.is_file() {
        return Err(format!(
            "{PROGRAM} is not beside {}: the worker is two programs; copy or link {PROGRAM} there too, from where this one came",
            here.display()
        ));
    }
    let mut command = Command::new(&program);
    command.arg0(name).args(words);
    let missing = missing(&program, None);
    if !missing.is_empty() {
        let places = libtorch::places();
        let found = places.iter().find(|place| self::missing(&program, Some(place)).is_empty());
        let Some(place) = found else { return Err(libtorch::remedy(&missing, &places)) };
        command.env("LD_LIBRARY_PATH", search(place));
    }
    Err(format!("start {}: {}", program.display(), command.exec()))
}

/// Returns the libraries that the loader cannot find, with or without an additional folder.
fn missing(program: &Path, place: Option<&PathBuf>) -> Vec<String> {
    let mut command = Command::new(program);
    // The program does not read it, and a minimal container has no /dev/null.
    command.env("LD_TRACE_LOADED_OBJECTS", "1").stdin(Stdio::inherit());
    if let Some(place) = place {
        command.env("LD_LIBRARY_PATH", search(place));
    }
    // If the query fails, the start itself reports the error.
    let Ok(output) = command.output() else { return Vec::new() };
    let listed = String::from_utf8_lossy(&output.stdout);
    let name = |line: &str| line.trim().strip_suffix(" => not found").map(str::to_owned);
    listed.lines().filter_map(name).collect()
}

/// Returns `LD_LIBRARY_PATH` with `place` prepended.
fn search(place: &Path) -> OsString {
    let mut all = place.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_LIBRARY_PATH").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}
