//! A small run that every test starts from.

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

/// The longest that a run of these may take, on a machine that does other things as well.
pub const RUN_MAX: Duration = Duration::from_secs(600);

/// A link over which a round takes long enough for something to happen to a worker and for it to come back, and over which workers leave
/// the machine to other runs meanwhile.
pub const SLOW_LINK: &str = "rate_mbit=50,delay_ms=100,loss_percent=0.1";

/// A run of more workers takes the turns of several.
const WORKERS_OF_A_TURN: usize = 4;

/// A link that pipelines across sites wait for several times in each step.
pub const QUICK_LINK: &str = "rate_mbit=200,delay_ms=2";

/// A run and the folder that goes with it.
pub struct Scenario {
    pub cluster: Cluster,
    _folder: TempDir,
    _turn: Option<Turn<'static>>,
}

/// What differs between tests.
pub struct Setup<'a> {
    pub steps: u64,
    /// The line for `[run]` that gives the seed; none: the usual one.
    pub seed: &'a str,
    pub sites: Vec<usize>,
    /// `run.workers`, where those are not all.
    pub workers: Option<usize>,
    /// Each direction of each link.
    pub link: &'a str,
    /// The line for `[data]` that names the sources; none: the English text of the examples.
    pub sources: &'a str,
    /// More lines for `[data]`.
    pub data: &'static str,
    /// Lines for `[data.image]`, and then the model is a perceptron; none: it is a model of language.
    pub images: Option<&'a str>,
    /// Of the model, like the next.
    pub layers: u32,
    pub width: u32,
    /// Of `[train]`, like the next two.
    pub batch: u32,
    pub micro_batch: u32,
    /// Its peak.
    pub learning_rate: f64,
    /// Of `micro_batch` sequences each: what is held out for the loss at the end.
    pub evaluate_batches: u32,
    /// How steps are divided among workers.
    pub shares: &'a str,
    /// Lines for `[train.selective_backward]`; none: the run has no such table.
    pub selective: Option<&'a str>,
    /// Lines for `[train.sparse_backward]`; none: the run has no such table.
    pub sparse: Option<&'a str>,
    /// Lines for `[parallel]`.
    pub parallel: &'a str,
    /// Lines for `[sync]`.
    pub sync: &'a str,
    /// Lines for `[privacy]`; none: the run has no such table.
    pub privacy: Option<&'a str>,
    /// Lines for `[checkpoint]`.
    pub checkpoint: &'static str,
    /// Whether each worker has a folder of its own for them, as on a machine of its own.
    pub own_checkpoints: bool,
    /// A worker that has said nothing for so long is taken out.
    pub silent_after_ms: u64,
    /// The least of that, of whoever is heard regularly; none: it is as long.
    pub suspect_after_ms: Option<u64>,
    /// More of each worker's command line.
    pub worker_arguments: &'a [&'a str],
    /// Whether no other run goes meanwhile, as what is tested depends on how fast the machine is.
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
            layers: 2,
            width: 32,
            batch: 16,
            micro_batch: 4,
            learning_rate: 5e-3,
            evaluate_batches: 2,
            shares: "even",
            selective: None,
            sparse: None,
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
    /// However slow the machine is, nobody is left out of a round or taken for lost: the same run gives the same bits.
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

    /// Starts workers one after the other: they are numbered in the order of joining, share a batch in that order, and sums are taken in it.
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

    /// Starts the coordinator alone, for workers that never come to train: that takes no turn.
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
            ("privacy", self.privacy),
        ];
        optional.into_iter().fold(run, |run, (table, lines)| match lines {
            Some(lines) => run.lines(table, lines),
            None => run,
        })
    }
}

fn cluster_config(folder: &Path, run_toml: String, sites: Vec<usize>, link: &str) -> ClusterConfig {
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
    /// Starts a run of any configuration, with a worker at each of two sites, in a folder from which its relative paths count.
    pub fn start_in(folder: TempDir, run_toml: String) -> Self {
        let turn = Some(take_turn());
        let config = cluster_config(folder.path(), run_toml, vec![1, 1], Setup::default().link);
        let cluster = Cluster::start(config).unwrap();
        Self { cluster, _folder: folder, _turn: turn }
    }

    /// What a command of the coordinator prints, when it succeeds.
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

    /// Waits until the run is finished, and checks what every finished run must satisfy.
    pub fn finish(&mut self) -> Value {
        let status = self.cluster.wait_until_finished(RUN_MAX).unwrap();
        assert_eq!(status["parity"]["equal"], true, "replicas differ: {status:#}");
        assert_eq!(status["step"], status["steps"], "{status:#}");
        status
    }
}

/// Does the same with each, as many at once as there are turns.
///
/// # Panics
/// It does with one of them.
pub fn at_once<S: Send, T: Send>(all: Vec<S>, work: impl Fn(S) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(|| work(one))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|outcome| outcome.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Rounds that are applied, as the status tells.
pub fn applied_rounds(status: &Value) -> u64 {
    status["round"].as_u64().unwrap_or(0)
}
