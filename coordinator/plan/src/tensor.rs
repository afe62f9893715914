//! Tensor groups: each is planned as one device, whose members share all layers and sum their results.

use std::collections::BTreeMap;
use std::ops::Range;

use longhaul_common::config::Precision;
use longhaul_common::memory::Memory;
use longhaul_common::model::ModelSpec;
use serde::{Deserialize, Serialize};

use super::memory::least_of;
use super::{Device, DeviceId, Link, Topology, TopologyError};

/// Sums of a layer in a forward and in a backward pass (`worker/engine/docs/tensor.md`).
const SUMS_EACH_WAY: f64 = 2.0;

/// Work of a group's members besides computing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupSums {
    members: f64,
    width: f64,
    /// By block of the whole model: parameters that groups exchange with others, each value by one member.
    parameters: Vec<u64>,
}

impl GroupSums {
    /// Of groups of so many members; none: each worker has whole layers.
    #[must_use]
    pub fn of(whole: &ModelSpec, members: u32) -> Option<Self> {
        // Neither sequence nor precision change how many parameters there are.
        let parameters =
            || whole.blocks(1, Precision::F32).iter().map(|block| block.parameters).collect::<Vec<_>>();
        (members > 1).then(|| Self {
            members: f64::from(members),
            width: f64::from(whole.width),
            parameters: parameters(),
        })
    }

    /// Parameters that a group with these blocks exchanges.
    #[must_use]
    pub fn parameters(&self, blocks: &Range<u32>) -> f64 {
        let held = self.parameters.get(blocks.start as usize..blocks.end as usize);
        held.unwrap_or_default().iter().sum::<u64>() as f64
    }

    /// Of these blocks, the layers: neither the embedding nor the head.
    #[must_use]
    pub fn layers(&self, blocks: &Range<u32>) -> u32 {
        let head = (self.parameters.len() as u32).saturating_sub(1);
        blocks.end.min(head).saturating_sub(blocks.start.max(1))
    }

    /// How many they are.
    #[must_use]
    pub fn members(&self) -> u32 {
        self.members as u32
    }

    /// Seconds of the sums of a micro-batch of this many tokens over this link, through these blocks in one direction: in f32, around a ring, each waited for. With
    /// recomputation, the sums of forward passes are made twice.
    #[must_use]
    pub fn way_s(&self, blocks: &Range<u32>, tokens: f64, lan: Link) -> f64 {
        let sums = f64::from(self.layers(blocks)) * SUMS_EACH_WAY;
        let share = (self.members - 1.0) / self.members;
        let bytes = 2.0 * share * 4.0 * tokens * self.width;
        // There and on to all, hop by hop.
        let hops_s = 2.0 * (self.members - 1.0) * lan.round_trip_s / 2.0;
        sums * (bytes / lan.bytes_per_s + hops_s)
    }
}

impl Topology {
    /// Returns the machines with groups of this size in place of devices, each within its site. Any workers of a site may form one, and a group is as fast, for each
    /// member's share, as its slowest, and as large as its smallest: so each group gets the speed and the memory of the site's slowest and smallest. Remaining devices
    /// are left out.
    ///
    /// # Errors
    /// [`TopologyError::Empty`]: no site has enough.
    pub fn in_groups(&self, members: u32) -> Result<Self, TopologyError> {
        let mut grouped = self.clone();
        for site in &mut grouped.sites {
            let group = group_of(&site.devices);
            site.devices = vec![group; site.devices.len() / members.max(1) as usize];
        }
        let is_empty = grouped.sites.iter().all(|site| site.devices.is_empty());
        if is_empty { Err(TopologyError::Empty) } else { Ok(grouped) }
    }
}

/// Rows of devices by rank as rows of the tensor groups that they make, of so many each, in [`Topology::in_groups`]. All groups of a site are alike, so it does not matter which of them is meant.
#[must_use]
pub fn in_place_of_groups(rows: &[Vec<DeviceId>], members: u32) -> Vec<Vec<DeviceId>> {
    let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
    let mut group_at = |site: usize| {
        let next = taken.entry(site).or_insert(0);
        *next += 1;
        DeviceId { site, device: *next - 1 }
    };
    let groups = |row: &Vec<DeviceId>| -> Vec<DeviceId> {
        row.chunks(members.max(1) as usize).map(|group| group_at(group[0].site)).collect()
    };
    rows.iter().map(groups).collect()
}

/// A device no faster than any of these, with no more of any memory. Where only some are GPUs it counts as none, with the least of any memory present: a machine needs
/// more than a GPU or its host.
fn group_of(devices: &[Device]) -> Device {
    let flops_per_s = devices.iter().map(|device| device.flops_per_s).fold(f64::INFINITY, f64::min);
    let least = least_of(devices.iter().copied());
    let is_finite = |memory: Memory| least[memory].is_finite();
    if is_finite(Memory::Gpu) && !is_finite(Memory::Machine) {
        return Device { flops_per_s, memory_bytes: least.gpu, host_memory_bytes: Some(least.host) };
    }
    let memory_bytes = least.machine.min(least.gpu).min(least.host);
    Device { flops_per_s, memory_bytes, host_memory_bytes: None }
}
