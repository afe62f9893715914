//! The exchange between sites: which link carries how many bytes, and how long that takes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use longhaul_common::pipeline::Pipeline;

use super::super::coding::{CoreTime, Holders, largest_share};
use super::super::{Exchange, Plan, Topology, Workload};
use super::{LinkLoad, ROUND_TRIPS, boundary_bytes, copies_sent, held, pair, tied_bytes};

/// The holders of each stage.
struct Groups(Vec<Group>);

struct Group {
    parameters: f64,
    /// Sites that hold it, and with how many devices.
    sites: BTreeMap<usize, u32>,
    /// Cores that train, of the device that has fewest; none: GPUs do.
    cores: Option<f64>,
}

impl Group {
    fn core_time(&self, exchange: Exchange) -> CoreTime {
        let devices = self.sites.values().copied().min().unwrap_or(1).into();
        let holders = Holders { sites: self.sites.len() as f64, devices, parameters: self.parameters };
        CoreTime::of(&exchange, holders)
    }
}

impl Groups {
    fn of(topology: &Topology, work: &Workload, plan: &Plan) -> Self {
        let ranks = plan.pipeline.ranks as usize;
        let group = |(stage, range): (usize, &Range<u32>)| {
            let mut sites = BTreeMap::new();
            let holders = || plan.replicas.iter().filter_map(|replica| replica.get(stage % ranks));
            holders().for_each(|id| *sites.entry(id.site).or_insert(0) += 1);
            let cores = holders().filter_map(|id| topology.device(*id).training_cores()).reduce(f64::min);
            let held: u64 = held(work, range).iter().map(|block| block.parameters).sum();
            // The members of a tensor group exchange all of the stage between them.
            let parameters = work.sums.as_ref().map_or(held as f64, |sums| sums.parameters(range));
            Group { parameters, sites, cores }
        };
        Self(plan.stages.iter().enumerate().map(group).collect())
    }
}

/// What each pair of sites carries of the pipelines, in each direction.
fn handed_on(work: &Workload, plan: &Plan) -> BTreeMap<(usize, usize), f64> {
    let mut bytes = BTreeMap::new();
    let Pipeline { micro_batches, chunks, ranks, .. } = plan.pipeline;
    let step_tokens = work.micro_tokens(plan.replicas.len()) * f64::from(micro_batches);
    let step_bytes = |stage: &Range<u32>| boundary_bytes(work, stage, step_tokens);
    for replica in &plan.replicas {
        let site = |stage: u32| replica[(stage % ranks) as usize].site;
        let stages = (1..chunks * ranks).zip(&plan.stages);
        let between = stages.map(|(next, stage)| (pair(site(next - 1), site(next)), step_bytes(stage)));
        let ends = (ranks > 1 && work.tied_values > 0)
            .then(|| (pair(site(0), site(ranks - 1)), tied_bytes(work) * copies_sent(work)));
        for ((a, b), more) in between.chain(ends).filter(|((a, b), _)| a != b) {
            *bytes.entry((a, b)).or_insert(0.0) += more;
        }
    }
    bytes
}

/// The links between and within sites, and what they carry.
pub(super) struct Ways<'a> {
    topology: &'a Topology,
    groups: Groups,
    handed_on: BTreeMap<(usize, usize), f64>,
}

impl<'a> Ways<'a> {
    pub(super) fn of(topology: &'a Topology, work: &Workload, plan: &Plan) -> Self {
        Self { topology, groups: Groups::of(topology, work, plan), handed_on: handed_on(work, plan) }
    }

    /// Bytes of updates and results in a step, in each direction, by pair of sites. All directions of a pair carry the same on average.
    pub(super) fn bytes(&self, exchange: Exchange) -> BTreeMap<(usize, usize), f64> {
        let mut bytes = BTreeMap::new();
        for Group { parameters, sites, .. } in &self.groups.0 {
            let count = sites.len() as f64;
            let results = if exchange.side_by_side { exchange.up_bits } else { exchange.down_bits / count };
            let each = parameters * (exchange.up_bits / count + results) / 8.0;
            let places: Vec<usize> = sites.keys().copied().collect();
            for (at, &a) in places.iter().enumerate() {
                places[at + 1..].iter().for_each(|&b| *bytes.entry((a, b)).or_insert(0.0) += each);
            }
        }
        bytes
    }

    /// By pair of sites: bytes of contributions and of results in a step that the site sends which owns most.
    pub(super) fn largest(&self, exchange: Exchange) -> BTreeMap<(usize, usize), [f64; 2]> {
        let mut bytes = BTreeMap::new();
        for Group { parameters, sites, .. } in &self.groups.0 {
            let count = sites.len();
            let fragments = (parameters / exchange.fragment_values).ceil();
            let owned = largest_share(fragments, exchange.turns / exchange.every, count);
            let of_result = match exchange.side_by_side {
                true => count as f64 * exchange.up_bits,
                false => exchange.down_bits,
            };
            let contributed = (1.0 - owned) / (count.max(2) - 1) as f64 * exchange.up_bits;
            let places: Vec<usize> = sites.keys().copied().collect();
            for (at, &a) in places.iter().enumerate() {
                for &b in &places[at + 1..] {
                    let [there, back]: &mut [f64; 2] = bytes.entry((a, b)).or_default();
                    *there += parameters * contributed / 8.0;
                    *back += parameters * owned * of_result / 8.0;
                }
            }
        }
        bytes
    }

    /// By pair of sites: what contributions take, what results do, and what does not depend on their bits: round trips, and, where it goes on beside computing, what the
    /// pipelines hand on over the same link.
    pub(super) fn times(&self, exchange: Exchange) -> impl Iterator<Item = [f64; 3]> + '_ {
        self.largest(exchange).into_iter().map(move |((a, b), bytes)| {
            let link = self.topology.link(a, b);
            let beside = self.handed_on.get(&(a, b)).copied().filter(|_| exchange.overlaps).unwrap_or(0.0);
            let round_trips_s = ROUND_TRIPS * exchange.exchanges * link.round_trip_s / exchange.every;
            let [there, back] = bytes.map(|bytes| bytes / link.bytes_per_s);
            [there, back, round_trips_s + beside / link.bytes_per_s]
        })
    }

    /// Contributions leave while others are encoded, and results come while others are decoded: the link or the cores decide what either takes.
    pub(super) fn exchange_s(&self, exchange: Exchange) -> f64 {
        let CoreTime { contributing_s, receiving_s, .. } = self.core_time(exchange);
        let took = |[there, back, other]: [f64; 3]| there.max(contributing_s) + back.max(receiving_s) + other;
        self.times(exchange).map(took).fold(0.0, f64::max) + self.within_s(exchange)
    }

    /// What coding takes of a device, of the group in which it is most.
    pub(super) fn core_time(&self, exchange: Exchange) -> CoreTime {
        let of = |group: &Group| group.core_time(exchange).with_threads(group.cores);
        self.groups.0.iter().map(of).fold(CoreTime::default(), CoreTime::max)
    }

    /// By so much computing takes longer, where exchanges go on beside it.
    pub(super) fn coding_s(&self, exchange: Exchange) -> f64 {
        let of = |group: &Group| group.core_time(exchange).of_computing_s(group.cores);
        let most_s = self.groups.0.iter().map(of).fold(0.0, f64::max);
        if exchange.overlaps { most_s } else { 0.0 }
    }

    /// Devices of one site reduce over its ring, in f32, before anything leaves it.
    pub(super) fn within_s(&self, exchange: Exchange) -> f64 {
        let ring_s = |parameters: f64, site: usize, devices: u32| {
            let share = 2.0 * f64::from(devices - 1) / f64::from(devices);
            share * 4.0 * parameters / exchange.turns / self.topology.link(site, site).bytes_per_s
        };
        let groups = self.groups.0.iter();
        let times = groups.flat_map(|Group { parameters, sites, .. }| {
            sites.iter().map(move |(&site, &devices)| ring_s(*parameters, site, devices))
        });
        times.fold(0.0, f64::max)
    }

    /// Where bits follow the link: as many as go with a step that computes for so long, over each pair of sites.
    pub(super) fn following(&self, exchange: Exchange, compute_s: f64) -> Exchange {
        let Some(most) = exchange.most_bits else { return exchange };
        let room_s = compute_s - self.within_s(exchange);
        let one_bit = Exchange { up_bits: 1.0, down_bits: 1.0, ..exchange };
        let fits = self.times(one_bit).map(|[there, back, other]| (room_s - other) / (there + back));
        let least = exchange.up_bits;
        exchange.with_bits(fits.fold(most, f64::min).clamp(least, most.max(least)))
    }

    pub(super) fn loads(&self, exchange: Exchange) -> Vec<LinkLoad> {
        let sync = self.bytes(exchange);
        let pairs: BTreeSet<_> = sync.keys().chain(self.handed_on.keys()).copied().collect();
        let of = |bytes: &BTreeMap<(usize, usize), f64>, pair| bytes.get(&pair).copied().unwrap_or(0.0);
        let load = |between| LinkLoad {
            between,
            pipeline_bytes: of(&self.handed_on, between),
            sync_bytes: of(&sync, between),
        };
        pairs.into_iter().map(load).collect()
    }
}
