//! A run driven event by event, for tests of this crate and of others (feature `testing`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::new_without_default,
    missing_docs,
    reason = "this is test code"
)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use longhaul_common::config::RunConfig;
use longhaul_common::id::{Generation, Round, RunId, WorkerId};
use longhaul_proto::control::message::{
    CheckpointOffer, GenerationStart, Heartbeat, Join, Ready, RoundReport, Settled, TimeSpent, ToCoordinator,
    ToWorker, Traffic,
};
use longhaul_run_toml::RunToml;

use crate::{Command, ConnectionId, Event, Phase, Run, RunState};

/// A run of ten rounds for two workers, with a clock that advances on demand.
pub struct Story {
    pub run: Run,
    pub now: Duration,
    pub commands: Vec<Command>,
}

pub fn run_toml() -> RunToml {
    let sync = "preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 2\noverlap = 1";
    RunToml::new("story").workers(2).steps(20).batch(4).lines("sync", sync).set("parallel.plan", "fixed")
}

pub fn parsed(run: &RunToml) -> RunConfig {
    RunConfig::parse(&run.to_string()).unwrap()
}

pub fn config() -> RunConfig {
    parsed(&run_toml())
}

pub fn ready(next_round: u64, hash: u8) -> ToCoordinator {
    ToCoordinator::Ready(Ready {
        next_round: Round(next_round),
        rank: 0,
        state_hash: [hash; 32],
        parameters: 10,
        samples: 100,
        data_hash: [3; 32],
        evaluation: Default::default(),
    })
}

/// The report of an applied round, from a member of the first generation.
pub fn report(round: u64, hash: u8) -> RoundReport {
    RoundReport {
        generation: Generation(1),
        round: Round(round),
        loss: None,
        gradient_norm: None,
        samples: 4,
        sites: Vec::new(),
        residual_ratio: None,
        state_hash: [hash; 32],
        skipped: Vec::new(),
        validation_loss: None,
        validation_accuracy: None,
        refused: Vec::new(),
        refused_beyond: 0,
        measured: None,
        audit: Default::default(),
    }
}

/// The report of a member at the end, without an accuracy.
pub fn finished(next_round: u64, validation_loss: Option<f32>) -> ToCoordinator {
    ToCoordinator::Finished { next_round: Round(next_round), validation_loss, validation_accuracy: None }
}

/// A worker of which nothing is known but its number, at a site.
pub fn joining(worker: WorkerId, site: &str) -> Join {
    let unspecified = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 70));
    Join {
        incarnation: u64::from(worker.0),
        site: site.to_owned(),
        lan_address: unspecified,
        wan_address: unspecified,
        device: String::new(),
        memory_bytes: 1 << 34,
        host_memory_bytes: None,
        held: None,
        too_late_ms: None,
        checkpoints: Vec::new(),
    }
}

/// Bytes and seconds in proportion to the tokens.
pub fn heartbeat(tokens: u64) -> ToCoordinator {
    ToCoordinator::Heartbeat(Heartbeat {
        tokens,
        time: TimeSpent {
            compute_s: 3.0 * tokens as f64,
            wait_s: tokens as f64,
            data_wait_s: tokens as f64,
            ..TimeSpent::default()
        },
        traffic: Traffic { wan_sent_bytes: 10 * tokens, dense_bytes: 100 * tokens, ..Traffic::default() },
        ..Heartbeat::default()
    })
}

impl Story {
    pub fn new() -> Self {
        Self::of(config())
    }

    pub fn of(config: RunConfig) -> Self {
        let state = RunState::new(RunId([1; 16]), &config);
        Self::of_state(config, state)
    }

    /// A coordinator that takes up another one's state.
    pub fn of_state(config: RunConfig, state: RunState) -> Self {
        Self {
            run: Run::new(config, state, Duration::ZERO).unwrap(),
            now: Duration::ZERO,
            commands: Vec::new(),
        }
    }

    /// Two workers that train in generation 1.
    pub fn training() -> Self {
        Self::new().trained()
    }

    /// Workers 1 and 2 join and begin to train.
    pub fn trained(mut self) -> Self {
        let story = &mut self;
        for worker in [1, 2] {
            story.join(worker, &[]);
        }
        for worker in [1, 2] {
            story.say(worker, ready(0, 7));
        }
        assert_eq!(story.run.state().phase, Phase::Training);
        self
    }

    pub fn handle(&mut self, event: Event) {
        self.commands = self.run.handle(self.now, event);
    }

    /// Time goes by, and the run is woken whenever it asks to be; at `to` it has yet to be.
    pub fn pass_to(&mut self, to: Duration) {
        while let Some(due) = self.run.next_timeout().filter(|due| *due < to) {
            self.now = due;
            self.handle(Event::Timer);
        }
        self.now = to;
    }

    /// Worker w has connection w.
    pub fn join(&mut self, worker: u32, checkpoints: &[CheckpointOffer]) {
        self.join_holding(worker, None, checkpoints);
    }

    /// A member comes back that lost nothing but its connection.
    pub fn resume(&mut self, worker: u32, generation: Generation) {
        self.join_holding(worker, Some((generation, Round(0))), &[]);
    }

    pub fn join_holding(
        &mut self,
        worker: u32,
        held: Option<(Generation, Round)>,
        checkpoints: &[CheckpointOffer],
    ) {
        self.join_as(worker, &format!("site-{worker}"), held, checkpoints);
    }

    /// A worker joins from this site.
    pub fn join_from(&mut self, worker: u32, site: &str) {
        self.join_as(worker, site, None, &[]);
    }

    /// A worker joins that has so much memory, from a site of its own.
    pub fn join_with(&mut self, worker: u32, memory_bytes: u64) {
        self.enter(worker, &format!("site-{worker}"), |join| join.memory_bytes = memory_bytes);
    }

    pub fn join_as(
        &mut self,
        worker: u32,
        site: &str,
        held: Option<(Generation, Round)>,
        checkpoints: &[CheckpointOffer],
    ) {
        self.enter(worker, site, |join| (join.held, join.checkpoints) = (held, checkpoints.to_vec()));
    }

    pub fn enter(&mut self, worker: u32, site: &str, change: impl FnOnce(&mut Join)) {
        let connection = ConnectionId(u64::from(worker));
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        self.handle(Event::Opened { connection, worker: WorkerId(worker), address });
        let mut join = joining(WorkerId(worker), site);
        change(&mut join);
        self.say(worker, ToCoordinator::Join(join));
    }

    pub fn say(&mut self, worker: u32, message: ToCoordinator) {
        self.handle(Event::Message { connection: ConnectionId(u64::from(worker)), message });
    }

    /// Messages to a worker from the last event.
    pub fn told(&self, worker: u32) -> Vec<ToWorker> {
        let to = ConnectionId(u64::from(worker));
        let sent = |command: &Command| match command {
            Command::Send { connection, message } if *connection == to => Some(message.clone()),
            _ => None,
        };
        self.commands.iter().filter_map(sent).collect()
    }

    pub fn applied(&mut self, worker: u32, round: u64, hash: u8) {
        self.say(worker, ToCoordinator::RoundApplied(report(round, hash)));
    }

    pub fn settled(&mut self, worker: u32, generation: u64, open: u64, computing: u64) {
        self.say(
            worker,
            ToCoordinator::Settled(Settled {
                generation: Generation(generation),
                open_round: Round(open),
                computing: Round(computing),
                results: Vec::new(),
            }),
        );
    }

    pub fn begun(&self, worker: u32) -> GenerationStart {
        let begun = self.told(worker).into_iter().find_map(|message| match message {
            ToWorker::Begin(start) => Some(Arc::unwrap_or_clone(start)),
            _ => None,
        });
        begun.expect("a generation begins")
    }
}
