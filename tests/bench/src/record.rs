//! Bytes of the record of decisions per hour, with training workers, heartbeats each half a second, and
//! rounds of some seconds.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use longhaul_common::config::RunConfig;
use longhaul_common::id::{Generation, Round, RunId, SiteId, WorkerId};
use longhaul_coordinator::record::{self, FOLDER, replay};
use longhaul_proto::control::message::{
    Encoding, Heartbeat, Join, Ready, RoundReport, TimeSpent, ToCoordinator, Traffic,
};
use longhaul_run::{ConnectionId, Event, Phase, Run, RunState};
use longhaul_run_toml::{Gpt2, RunToml};

use crate::kit::args::Quick;
use crate::kit::recorder::Recorder;

const WORKERS: u32 = 16;
const SITES: u32 = 4;
const HOUR: Duration = Duration::from_secs(3600);
const TICK: Duration = Duration::from_millis(500);

struct Bench {
    run: Run,
    recorder: record::Recorder,
    now: Duration,
}

impl Bench {
    fn handle(&mut self, event: Event) {
        self.recorder.before(self.now, &event);
        let commands = self.run.handle(self.now, event);
        self.recorder.after(&self.run, &commands);
    }

    /// Advances the time and wakes the run at its timeouts.
    fn pass_to(&mut self, to: Duration) {
        while let Some(due) = self.run.next_timeout().filter(|due| *due <= to) {
            self.now = due;
            self.handle(Event::Timer);
        }
        self.now = to;
    }

    fn say(&mut self, worker: u32, message: ToCoordinator) {
        self.handle(Event::Message { connection: ConnectionId(u64::from(worker)), message });
    }

    fn begin(&mut self) -> Result<()> {
        for worker in 0..WORKERS {
            let connection = ConnectionId(u64::from(worker));
            let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
            self.handle(Event::Opened { connection, worker: WorkerId(worker), address });
            let at = SocketAddr::from(([10, 0, 0, worker as u8], 4801));
            let join = Join {
                incarnation: u64::from(worker) + (1 << 60),
                site: format!("site-{}", worker % SITES),
                lan_address: at,
                wan_address: at,
                device: "a machine, cuda:0".to_owned(),
                memory_bytes: 1 << 36,
                host_memory_bytes: None,
                held: None,
                too_late_ms: None,
                checkpoints: Vec::new(),
            };
            self.say(worker, ToCoordinator::Join(join));
        }
        for worker in 0..WORKERS {
            let ready = Ready {
                next_round: Round(0),
                rank: 0,
                state_hash: [7; 32],
                parameters: 124_000_000,
                samples: 1 << 20,
                data_hash: [3; 32],
                evaluation: Default::default(),
            };
            self.say(worker, ToCoordinator::Ready(ready));
        }
        ensure!(self.run.state().phase == Phase::Training, "the run did not begin");
        Ok(())
    }

    fn tick(&mut self, tick: u64, ticks_a_round: u64) {
        let step = tick;
        for worker in 0..WORKERS {
            self.pass_to(self.now + TICK / WORKERS);
            let seconds = self.now.as_secs_f64();
            let heartbeat = Heartbeat {
                step,
                tokens: 4096 * step,
                selected_tokens: 4096 * step,
                time: TimeSpent {
                    compute_s: 0.8 * seconds,
                    wait_s: 0.1 * seconds,
                    data_wait_s: 0.001 * seconds,
                    checkpoint_s: 0.0,
                    encode_s: 0.05 * seconds,
                    encode_wait_s: 0.01 * seconds,
                    bubble_s: 0.02 * seconds,
                },
                traffic: Traffic {
                    wan_sent_bytes: 1_000_000 * step,
                    wan_received_bytes: 1_000_000 * step,
                    lan_sent_bytes: 9_000_000 * step,
                    dense_bytes: 400_000_000 * step,
                    data_wan_bytes: 0,
                    data_lan_bytes: 0,
                },
                loss: 2.5,
                encoding: Some(Encoding { density: 1.0, value_bits: 32.0 }),
            };
            self.say(worker, ToCoordinator::Heartbeat(heartbeat));
        }
        if tick > 0 && tick.is_multiple_of(ticks_a_round) {
            let round = Round(tick / ticks_a_round - 1);
            for worker in 0..WORKERS {
                let report = RoundReport {
                    generation: Generation(1),
                    round,
                    loss: Some(2.5),
                    gradient_norm: Some(0.5),
                    samples: 32,
                    sites: (0..SITES).map(SiteId).collect(),
                    residual_ratio: Some(3.0),
                    state_hash: [round.0 as u8; 32],
                    skipped: Vec::new(),
                    validation_loss: None,
                    validation_accuracy: None,
                    refused: Vec::new(),
                    refused_beyond: 0,
                    measured: None,
                    audit: Default::default(),
                };
                self.say(worker, ToCoordinator::RoundApplied(report));
            }
        }
    }
}

/// Disk space of the record of decisions per hour
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
}

/// Plays an hour of each case.
pub fn run(args: &Args) -> Result<()> {
    for &round_s in args.quick.choose(&[60][..], &[1, 10, 60]) {
        let folder = tempfile::tempdir()?;
        play(folder.path(), round_s)?;
        report(folder.path(), round_s)?;
    }
    Ok(())
}

/// Writes the record of a run with rounds of this many seconds.
fn play(folder: &Path, round_s: u64) -> Result<()> {
    let run_toml = RunToml::new("record").workers(WORKERS).steps(100_000).gpt2(Gpt2::SMALL).batch(512);
    let run_toml = run_toml.set("sync.preset", "dense").set("parallel.plan", "fixed");
    let config = RunConfig::parse(&run_toml.to_string())?;
    let state = RunState::new(RunId([1; 16]), &config);
    let run = Run::new(config, state, Duration::ZERO)?;
    let recorder = record::Recorder::start(folder, &run, 0);
    let mut bench = Bench { run, recorder, now: Duration::ZERO };
    bench.begin()?;
    for tick in 0..HOUR.as_millis() as u64 / TICK.as_millis() as u64 {
        bench.tick(tick, 1000 * round_s / TICK.as_millis() as u64);
    }
    bench.recorder.flush();
    Ok(())
}

fn report(folder: &Path, round_s: u64) -> Result<()> {
    let (mut bytes, mut events) = (0, 0);
    for file in std::fs::read_dir(folder.join(FOLDER))? {
        let path = file?.path();
        bytes += std::fs::metadata(&path)?.len();
        let summary = replay(&path, |_| {})?;
        ensure!(summary.differences == 0, "{} decisions are others when replayed", summary.differences);
        events += summary.events;
    }
    let (recorder, case) = (Recorder::new("record"), format!("{WORKERS} workers, a round each {round_s} s"));
    recorder.print(&case, "bytes_in_an_hour", bytes, "B");
    recorder.print(&case, "events", events, "");
    Ok(())
}
