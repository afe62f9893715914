//! Workers that behave as if they trained: they apply rounds, say what their devices did, and heal when they come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longhaul_common::id::{Generation, Round, SiteId};
use longhaul_proto::control::message::{
    CheckpointReport, GenerationStart, Heartbeat, MeasuredLink, Ready, RoundReport, SeenLink, Settled,
    ToCoordinator, ToWorker,
};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::Running;
use super::worker::{Control, Worker};

/// Between rounds.
const ROUND: Duration = Duration::from_millis(250);

/// Many of them, of several sites.
pub struct Fleet {
    /// The first round that not all have applied, about.
    round: Arc<AtomicU64>,
    pub workers: Vec<Arc<Worker>>,
    tasks: Vec<JoinHandle<()>>,
}

/// One of them as it trains.
struct Trainer {
    control: Control,
    place: u64,
    round: Arc<AtomicU64>,
    generation: Option<Arc<GenerationStart>>,
    next: u64,
    done: Heartbeat,
}

impl Fleet {
    /// So many join, in turns of these sites, and train.
    pub async fn join(running: &Running, sites: &[&str], count: usize) -> Self {
        let mut fleet = Self { round: Arc::default(), workers: Vec::new(), tasks: Vec::new() };
        for place in 0..count {
            let site = sites[place % sites.len()];
            let mut worker = Worker::enrol(running, site).await;
            worker.site = site.to_owned();
            worker.device = format!("{site}-{:02} cuda:0", place / sites.len());
            fleet.workers.push(Arc::new(worker));
            fleet.start(place);
        }
        fleet
    }

    fn start(&mut self, place: usize) {
        let (worker, round) = (Arc::clone(&self.workers[place]), Arc::clone(&self.round));
        self.tasks.insert(
            place,
            tokio::spawn(async move {
                let control = worker.join_again(None).await;
                let trainer = Trainer {
                    control,
                    place: place as u64,
                    round,
                    generation: None,
                    next: 0,
                    done: Heartbeat::default(),
                };
                trainer.train().await;
            }),
        );
    }

    /// Its process ends without a word.
    pub fn kill(&mut self, place: usize) {
        self.tasks.remove(place).abort();
    }

    /// It is started again with the certificate that it has.
    pub fn restart(&mut self, place: usize) {
        self.start(place);
    }
}

impl Trainer {
    async fn train(mut self) {
        let (mut rounds, mut beats) = (interval(ROUND), interval(Duration::from_millis(500)));
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                heard = self.control.receiver.receive() => match heard {
                    Ok(Some(message)) => if !self.hear(message) { return },
                    _ => return,
                },
                _ = rounds.tick() => self.apply(),
                _ = beats.tick() => self.beat(),
            }
        }
    }

    /// Whether it goes on.
    fn hear(&mut self, message: ToWorker) -> bool {
        match message {
            ToWorker::Prepare(_) => self.ready(0, [1; 32]),
            ToWorker::Heal { .. } => {
                let next = self.round.load(Ordering::SeqCst).max(1);
                self.ready(next, [(next - 1) as u8; 32]);
            }
            ToWorker::Settle { generation } => self.settled(generation),
            ToWorker::Begin(start) => {
                let until = start.until.0;
                self.generation = Some(start);
                if self.next >= until {
                    self.finished();
                }
            }
            ToWorker::Speak => self.beat(),
            ToWorker::Dismiss { .. } | ToWorker::Refused { .. } => return false,
            _ => {}
        }
        true
    }

    fn ready(&mut self, next: u64, state_hash: [u8; 32]) {
        self.next = next;
        self.control.say(ToCoordinator::Ready(Ready {
            next_round: Round(next),
            rank: 0,
            state_hash,
            parameters: 1000,
            samples: 50_000,
            data_hash: [2; 32],
            evaluation: Default::default(),
        }));
    }

    fn settled(&mut self, generation: Generation) {
        self.generation = None;
        let (open_round, computing, results) = (Round(self.next), Round(self.next), Vec::new());
        self.control.say(ToCoordinator::Settled(Settled { generation, open_round, computing, results }));
    }

    fn apply(&mut self) {
        let Some(start) = self.generation.clone() else { return };
        if self.next >= start.until.0 || self.next > self.round.load(Ordering::SeqCst) + 1 {
            return;
        }
        let round = self.next;
        let noise = ((round * 7919 + self.place * 104_729) % 1000) as f32 / 1000.0 - 0.5;
        self.control.say(ToCoordinator::RoundApplied(RoundReport {
            generation: start.membership.generation,
            round: Round(round),
            loss: Some(2.1 + 2.2 * (-(round as f32) / 60.0).exp() + 0.3 * noise),
            gradient_norm: Some(0.6 + 1.4 * (-(round as f32) / 30.0).exp() + 0.2 * noise),
            samples: 4,
            sites: start.membership.sites().collect(),
            residual_ratio: Some(1.5 + 0.2 * noise),
            state_hash: [round as u8; 32],
            skipped: Vec::new(),
            validation_loss: round.is_multiple_of(20).then(|| 2.2 + 2.1 * (-(round as f32) / 60.0).exp()),
            validation_accuracy: None,
            refused: Vec::new(),
            refused_beyond: 0,
            measured: None,
            audit: Default::default(),
        }));
        self.next += 1;
        self.round.fetch_max(self.next, Ordering::SeqCst);
        if self.next.is_multiple_of(40) && self.place == 0 {
            self.control.say(ToCoordinator::Checkpoint(CheckpointReport {
                next_round: Round(self.next),
                generation: start.membership.generation,
                path: format!("/data/checkpoints/r{}", self.next),
                outcome: Ok([round as u8; 32]),
            }));
        }
        if self.next == start.until.0 {
            self.finished();
        }
    }

    fn finished(&self) {
        let (next_round, validation_loss, validation_accuracy) = (Round(self.next), Some(2.3), None);
        self.control.say(ToCoordinator::Finished { next_round, validation_loss, validation_accuracy });
    }

    fn beat(&mut self) {
        if let Some(start) = &self.generation {
            let waits = 0.25 + 0.02 * (self.place % 5) as f64;
            self.done.step = self.next * 2;
            self.done.tokens += 2000 + 40 * (self.place % 7);
            self.done.time.compute_s += 0.5 - waits;
            self.done.time.wait_s += waits - 0.01;
            self.done.time.encode_s += 0.2;
            self.done.time.encode_wait_s += 0.4 * (waits - 0.01);
            self.done.time.bubble_s += 0.3 * (waits - 0.01);
            self.done.time.data_wait_s += 0.004;
            self.done.time.checkpoint_s += 0.006;
            self.done.traffic.wan_sent_bytes += 60_000 + 5000 * (self.next % 9);
            self.done.traffic.dense_bytes += 4_000_000;
            let ways = |to: SiteId| SeenLink {
                to,
                link: MeasuredLink {
                    bytes_per_s: 4e6 + 5e5 * f64::from(to.0),
                    round_trip_s: 0.02 + 0.01 * f64::from(to.0),
                },
            };
            let ways = start.membership.sites().map(ways).collect();
            self.control.say(ToCoordinator::SeenLinks(ways));
        }
        self.control.say(ToCoordinator::Heartbeat(self.done.clone()));
    }
}
