//! Memory that ranks need of their devices.

use longhaul_common::config::ParallelConfig;
use longhaul_common::memory::{Memory, PerMemory, StageBytes};
use longhaul_common::pipeline::{Held, Pipeline};

use super::predict::{held, tied_bytes};
use super::{Device, Plan, Topology, Unfit, Workload};

impl Device {
    /// Its bytes of a memory. `None`: it has no such memory.
    #[must_use]
    pub fn bytes_of(&self, memory: Memory) -> Option<f64> {
        match memory {
            Memory::Machine => self.host_memory_bytes.is_none().then_some(self.memory_bytes),
            Memory::Gpu => self.host_memory_bytes.map(|_| self.memory_bytes),
            Memory::Host => self.host_memory_bytes,
        }
    }
}

/// The least that any of these devices has of each memory; infinite where none of them has it.
pub(super) fn least_of(devices: impl Iterator<Item = Device> + Clone) -> PerMemory {
    PerMemory::of(|memory| {
        devices.clone().filter_map(|device| device.bytes_of(memory)).fold(f64::INFINITY, f64::min)
    })
}

/// Bytes that a plan needs.
pub(super) struct Needs {
    /// By rank: the most that a device of it has to hold,
    pub device: Vec<f64>,
    /// and the machine around it, if it is a GPU; zero where none is.
    pub host: Vec<f64>,
}

impl Needs {
    /// With the most that each rank holds of micro-batches at a time.
    ///
    /// # Errors
    /// [`Unfit::Memory`]: of the first rank that some memory is too small for, the one that lacks most.
    pub fn of(
        topology: &Topology,
        work: &Workload,
        plan: &Plan,
        held_most: &[Vec<Held>],
    ) -> Result<Self, Unfit> {
        let mut needs = Self { device: Vec::new(), host: Vec::new() };
        for rank in 0..plan.pipeline.ranks as usize {
            let most = held_most.get(rank).map_or(&[][..], Vec::as_slice);
            let devices = plan.replicas.iter().filter_map(|replica| replica.get(rank));
            let has = least_of(devices.map(|&id| topology.device(id)));
            let needed = PerMemory::of(|memory| match has[memory].is_finite() {
                true => rank_bytes(work, plan, (rank, most), memory),
                false => 0.0,
            });
            if let Some(unfit) = lacking(rank, needed, has) {
                return Err(unfit);
            }
            needs.device.push(needed.machine.max(needed.gpu));
            needs.host.push(needed.host);
        }
        Ok(needs)
    }
}

/// The memory that is too small for a rank: of several, the one that would have to grow by the largest factor.
pub(super) fn lacking(rank: usize, needed: PerMemory, has: PerMemory) -> Option<Unfit> {
    let times = |memory: &Memory| needed[*memory] / has[*memory];
    let memory = Memory::ALL.into_iter().max_by(|a, b| times(a).total_cmp(&times(b)))?;
    let (needed_bytes, bytes) = (needed[memory], has[memory]);
    (needed_bytes > bytes).then_some(Unfit::Memory { rank, memory, needed_bytes, bytes })
}

/// Bytes of one memory that a rank needs.
fn rank_bytes(work: &Workload, plan: &Plan, (rank, most): (usize, &[Held]), memory: Memory) -> f64 {
    let (ranks, replicas) = (plan.pipeline.ranks as usize, plan.replicas.len());
    let tokens = work.micro_tokens_most(replicas);
    let bytes =
        |stage| StageBytes::of(memory, held(work, stage), plan.recompute, tokens, work.parameter_bytes);
    let stages: Vec<_> = plan.stages.iter().skip(rank).step_by(ranks).map(bytes).collect();
    // A borrowed embedding and its gradient take part in computation; remembered boundaries are where they arrive and
    // leave.
    let borrows = ranks > 1 && rank + 1 == ranks && memory != Memory::Host;
    let borrowed = if borrows { 2.0 * tied_bytes(work) } else { 0.0 };
    let remembers = memory != Memory::Gpu;
    let remembered = if remembers { remembered_bytes(work, &plan.pipeline, rank as u32) } else { 0.0 };
    StageBytes::holding(&stages, most) + borrowed + remembered
}

fn remembered_bytes(work: &Workload, pipeline: &Pipeline, rank: u32) -> f64 {
    let (stages, chunks, differences) = (pipeline.ranks, pipeline.chunks, work.differences);
    ParallelConfig { stages, chunks, differences, ..ParallelConfig::default() }.remembered_bytes(rank) as f64
}

#[cfg(test)]
mod tests;
