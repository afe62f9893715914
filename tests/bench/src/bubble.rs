//! Utilisation of the ranks of a pipeline.
//!
//! Four ranks run the real lists of tasks through the real interpreter and exchange real frames over QUIC on
//! the loopback interface. Computation is a pause of fixed time, so that the bubble depends on the schedule
//! and the cost of sending, not on this machine's cores.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_common::config::ValueFormat;
use longhaul_common::id::{Generation, RunId, SiteId, WorkerId};
use longhaul_common::pipeline::{Pipeline, PipelineSchedule, Task, Work};
use longhaul_common::plan::Member;
use longhaul_engine::{EngineError, Pipe, Stages, interpret};
use longhaul_flight::Progress;
use longhaul_member::SyncEvent;
use longhaul_peer::{Network, StageGroup};
use longhaul_proto::identity::{Identity, data_server};
use longhaul_proto::transport::{self, bulk::ReceiveLimits};
use longhaul_worker::replica::{BoundaryFormats, NetworkPipe};
use tch::{Device, Kind, Tensor};
use tokio::sync::mpsc;

use crate::kit::args::Quick;
use crate::kit::clock::now;
use crate::kit::recorder::Recorder;
use crate::kit::ring::identities;

const RANKS: u32 = 4;
const MICRO_BATCHES: u32 = 8;
/// A rank's forward pass of a micro-batch; its backward pass takes twice that.
const FORWARD: Duration = Duration::from_millis(40);
/// The residual stream of a micro-batch: a sequence of 128 tokens in a width of 384, as in a GPT of 10.9
/// million parameters.
const SHAPE: [i64; 3] = [1, 128, 384];
const SESSION: Generation = Generation(1);

/// Utilisation of the ranks of a pipeline
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
}

/// Measures each schedule and compares it with its closed form.
pub fn run(args: &Args) -> Result<()> {
    let steps = args.quick.choose(3, 20);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let _inside = runtime.enter();
    let mut plain = None;
    for (case, schedule, chunks) in [
        ("gpipe", PipelineSchedule::Gpipe, 1),
        ("1f1b", PipelineSchedule::OneForwardOneBackward, 1),
        ("interleaved, 2 chunks", PipelineSchedule::Interleaved, 2),
        ("zero-bubble", PipelineSchedule::ZeroBubble, 1),
    ] {
        let pipeline =
            Pipeline { schedule, ranks: RANKS, chunks, micro_batches: MICRO_BATCHES, in_flight: Vec::new() };
        let measured = measure(&pipeline, steps)?;
        let expected = closed_form(&pipeline);
        if schedule == PipelineSchedule::OneForwardOneBackward {
            plain = Some(measured.step_s);
        }
        let faster = plain.map(|plain| plain / measured.step_s);
        let figures = [
            ("step_s", Some(measured.step_s), "s"),
            ("bubble_ratio", Some(measured.bubble / expected), "ratio"),
            ("bubble", Some(measured.bubble), "ratio"),
            ("closed_form", Some(expected), "ratio"),
            ("speed_over_1f1b", faster, "ratio"),
        ];
        Recorder::new("pipeline/bubble").with("steps", steps).print_known(case, &figures);
    }
    Ok(())
}

/// Returns the idle share of the ranks' time, with p ranks, v chunks and m micro-batches, and backward passes
/// twice as long as forward ones (Narayanan et al. 2021, section 2.2; Qi et al. 2023, table 1).
fn closed_form(pipeline: &Pipeline) -> f64 {
    let [p, v, m] = [pipeline.ranks, pipeline.chunks, pipeline.micro_batches].map(f64::from);
    match pipeline.schedule {
        PipelineSchedule::ZeroBubble => (p - 1.0) / (3.0 * m + p - 1.0),
        _ => (p - 1.0) / (v * m + p - 1.0),
    }
}

struct Measured {
    step_s: f64,
    bubble: f64,
}

/// Returns the median over the steps after the first ones, which open connections.
fn measure(pipeline: &Pipeline, steps: usize) -> Result<Measured> {
    const WARM_UP: usize = 2;
    let ranks = ranks(pipeline)?;
    let tasks = pipeline.tasks()?;
    let mut took = Vec::new();
    let mut pipes: Vec<NetworkPipe> = Vec::new();
    let mut networks = Vec::new();
    for (network, pipe) in ranks {
        networks.push(network);
        pipes.push(pipe);
    }
    for step in 0..steps + WARM_UP {
        let busy = AtomicU64::new(0);
        let began = now();
        std::thread::scope(|scope| -> Result<()> {
            let mut running = Vec::new();
            for ((rank, pipe), own) in (0..).zip(&mut pipes).zip(&tasks) {
                let mut pauses = Pauses { busy: &busy, pipeline, rank };
                running.push(scope.spawn(move || {
                    pipe.begin();
                    interpret(pipeline, rank, own, &mut pauses, pipe)
                }));
            }
            for rank in running {
                rank.join().map_err(|_| anyhow::anyhow!("a rank panicked"))??;
            }
            Ok(())
        })?;
        let step_s = began.elapsed().as_secs_f64();
        if step >= WARM_UP {
            let busy_s = busy.load(Ordering::Relaxed) as f64 * 1e-9;
            took.push((step_s, 1.0 - busy_s / (step_s * f64::from(pipeline.ranks))));
        }
    }
    networks.iter().for_each(|network: &Arc<Network>| network.stop());
    took.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (step_s, bubble) = *took.get(took.len() / 2).context("no step was measured")?;
    Ok(Measured { step_s, bubble })
}

/// Stages that take a fixed time for each task.
struct Pauses<'a> {
    /// Nanoseconds for which all ranks should have been busy.
    busy: &'a AtomicU64,
    pipeline: &'a Pipeline,
    rank: u32,
}

impl Pauses<'_> {
    /// Chunks divide the time.
    #[allow(clippy::disallowed_methods, reason = "the pause stands for computing")]
    fn pause(&self, forwards: u32) {
        let time = FORWARD * forwards / self.pipeline.chunks;
        self.busy.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        std::thread::sleep(time);
    }
}

impl Stages for Pauses<'_> {
    fn shape(&self, _: Task) -> [i64; 3] {
        SHAPE
    }

    fn forward(&mut self, task: Task, input: Option<Tensor>) -> Result<Option<Tensor>, EngineError> {
        self.pause(1);
        let is_last = self.pipeline.stage(self.rank, task.chunk) + 1 == self.pipeline.stages();
        let stream = || input.unwrap_or_else(|| Tensor::ones(SHAPE, (Kind::Float, Device::Cpu)));
        Ok((!is_last).then(stream))
    }

    fn backward(&mut self, task: Task, gradient: Option<Tensor>) -> Result<Option<Tensor>, EngineError> {
        self.pause(if task.work == Work::BackwardInput { 1 } else { 2 });
        Ok(Some(gradient.unwrap_or_else(|| Tensor::ones(SHAPE, (Kind::Float, Device::Cpu)))))
    }

    fn weights(&mut self, _: Task) -> Result<(), EngineError> {
        self.pause(1);
        Ok(())
    }
}

/// Returns the ranks' networks, each with its own UDP port, and their pipes.
fn ranks(pipeline: &Pipeline) -> Result<Vec<(Arc<Network>, NetworkPipe)>> {
    let identities = identities(RunId([1; 16]), pipeline.ranks)?;
    let started: Vec<(Arc<Network>, Member)> = identities.iter().map(start).collect::<Result<_>>()?;
    let members: Vec<Member> = started.iter().map(|(_, member)| member.clone()).collect();
    let workers: Vec<WorkerId> = members.iter().map(|member| member.worker).collect();
    let with_pipe = |(rank, (network, _)): (u32, (Arc<Network>, Member))| {
        network.set_members(&members, 0);
        network.join_replica(Some(StageGroup { session: SESSION, workers: workers.clone() }));
        let formats = BoundaryFormats::of(ValueFormat::Int8);
        let pipe = NetworkPipe::new(
            Arc::clone(&network),
            pipeline.clone(),
            rank,
            SESSION,
            workers.clone(),
            WorkerId(1),
            formats,
        )?;
        Ok((network, pipe))
    };
    (0..).zip(started).map(with_pipe).collect()
}

fn start(identity: &Identity) -> Result<(Arc<Network>, Member)> {
    let worker = identity.worker();
    let site = SiteId(worker.0);
    let (socket, _) = transport::bind_udp(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let endpoint = transport::endpoint(socket, Some(data_server(identity)?))?;
    let address = endpoint.local_addr()?;
    let member = Member { worker, site, lan_address: address, wan_address: address, upload_weight: 1 };
    // No messages of the round protocol arrive.
    let (queue, _) = mpsc::channel::<SyncEvent>(1);
    let progress = Arc::new(Progress::default());
    let network = Network::start(endpoint, identity, site, queue, progress, ReceiveLimits::default())?;
    Ok((network, member))
}
