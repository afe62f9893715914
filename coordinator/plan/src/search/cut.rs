//! Which blocks of a model each stage of a pipeline has.

use std::collections::BTreeSet;
use std::ops::Range;

use longhaul_common::memory::{Memory, PerMemory, StageBytes};
use longhaul_common::pipeline::{Pipeline, PipelineSchedule, split};

use super::EXACT_DEVICES_MAX;
use crate::memory::{lacking, least_of};
use crate::predict::{boundary_bytes, held};
use crate::{Device, DeviceId, Topology, Unfit, Workload};

/// With more blocks than these, not all cuts of them are.
const EXACT_BLOCKS_MAX: u32 = 8;
/// A way is long that takes this part of the time between two micro-batches, or more.
const LONG_WAY: f64 = 0.05;

/// Replicas to be cut.
pub(super) struct Cut<'a> {
    pub topology: &'a Topology,
    pub work: &'a Workload,
    pub replicas: &'a [Vec<DeviceId>],
    pub pipeline: &'a Pipeline,
    pub recompute: bool,
}

impl Cut<'_> {
    /// The cuts that are tried: all of them where devices and blocks are few.
    pub fn all(&self) -> Vec<Vec<Range<u32>>> {
        let (blocks, stages) = (self.work.blocks.len() as u32, self.pipeline.stages());
        let is_small = self.topology.devices().count() <= EXACT_DEVICES_MAX && blocks <= EXACT_BLOCKS_MAX;
        if is_small && stages <= blocks {
            let mut cuts = cuts(0, blocks, stages);
            cuts.retain(|cut| cut.iter().all(|stage| self.work.may_be_stage(stage)));
            return cuts;
        }
        // With as many micro-batches in flight as keep all ranks busy, or, where that does not fit, with one; where least is sent, and anywhere.
        let in_flight = |rank: u32| (self.pipeline.ranks - rank).min(self.pipeline.micro_batches);
        let fastest =
            |ends: &BTreeSet<u32>| self.fastest(in_flight, ends).or_else(|| self.fastest(|_| 1, ends));
        let narrow = Some(self.work.narrow_ends()).filter(|ends| !ends.is_empty());
        let mut cuts: Vec<_> =
            narrow.into_iter().chain([BTreeSet::new()]).filter_map(|ends| fastest(&ends)).collect();
        cuts.dedup();
        cuts
    }

    /// Blocks by stage, so that the slowest stage is as fast as it can be with the slowest and the smallest device of each rank, which keeps so many
    /// micro-batches. Stages end with one of these blocks, or with any if there are none.
    fn fastest(&self, kept: impl Fn(u32) -> u32, ends: &BTreeSet<u32>) -> Option<Vec<Range<u32>>> {
        let Pipeline { ranks, chunks, .. } = *self.pipeline;
        let blocks = u32::try_from(self.work.blocks.len()).ok()?;
        let least: Vec<(f64, PerMemory)> =
            (0..ranks).map(|rank| (self.slowest(rank), self.room(rank))).collect();
        split(blocks, ranks * chunks, |stage, range| {
            let rank = stage % ranks;
            let (speed, room) = least[rank as usize];
            // Thousands of stages are looked at, and most devices have one memory.
            let fits = |memory: Memory| {
                room[memory].is_infinite() || self.needed(memory, &range, kept(rank)) <= room[memory]
            };
            let is_there = ends.is_empty() || ends.contains(&(range.end - 1));
            let may_be = is_there && self.work.may_be_stage(&range) && Memory::ALL.into_iter().all(fits);
            may_be.then(|| self.flops(&range) / speed)
        })
    }

    /// Bytes of a memory that a stage needs as one of as many alike as its device has chunks.
    fn needed(&self, memory: Memory, range: &Range<u32>, kept: u32) -> f64 {
        self.bytes(memory, range).with(kept) * f64::from(self.pipeline.chunks)
    }

    /// Where no cut fits: the largest shortfall of a rank, in the cut that would be the fastest with enough room.
    pub fn lacks(&self) -> Unfit {
        let Pipeline { ranks, chunks, .. } = *self.pipeline;
        let slowest: Vec<f64> = (0..ranks).map(|rank| self.slowest(rank)).collect();
        let took =
            |stage: u32, range: Range<u32>| Some(self.flops(&range) / slowest[(stage % ranks) as usize]);
        let cut = split(self.work.blocks.len() as u32, ranks * chunks, took).unwrap_or_default();
        let of = |(stage, range): (u32, &Range<u32>)| {
            let rank = stage % ranks;
            let needed = PerMemory::of(|memory| self.needed(memory, range, 1));
            lacking(rank as usize, needed, self.room(rank))
        };
        let lacks = (0..).zip(&cut).filter_map(of).max_by(|a, b| a.times().total_cmp(&b.times()));
        lacks.unwrap_or_else(|| {
            Unfit::Schedule(
                "a rank's part of the model does not fit its memory, however it is cut".to_owned(),
            )
        })
    }

    /// A rank's devices.
    fn devices(&self, rank: u32) -> impl Iterator<Item = Device> + Clone {
        let ids = self.replicas.iter().filter_map(move |ranks| ranks.get(rank as usize));
        ids.map(|&id| self.topology.device(id))
    }

    /// FLOPs a second of a rank's slowest device.
    fn slowest(&self, rank: u32) -> f64 {
        self.devices(rank).map(|device| device.flops_per_s).fold(f64::INFINITY, f64::min)
    }

    /// Bytes of each memory of a rank's smallest device.
    fn room(&self, rank: u32) -> PerMemory {
        least_of(self.devices(rank))
    }

    fn flops(&self, range: &Range<u32>) -> f64 {
        let blocks = &self.work.blocks[range.start as usize..range.end as usize];
        let again = if self.recompute { 2 } else { 1 };
        let flops = blocks.iter().map(|b| again * b.forward_flops_per_token + b.backward_flops_per_token);
        flops.sum::<u64>() as f64 * self.tokens()
    }

    /// Seconds of computing of the slowest rank in a step.
    pub fn busy_s(&self, stages: &[Range<u32>]) -> f64 {
        let each = (0..)
            .zip(stages)
            .map(|(stage, range)| self.flops(range) / self.slowest(stage % self.pipeline.ranks));
        each.fold(0.0, f64::max) * f64::from(self.pipeline.micro_batches)
    }

    fn tokens(&self) -> f64 {
        self.work.micro_tokens(self.replicas.len())
    }

    fn bytes(&self, memory: Memory, range: &Range<u32>) -> StageBytes {
        let tokens = self.work.micro_tokens_most(self.replicas.len());
        StageBytes::of(memory, held(self.work, range), self.recompute, tokens, self.work.parameter_bytes)
    }

    /// Micro-batches in flight that cover one's absence: the time beyond a rank, there and back, over that of the slowest stage or link; two more across a long link, on
    /// which a packet may be lost in either direction and take as long again (`docs/benchmarks/pipeline.md`); fewer where memory is short. Empty: the schedule has no
    /// such limits.
    pub fn in_flight(&self, stages: &[Range<u32>]) -> Vec<u32> {
        if self.pipeline.schedule != PipelineSchedule::OneForwardOneBackward {
            return Vec::new();
        }
        let ranks = self.pipeline.ranks as usize;
        let times: Vec<f64> =
            (0..).zip(stages).map(|(rank, range)| self.flops(range) / self.slowest(rank)).collect();
        let ways: Vec<(f64, f64)> =
            (1..ranks).map(|rank| self.slowest_way(rank - 1, rank, &stages[rank - 1])).collect();
        let period =
            times.iter().copied().chain(ways.iter().map(|(sending, _)| *sending)).fold(0.0, f64::max);
        let mut limits: Vec<u32> = (0..ranks)
            .map(|rank| {
                let computing: f64 = times[rank + 1..].iter().sum();
                let travelling: f64 =
                    ways[rank..].iter().map(|(sending, latency)| 2.0 * (sending + latency)).sum();
                // A hair less, so that rounding does not make one more of equal stages.
                let away = ((computing + travelling) / period * (1.0 - 1e-9)).ceil();
                let is_long = ways[rank..].iter().any(|(_, latency)| *latency > LONG_WAY * period);
                (away as u32).saturating_add(if is_long { 3 } else { 1 }).min(self.pipeline.micro_batches)
            })
            .collect();
        for (rank, limit) in limits.iter_mut().enumerate() {
            let room = self.room(rank as u32);
            for memory in [Memory::Machine, Memory::Gpu] {
                let bytes = self.bytes(memory, &stages[rank]);
                let fitting = (room[memory] - bytes.with(0)) / bytes.each;
                *limit = (*limit).min(fitting.max(1.0) as u32).max(1);
            }
        }
        // A rank may not have more than the one before it.
        for rank in 1..ranks {
            limits[rank] = limits[rank].min(limits[rank - 1]);
        }
        limits
    }

    /// Over all replicas: seconds for which a micro-batch behind a stage occupies the link between two ranks, and its latency.
    fn slowest_way(&self, from: usize, to: usize, stage: &Range<u32>) -> (f64, f64) {
        let ways = self.replicas.iter().map(|ranks| {
            let link = self.topology.link(ranks[from].site, ranks[to].site);
            (boundary_bytes(self.work, stage, self.tokens()) / link.bytes_per_s, link.round_trip_s / 2.0)
        });
        ways.fold((0.0, 0.0), |(sending, latency), way| (way.0.max(sending), way.1.max(latency)))
    }
}

/// All cuts of the blocks from `start` on into so many stages.
fn cuts(start: u32, blocks: u32, stages: u32) -> Vec<Vec<Range<u32>>> {
    if stages <= 1 {
        return vec![std::iter::once(start..blocks).collect()];
    }
    let first_until = |end: u32| {
        let rest = cuts(end, blocks, stages - 1);
        rest.into_iter().map(move |rest| std::iter::once(start..end).chain(rest).collect())
    };
    (start + 1..=blocks - (stages - 1)).flat_map(first_until).collect()
}
