//! Adjustable calendars: each process may have its own, by a preloaded library (`native/calendar.c`).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The library, and a file per process, in one folder.
#[derive(Debug)]
pub(super) struct Calendars {
    folder: PathBuf,
}

impl Calendars {
    /// Compiles the library into this folder.
    ///
    /// # Errors
    /// The C compiler is missing, or fails.
    pub fn build(folder: &Path) -> Result<Self> {
        let calendars = Self { folder: std::path::absolute(folder)? };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("native/calendar.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]);
        let output = compiler.arg(calendars.library()).arg(source).arg("-ldl").output();
        let output = output.context("start cc, which compiles the calendar of tests")?;
        ensure!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
        Ok(calendars)
    }

    /// Gives a process to be started the calendar of this name.
    ///
    /// # Errors
    /// Its file cannot be written.
    pub fn give(&self, name: &str, command: &mut Command) -> Result<()> {
        let file = self.file(name);
        if !file.exists() {
            std::fs::write(&file, 0_i64.to_ne_bytes())?;
        }
        command.env("LD_PRELOAD", self.library()).env("LONGHAUL_CALENDAR", file);
        Ok(())
    }

    /// Sets that calendar this many seconds ahead of the machine's, at once, also for future processes.
    ///
    /// # Errors
    /// Its file cannot be written.
    pub fn set(&self, name: &str, ahead_s: i64) -> Result<()> {
        let file = std::fs::File::options().write(true).create(true).truncate(false).open(self.file(name));
        let file = file.with_context(|| format!("open the calendar of {name}"))?;
        // In place, as processes have it mapped.
        Ok(std::os::unix::fs::FileExt::write_all_at(&file, &ahead_s.to_ne_bytes(), 0)?)
    }

    fn library(&self) -> PathBuf {
        self.folder.join("calendar.so")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.calendar"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_process_has_its_own_calendar_which_jumps_while_it_runs() {
        let folder = tempfile::tempdir().unwrap();
        let calendars = Calendars::build(folder.path()).unwrap();
        let mut shell = Command::new("bash");
        shell.args(["-c", "while read -r; do printf '%(%s)T\\n' -1; done"]);
        calendars.give("one", &mut shell).unwrap();
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut asked, mut said) =
            (shell.stdin.take().unwrap(), BufReader::new(shell.stdout.take().unwrap()));
        let mut tells = || {
            writeln!(asked, "?").unwrap();
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            line.trim().parse::<i64>().unwrap()
        };
        let began = tells();
        calendars.set("one", 1_000_000).unwrap();
        let ahead = tells() - began;
        calendars.set("one", -1_000_000).unwrap();
        let behind = tells() - began;
        assert!((1_000_000..1_000_600).contains(&ahead) && (-1_000_000..-999_400).contains(&behind));
        drop(asked);
        shell.wait().unwrap();
    }
}
