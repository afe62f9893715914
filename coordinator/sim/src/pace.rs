//! Durations in a world: drawn at random, or as the planner predicts them.

use std::ops::Range;
use std::time::Duration;

use longhaul_common::config::RunConfig;
use longhaul_common::id::{Round, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_common::schedule::RoundSchedule;
use longhaul_member::SyncEvent;
use longhaul_plan::{
    DeviceId, Plan, Topology, Unfit, Workload, in_place_of_groups, paces, phases, whole_run,
};
use longhaul_proto::control::message::{MeasuredLink, Member};
use longhaul_run::GenerationConfig;
use rand::Rng as _;
use rand_chacha::ChaCha8Rng;

use crate::exchanges::Exchanges;
use crate::table::Table;

/// A device computes a step in the predicted time, or up to this share longer.
const JITTER: f64 = 0.05;
/// Values in a state that is fetched, per parameter: the parameter and two moments, in f32.
const STATE_BYTES: f64 = 12.0;
/// The longest duration, in seconds.
const LONGEST_S: f64 = 1e9;

/// Durations in a world.
pub enum Pace {
    /// Drawn from short ranges, so that a seed reaches many orders of events.
    Drawn,
    /// Predicted.
    Planned(Box<Planned>),
}

/// Durations of a run on known machines and links.
pub struct Planned {
    topology: Topology,
    spec: ModelSpec,
    /// Devices, by worker.
    devices: Table<WorkerId, DeviceId>,
    /// Seconds per sequence of a step, by worker.
    sequence_s: Table<WorkerId, f64>,
    exchanges: Exchanges,
    /// Of a state that is fetched.
    state_bytes: f64,
}

impl Planned {
    /// Durations on these devices. Call [`Self::plan`] for each generation.
    pub fn new(topology: Topology, spec: ModelSpec) -> Self {
        let devices = (1..).map(WorkerId).zip(topology.devices()).collect();
        let state_bytes = STATE_BYTES * spec.parameter_count() as f64;
        let (sequence_s, exchanges) = (Table::default(), Exchanges::default());
        Self { topology, spec, devices, sequence_s, exchanges, state_bytes }
    }

    /// Predicts steps and exchanges of a generation.
    ///
    /// # Errors
    /// The model cannot be cut as the configuration says.
    pub fn plan(&mut self, config: &RunConfig, generation: &GenerationConfig) -> Result<(), Unfit> {
        let (parallel, work) = (&config.parallel, Workload::of(config, &self.spec));
        let nowhere = || Unfit::Schedule("the model cannot be cut so".to_owned());
        let parts = self.spec.parts(parallel, config.data.sequence_length).ok_or_else(nowhere)?;
        // All members of a tensor group have the same stage.
        let ranks = || parts.iter().step_by(parallel.tensor as usize);
        let chunks = 0..parallel.chunks as usize;
        let stages: Vec<Range<u32>> = chunks
            .flat_map(|chunk| ranks().filter_map(move |part| part.chunks.get(chunk).cloned()))
            .collect();
        let row = |ranks: &[Member]| -> Vec<DeviceId> {
            ranks.iter().filter_map(|member| self.devices.get(&member.worker).copied()).collect()
        };
        let rows: Vec<Vec<DeviceId>> =
            generation.replicas.iter().map(|replica| row(&replica.ranks)).collect();
        let groups;
        let (topology, replicas) = match parallel.tensor {
            1 => (&self.topology, rows),
            members => {
                groups = self.topology.in_groups(members).map_err(|_| nowhere())?;
                (&groups, in_place_of_groups(&rows, members))
            }
        };
        let pipeline = parallel.pipeline(work.micro_batches(generation.replicas.len()));
        let plan = Plan { replicas, stages, pipeline, recompute: config.train.recompute };
        let paces = paces(topology, &work, &plan)?;
        let whole = whole_run(topology, &work, &plan, &phases(config, &self.spec))?;
        // A pace is the time of an even share of the batch.
        let even = f64::from(config.train.batch) / generation.replicas.len().max(1) as f64;
        let each = generation.replicas.iter().zip(paces);
        let each = each
            .flat_map(|(replica, pace)| replica.ranks.iter().map(move |member| (member.worker, pace / even)));
        let mut each: Vec<(WorkerId, f64)> = each.collect();
        each.sort_by_key(|(worker, _)| *worker);
        self.sequence_s = each.into_iter().collect();
        self.exchanges = Exchanges::of(&whole);
        Ok(())
    }

    /// Seconds per sequence of a worker's step.
    pub fn sequence_s(&self, worker: WorkerId) -> f64 {
        self.sequence_s.get(&worker).copied().unwrap_or_default()
    }

    /// Steps of the warm-up.
    pub fn warmup_steps(&self) -> u64 {
        self.exchanges.warmup_steps()
    }

    /// The link from one worker to another.
    pub fn link(&self, from: WorkerId, to: WorkerId) -> Option<MeasuredLink> {
        let site = |worker| Some(self.devices.get(&worker)?.site);
        let link = self.topology.link(site(from)?, site(to)?);
        Some(MeasuredLink { bytes_per_s: link.bytes_per_s, round_trip_s: link.round_trip_s })
    }

    /// The machine of a worker, by floating point operations per second and bytes of memory.
    pub fn machine(&self, worker: WorkerId) -> Option<longhaul_plan::Device> {
        Some(self.topology.device(*self.devices.get(&worker)?))
    }

    /// The site of a worker.
    pub fn site_of(&self, worker: WorkerId) -> Option<usize> {
        Some(self.devices.get(&worker)?.site)
    }

    /// Names of the sites.
    pub fn sites(&self) -> Vec<String> {
        self.topology.sites.iter().map(|site| site.name.clone()).collect()
    }

    /// Workers in order, each with its site.
    pub fn workers(&self) -> impl Iterator<Item = (WorkerId, usize)> {
        self.devices.iter().map(|(worker, device)| (worker, device.site))
    }

    /// Entries of the model's vocabulary.
    pub fn vocabulary(&self) -> u32 {
        self.spec.vocabulary
    }

    fn control(&self, worker: WorkerId) -> Duration {
        // The coordinator is at the first site.
        let site = self.site_of(worker).unwrap_or_default();
        seconds(self.topology.link(0, site).round_trip_s / 2.0)
    }

    fn between(&self, from: WorkerId, to: WorkerId, event: &SyncEvent, schedule: RoundSchedule) -> Duration {
        let Some(link) = self.link(from, to) else { return Duration::ZERO };
        let least = link.round_trip_s / 2.0;
        // Where there are several sites, the exchange is between them, and frames within a site come on top.
        let is_exchange = self.topology.sites.len() == 1 || self.site_of(from) != self.site_of(to);
        match event {
            SyncEvent::Frame { frame, .. } if is_exchange => {
                self.half_of(frame.header.round, schedule).max(seconds(least))
            }
            SyncEvent::Pulled { round, answer: Some(_), .. } if is_exchange => {
                self.half_of(*round, schedule).max(seconds(least))
            }
            SyncEvent::Healed { answer: Ok(_), .. } => {
                seconds(least + self.state_bytes / link.bytes_per_s.max(1.0))
            }
            _ => seconds(least),
        }
    }

    /// Half of a round's exchange: contributions take the one, results the other.
    pub fn half_of(&self, round: Round, schedule: RoundSchedule) -> Duration {
        self.exchanges.takes(schedule.steps_of(round)) / 2
    }
}

impl Pace {
    /// The predictions, if these are used.
    pub fn planned(&self) -> Option<&Planned> {
        match self {
            Self::Drawn => None,
            Self::Planned(planned) => Some(planned),
        }
    }

    /// The same, to be changed.
    pub fn planned_mut(&mut self) -> Option<&mut Planned> {
        match self {
            Self::Drawn => None,
            Self::Planned(planned) => Some(planned),
        }
    }

    /// The delay of a message between a worker and the coordinator.
    pub fn control(&self, worker: Option<WorkerId>, rng: &mut ChaCha8Rng) -> Duration {
        match (self, worker) {
            (Self::Planned(planned), Some(worker)) => planned.control(worker),
            _ => Duration::from_millis(rng.random_range(1..60)),
        }
    }

    /// The delay of an event from one worker to another.
    pub fn between(
        &self,
        (from, to): (WorkerId, WorkerId),
        event: &SyncEvent,
        schedule: RoundSchedule,
        rng: &mut ChaCha8Rng,
    ) -> Duration {
        match self {
            Self::Drawn => Duration::from_millis(rng.random_range(5..80)),
            Self::Planned(planned) => planned.between(from, to, event, schedule),
        }
    }

    /// The duration of a step, of so many sequences of a worker.
    pub fn step(&self, worker: WorkerId, step: u64, sequences: usize, rng: &mut ChaCha8Rng) -> Duration {
        match self {
            Self::Drawn => Duration::from_millis(rng.random_range(20..80)),
            Self::Planned(planned) => {
                let slower = 1.0 + JITTER * rng.random::<f64>();
                let compute_s = sequences as f64 * planned.sequence_s(worker);
                seconds((compute_s + planned.exchanges.coding_s(step)) * slower)
            }
        }
    }

    /// Reaching the coordinator.
    pub fn connect(&self) -> Duration {
        Duration::from_millis(if self.planned().is_some() { 200 } else { 1 })
    }

    /// Building the model and opening the data.
    pub fn build(&self) -> Duration {
        Duration::from_millis(if self.planned().is_some() { 1000 } else { 50 })
    }

    /// Between the starts of two workers' processes.
    pub fn start_every(&self) -> Duration {
        Duration::from_millis(if self.planned().is_some() { 1 } else { 30 })
    }
}

fn seconds(s: f64) -> Duration {
    Duration::from_secs_f64(s.clamp(0.0, LONGEST_S))
}
