//! A coordinator as a process of its own.

pub mod fleet;
pub mod worker;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use longhaul_run_toml::RunToml;

pub fn run_toml() -> RunToml {
    let sync = "preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 2\noverlap = 1";
    let run = RunToml::new("tested").workers(2).steps(6).batch(4).set("data.path", "text.txt");
    run.lines("sync", sync).set("parallel.plan", "fixed")
}

/// A folder with a `run.toml`, and the state directory beside it.
pub struct Site {
    pub folder: tempfile::TempDir,
}

impl Site {
    pub fn new() -> Self {
        Self::of(&run_toml())
    }

    pub fn of(run: &RunToml) -> Self {
        Self::with_config(&run.to_string())
    }

    pub fn with_config(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("run.toml"), config).unwrap();
        Self { folder }
    }

    pub fn state_dir(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// `coordinator up` on free ports, with more arguments.
    pub fn up(&self, more: &[&str]) -> Command {
        let mut command = coordinator();
        command.arg("up").arg("--config").arg(self.folder.path().join("run.toml"));
        if !more.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        if !more.contains(&"--http") {
            command.args(["--http", "127.0.0.1:0"]);
        }
        command.arg("--state-dir").arg(self.state_dir());
        command.args(more);
        command
    }

    /// Starts it, and waits until it has printed the join line.
    pub fn start(&self, more: &[&str]) -> Running {
        self.start_in(&[], more)
    }

    /// The same, with these variables in its environment.
    pub fn start_in(&self, variables: &[(&str, &str)], more: &[&str]) -> Running {
        let mut up = self.up(more);
        let mut child =
            up.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        if line.is_empty() {
            panic!(
                "it did not start: {}",
                String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr)
            );
        }
        Running { child, _stdout: stdout, join_line: line.trim().to_owned() }
    }

    /// Another subcommand, against the running one.
    pub fn ask(&self, args: &[&str]) -> Output {
        coordinator().args(args).arg("--state-dir").arg(self.state_dir()).output().unwrap()
    }

    /// Its standard output, when it succeeds.
    pub fn told(&self, args: &[&str]) -> String {
        let output = self.ask(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.told(&["status", "--json"])).unwrap()
    }

    pub fn http_address(&self) -> String {
        std::fs::read_to_string(self.state_dir().join("http-address")).unwrap()
    }
}

pub fn coordinator() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coordinator"));
    command.env_remove("LONGHAUL_API_TOKEN").env_remove("LONGHAUL_STATE_DIR").env_remove("LONGHAUL_CONFIG");
    for variable in ["STATE", "ETCD_USER", "ETCD_PASSWORD", "ETCD_CA", "ETCD_CERT", "ETCD_KEY"] {
        command.env_remove(format!("LONGHAUL_{variable}"));
    }
    command
}

/// A running coordinator; it is killed when this is dropped.
pub struct Running {
    child: Child,
    _stdout: BufReader<ChildStdout>,
    pub join_line: String,
}

impl Running {
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its own end; returns exit code and standard error.
    pub fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }

    #[cfg(unix)]
    pub fn terminate(&self) {
        let sent = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The exit code and the error of a command that fails.
pub fn failure(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap();
    assert!(!output.status.success());
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
