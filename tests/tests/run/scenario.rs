//! The small run that all tests start from.

use std::panic::resume_unwind;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use longhaul_emulator::LinkConfig;
use longhaul_run_toml::{Gpt2, RunToml};
use longhaul_tests::cluster::{Cluster, ClusterConfig, binary};
use longhaul_tests::small_run::example_text;
use serde_json::Value;
use tempfile::TempDir;

use crate::turns::{Turn, take_all_turns, take_turn, take_turns_of_many};

/// Timeout of these runs, on a shared machine.
pub const RUN_MAX: Duration = Duration::from_secs(600);

/// A link with rounds long enough for a worker to be lost and return, and with waiting times that leave the
/// machine to other runs.
pub const SLOW_LINK: &str = "rate_mbit=50,delay_ms=100,loss_percent=0.1";

/// A run of more workers takes several turns.
const WORKERS_OF_A_TURN: usize = 4;

/// A link for pipelines across sites, which wait for it several times per step.
pub const QUICK_LINK: &str = "rate_mbit=200,delay_ms=2";

/// A run with its folder.
pub struct Scenario {
    pub cluster: Cluster,
    _folder: TempDir,
    _turn: Option<Turn<'static>>,
}

/// Parameters of tests.
pub struct Setup<'a> {
    pub steps: u64,
    /// The line of `[run]` with the seed; empty: the default one.
    pub seed: &'a str,
    pub sites: Vec<usize>,
    /// `run.workers`, if not all.
    pub workers: Option<usize>,
    /// Each direction of each link.
    pub link: &'a str,
    /// The line of `[data]` with the sources; empty: the English text of the examples.
    pub sources: &'a str,
    /// Further lines of `[data]`.
    pub data: &'static str,
    /// Lines of `[data.image]`, with a perceptron; `None`: a language model.
    pub images: Option<&'a str>,
    /// Lines of `[model]`; `None`: a small GPT-2.
    pub model: Option<&'a str>,
    /// Of that, like the next.
    pub layers: u32,
    pub width: u32,
    /// Of `[train]`, like the next two.
    pub batch: u32,
    pub micro_batch: u32,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Batches of `micro_batch` held-out sequences for the final loss.
    pub evaluate_batches: u32,
    /// Division of steps among workers.
    pub shares: &'a str,
    /// Lines of `[train.selective_backward]`; `None`: no such table.
    pub selective: Option<&'a str>,
    /// Lines of `[train.sparse_backward]`; `None`: no such table.
    pub sparse: Option<&'a str>,
    /// Lines of `[train.lora]`; `None`: no such table.
    pub lora: Option<&'a str>,
    /// Lines of `[parallel]`.
    pub parallel: &'a str,
    /// Lines of `[sync]`.
    pub sync: &'a str,
    /// Lines of `[privacy]`; `None`: no such table.
    pub privacy: Option<&'a str>,
    /// Lines of `[checkpoint]`.
    pub checkpoint: &'static str,
    /// Whether each worker has its own checkpoint folder, as on its own machine.
    pub own_checkpoints: bool,
    /// Maximum silence of a worker.
    pub silent_after_ms: u64,
    /// Minimum of that, with regular heartbeats; `None`: equal.
    pub suspect_after_ms: Option<u64>,
    /// Further arguments of each worker.
    pub worker_arguments: &'a [&'a str],
    /// Whether no other run may run in parallel, as the result depends on the machine's speed.
    pub alone: bool,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            steps: 60,
            seed: "",
            sites: vec![2, 2],
            workers: None,
            link: "rate_mbit=50,delay_ms=30,loss_percent=0.1",
            sources: "",
            data: "",
            images: None,
            model: None,
            layers: 2,
            width: 32,
            batch: 16,
            micro_batch: 4,
            learning_rate: 5e-3,
            evaluate_batches: 2,
            shares: "even",
            selective: None,
            sparse: None,
            lora: None,
            parallel: "plan = \"fixed\"",
            sync: "preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 4\noverlap = 1\nkeep = 256\nfragment_values = 16384",
            privacy: None,
            checkpoint: "every_rounds = 4",
            own_checkpoints: false,
            silent_after_ms: 3000,
            suspect_after_ms: None,
            worker_arguments: &[],
            alone: false,
        }
    }
}

impl Setup<'_> {
    /// On a machine of any speed, no worker is left out of a round or counts as lost: the same run gives the
    /// same bits.
    pub fn reproducible() -> Self {
        let sync = "preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 4\noverlap = 1\nkeep = 256\nfragment_values = 16384\n\
                    deadline_floor_ms = 240000\ndeadline_ceiling_ms = 240000";
        Self { sites: vec![1, 1], sync, silent_after_ms: 240_000, ..Self::default() }
    }

    /// Starts coordinator and workers.
    pub fn start(self) -> Scenario {
        let turn = Some(self.take_turn());
        let (config, folder) = self.prepare();
        let cluster = Cluster::start(config).unwrap();
        Scenario { cluster, _folder: folder, _turn: turn }
    }

    fn take_turn(&self) -> Turn<'static> {
        match self.sites.iter().sum::<usize>() {
            _ if self.alone => take_all_turns(),
            workers if workers > WORKERS_OF_A_TURN => take_turns_of_many(),
            _ => take_turn(),
        }
    }

    /// Starts workers one after the other: they are numbered in the order of joining, share a batch in that
    /// order, and sums are taken in it.
    pub fn start_in_order(self) -> Scenario {
        let workers: usize = self.sites.iter().sum();
        let mut scenario = self.start_coordinator();
        for worker in 0..workers {
            scenario.cluster.start_worker(worker).unwrap();
            let joined = |status: &Value| {
                status["members"].as_array().is_some_and(|members| members.len() == worker + 1)
            };
            scenario.cluster.wait_for("a worker", RUN_MAX, joined).unwrap();
        }
        scenario
    }

    /// Starts the coordinator alone.
    pub fn start_coordinator(self) -> Scenario {
        Scenario { _turn: Some(self.take_turn()), ..self.gather() }
    }

    /// Starts the coordinator alone, without taking a turn, for workers that never train.
    pub fn gather(self) -> Scenario {
        let (config, folder) = self.prepare();
        let cluster = Cluster::start_coordinator_only(config).unwrap();
        Scenario { cluster, _folder: folder, _turn: None }
    }

    fn prepare(self) -> (ClusterConfig, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let config = ClusterConfig {
            own_checkpoints: self.own_checkpoints,
            worker_arguments: self.worker_arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            ..cluster_config(folder.path(), self.run_toml().to_string(), self.sites, self.link)
        };
        (config, folder)
    }

    /// The run's configuration.
    pub fn run_toml(&self) -> RunToml {
        let run = RunToml::new("test")
            .workers(self.workers.unwrap_or_else(|| self.sites.iter().sum()))
            .steps(self.steps)
            .lines("run", self.seed);
        let run = match self.images {
            Some(lines) => {
                run.table("model", "kind = \"mlp\"\nhidden = [16]").without("data").lines("data.image", lines)
            }
            None if self.model.is_some() => run.table("model", self.model.unwrap_or_default()),
            None => {
                let (layers, width) = (self.layers.into(), self.width.into());
                run.gpt2(Gpt2 { layers, width, heads: 2, context: 32 })
            }
        };
        let run = match self.sources {
            "" => run.set("data.path", example_text()),
            sources => run.without("data.path").lines("data", sources),
        };
        let run = run
            .lines("data", self.data)
            .batch(self.batch)
            .set("train.micro_batch", self.micro_batch)
            .set("train.learning_rate", self.learning_rate)
            .set("train.warmup_steps", 5)
            .set("train.evaluate_batches", self.evaluate_batches)
            .set("train.shares", self.shares)
            .lines("parallel", self.parallel)
            .lines("sync", self.sync)
            .lines("checkpoint", self.checkpoint)
            .set("faults.silent_after_ms", self.silent_after_ms)
            .set("faults.suspect_after_ms", self.suspect_after_ms.unwrap_or(self.silent_after_ms))
            .set("faults.reconnect_grace_ms", 8000);
        let optional = [
            ("train.selective_backward", self.selective),
            ("train.sparse_backward", self.sparse),
            ("train.lora", self.lora),
            ("privacy", self.privacy),
        ];
        optional.into_iter().fold(run, |run, (table, lines)| match lines {
            Some(lines) => run.lines(table, lines),
            None => run,
        })
    }
}

/// One thread per worker, and one checkpoint folder for all.
pub fn cluster_config(folder: &Path, run_toml: String, sites: Vec<usize>, link: &str) -> ClusterConfig {
    ClusterConfig {
        run_toml,
        sites,
        own_checkpoints: false,
        link: link.parse::<LinkConfig>().unwrap(),
        seed: 1,
        folder: folder.to_owned(),
        threads: 1,
        worker_arguments: Vec::new(),
        own_calendars: false,
    }
}

impl Scenario {
    /// Starts a run of any configuration, with a worker at each of two sites, in a folder to which its paths
    /// are relative.
    pub fn start_in(folder: TempDir, run_toml: String) -> Self {
        let turn = Some(take_turn());
        let config = cluster_config(folder.path(), run_toml, vec![1, 1], Setup::default().link);
        let cluster = Cluster::start(config).unwrap();
        Self { cluster, _folder: folder, _turn: turn }
    }

    /// Returns the output of a successful command of the coordinator.
    pub fn told(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(binary("coordinator").unwrap());
        let state = self.cluster.folder().join("state");
        let output = command.args(arguments).arg("--state-dir").arg(state).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Waits until the run has applied this many rounds.
    pub fn wait_for_round(&mut self, round: u64) -> Value {
        let what = format!("round {round}");
        self.cluster.wait_for(&what, RUN_MAX, |status| applied_rounds(status) >= round).unwrap()
    }

    /// Waits until the run is finished, and checks the invariants of every finished run.
    pub fn finish(&mut self) -> Value {
        let status = self.cluster.wait_until_finished(RUN_MAX).unwrap();
        assert_eq!(status["parity"]["equal"], true, "replicas differ: {status:#}");
        assert_eq!(status["step"], status["steps"], "{status:#}");
        status
    }
}

/// Runs `work` on each item, as many in parallel as there are turns.
///
/// # Panics
/// It panics on an item.
pub fn at_once<S: Send, T: Send>(all: Vec<S>, work: impl Fn(S) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(|| work(one))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|outcome| outcome.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Returns the number of applied rounds in the status.
pub fn applied_rounds(status: &Value) -> u64 {
    status["round"].as_u64().unwrap_or(0)
}
