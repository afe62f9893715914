//! What a link has done so far.

use serde::Serialize;

/// Packets and their bytes, IP headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Number of packets.
    pub packets: u64,
    /// Their lengths' sum.
    pub bytes: u64,
}

impl Count {
    pub(super) fn add(&mut self, len: u64) {
        self.packets += 1;
        self.bytes += len;
    }
}

/// The counters of one link since it was made. `offered` is the sum of all the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkStats {
    /// What senders handed to the link.
    pub offered: Count,
    /// What arrives at the other end; counted when it is accepted, so up to a queue and a delay early.
    pub delivered: Count,
    /// Lost on the wire, after it took its time there.
    pub lost: Count,
    /// Dropped because the queue was full.
    pub queue_dropped: Count,
    /// Dropped because the link was partitioned.
    pub partition_dropped: Count,
    /// Dropped because it was longer than the MTU.
    pub oversize_dropped: Count,
}
