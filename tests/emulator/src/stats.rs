//! Counters of a link.

use serde::Serialize;

/// Packets and their bytes, IP headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Number of packets.
    pub packets: u64,
    /// Sum of their lengths.
    pub bytes: u64,
}

impl Count {
    pub(super) fn add(&mut self, len: u64) {
        self.packets += 1;
        self.bytes += len;
    }
}

/// The counters of one link since its creation. `offered` is the sum of all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkStats {
    /// Packets from senders.
    pub offered: Count,
    /// Packets that arrive at the other end; counted on acceptance, so up to a queue and a delay early.
    pub delivered: Count,
    /// Lost on the wire, after occupying it.
    pub lost: Count,
    /// Dropped by the full queue.
    pub queue_dropped: Count,
    /// Dropped by the partition.
    pub partition_dropped: Count,
    /// Longer than the MTU.
    pub oversize_dropped: Count,
}
