//! The programs of a demo.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// All programs that a demo starts.
pub const NAMES: [&str; 4] = ["coordinator", "worker", "worker-torch", "wan-emulator"];

/// A folder with the coordinator, the worker and the WAN emulator.
pub struct Programs {
    dir: PathBuf,
}

impl Programs {
    /// Returns the programs of a folder.
    ///
    /// # Errors
    /// Names the missing one.
    pub fn of(dir: PathBuf) -> Result<Self> {
        for name in NAMES {
            ensure!(
                dir.join(name).is_file(),
                "there is no {name} in {}; name the folder of the programs with --programs",
                dir.display()
            );
        }
        Ok(Self { dir })
    }

    /// Creates a command that runs one of them.
    pub fn command(&self, name: &str) -> Command {
        Command::new(self.dir.join(name))
    }

    /// The command line that opens the dashboard of a state directory.
    pub fn view_line(&self, state: &Path) -> String {
        let program = self.dir.join(NAMES[0]);
        format!("{} view --state-dir {}", from_here(&program).display(), from_here(state).display())
    }

    /// Continues a text with the model in a checkpoint.
    ///
    /// # Errors
    /// Contains the worker's output.
    pub fn sample(&self, checkpoint: &Path, prompt: &str) -> Result<String> {
        let mut command = self.command("worker");
        command.arg("sample").arg("--checkpoint").arg(checkpoint).args(["--prompt", prompt]);
        // A small model is clearer at a lower temperature.
        command.args(["--temperature", "0.7"]);
        // One position is less work than the synchronisation of two threads.
        command.args(["--threads", "1"]);
        let output = command.stdin(Stdio::null()).output().with_context(|| format!("start {command:?}"))?;
        if !output.status.success() {
            bail!(
                "sample from {}: {}",
                checkpoint.display(),
                String::from_utf8_lossy(&output.stderr).trim_end()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Returns the path relative to the working directory, if it is below it.
pub fn from_here(path: &Path) -> &Path {
    std::env::current_dir().ok().and_then(|here| path.strip_prefix(here).ok()).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_one_of_the_programs_is_refused_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["coordinator", "worker", "worker-torch"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let error = Programs::of(dir.path().to_owned()).err().unwrap().to_string();
        assert!(error.contains("wan-emulator") && error.contains("--programs"), "{error}");
        std::fs::write(dir.path().join("wan-emulator"), "").unwrap();
        let line = Programs::of(dir.path().to_owned()).unwrap().view_line(&dir.path().join("state"));
        assert!(line.ends_with("state") && line.contains("coordinator view --state-dir "), "{line}");
    }
}
