//! The model of one direction of a link, in virtual time.

use std::time::Duration;

use rand::Rng;

use super::jitter::JitterProcess;
use super::loss::LossProcess;
use super::{LinkConfig, LinkStats};

const NANOS_PER_S: u128 = 1_000_000_000;

/// Fate of a packet offered to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It arrives at this time.
    DeliverAt(Duration),
    /// It never arrives.
    Dropped(DropReason),
}

/// Reason why a packet never arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The link is partitioned.
    Partition,
    /// The packet is longer than the MTU.
    Oversize,
    /// The drop-tail queue is full.
    QueueFull,
    /// The wire lost it.
    Loss,
}

/// One direction of a link: a drop-tail queue, a wire of a fixed rate or a token bucket, then a delay.
///
/// A packet's fate is decided when it is offered: [`LinkState::offer`] computes when the wire would be free,
/// so pacing needs no timer and its rate is exact, to the nanosecond, over any number of packets. Later
/// changes of the link affect later packets only. Times are relative to any fixed origin and never decrease
/// from call to call.
#[derive(Clone, Debug)]
pub struct LinkState {
    config: LinkConfig,
    partitioned: bool,
    /// Time at which the wire has sent the queue.
    wire_free_at: Duration,
    /// Rounding of `wire_free_at`, in nanoseconds divided by the rate.
    wire_free_remainder: u128,
    /// Arrival of the latest packet that was not reordered: later ones do not overtake it.
    last_arrival: Duration,
    loss: LossProcess,
    jitter: JitterProcess,
    stats: LinkStats,
}

impl LinkState {
    /// Creates an idle, healthy link.
    pub fn new(config: LinkConfig) -> Self {
        Self {
            config,
            partitioned: false,
            wire_free_at: Duration::ZERO,
            wire_free_remainder: 0,
            last_arrival: Duration::ZERO,
            loss: LossProcess::default(),
            jitter: JitterProcess::default(),
            stats: LinkStats::default(),
        }
    }

    /// Decides the fate of a packet of `len_bytes` (IP headers included) that reaches the link at `now`.
    pub fn offer<R: Rng + ?Sized>(&mut self, now: Duration, len_bytes: u64, rng: &mut R) -> Verdict {
        let verdict = self.decide(now, len_bytes, rng);
        self.stats.offered.add(len_bytes);
        let counter = match verdict {
            Verdict::DeliverAt(_) => &mut self.stats.delivered,
            Verdict::Dropped(DropReason::Partition) => &mut self.stats.partition_dropped,
            Verdict::Dropped(DropReason::Oversize) => &mut self.stats.oversize_dropped,
            Verdict::Dropped(DropReason::QueueFull) => &mut self.stats.queue_dropped,
            Verdict::Dropped(DropReason::Loss) => &mut self.stats.lost,
        };
        counter.add(len_bytes);
        verdict
    }

    /// Changes the link. Queued data keeps its size in bytes, so packets from now on wait for it at the new
    /// rate; accepted packets keep their arrival times and are not overtaken.
    pub fn reconfigure(&mut self, now: Duration, config: LinkConfig) {
        let waiting_bytes = self.waiting_bytes(now);
        self.wire_free_at = now;
        self.wire_free_remainder = 0;
        self.config = config;
        self.occupy_wire(waiting_bytes);
    }

    /// Drops all packets offered from now on, until [`LinkState::heal`].
    pub fn partition(&mut self) {
        self.partitioned = true;
    }

    /// Ends a partition.
    pub fn heal(&mut self) {
        self.partitioned = false;
    }

    /// Returns the current configuration.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Whether the link is partitioned.
    pub fn is_partitioned(&self) -> bool {
        self.partitioned
    }

    /// Returns the counters so far.
    pub fn stats(&self) -> LinkStats {
        self.stats
    }

    /// Returns the bytes not yet sent at `now`, including the packet being sent; with a bucket, also those
    /// forwarded that still count against it.
    pub fn waiting_bytes(&self, now: Duration) -> u64 {
        let nanos = self.wire_free_at.saturating_sub(now).as_nanos();
        let bytes = nanos * u128::from(self.config.rate_bytes_per_s) / NANOS_PER_S;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    fn decide<R: Rng + ?Sized>(&mut self, now: Duration, len_bytes: u64, rng: &mut R) -> Verdict {
        if self.partitioned {
            return Verdict::Dropped(DropReason::Partition);
        }
        if len_bytes > self.config.mtu_bytes {
            return Verdict::Dropped(DropReason::Oversize);
        }
        let queued_bytes = self.waiting_bytes(now).saturating_sub(self.config.burst_bytes);
        if queued_bytes > 0 && queued_bytes + len_bytes > self.config.queue_bytes() {
            return Verdict::Dropped(DropReason::QueueFull);
        }
        if self.wire_free_at < now {
            self.wire_free_at = now;
            self.wire_free_remainder = 0;
        }
        self.occupy_wire(len_bytes);
        if self.loss.loses(&self.config, rng) {
            return Verdict::Dropped(DropReason::Loss);
        }
        Verdict::DeliverAt(self.arrival(now, rng))
    }

    fn occupy_wire(&mut self, len_bytes: u64) {
        let rate = u128::from(self.config.rate_bytes_per_s);
        let scaled = u128::from(len_bytes) * NANOS_PER_S + self.wire_free_remainder;
        self.wire_free_remainder = scaled % rate;
        let nanos = u64::try_from(scaled / rate).unwrap_or(u64::MAX);
        self.wire_free_at = self.wire_free_at.saturating_add(Duration::from_nanos(nanos));
    }

    /// Time of the bucket's bytes at the link's rate.
    fn burst(&self) -> Duration {
        let nanos =
            u128::from(self.config.burst_bytes) * NANOS_PER_S / u128::from(self.config.rate_bytes_per_s);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn arrival<R: Rng + ?Sized>(&mut self, now: Duration, rng: &mut R) -> Duration {
        let departure = self.wire_free_at.saturating_sub(self.burst()).max(now);
        let extra = self.jitter.at(departure, self.config.jitter, rng);
        let arrival = (departure + self.config.delay + extra).max(self.last_arrival);
        if self.config.reorder > 0.0 && rng.random_bool(self.config.reorder) {
            return arrival + self.config.reorder_hold.mul_f64(1.0 - rng.random::<f64>());
        }
        self.last_arrival = arrival;
        arrival
    }
}

#[cfg(test)]
#[path = "link_state_tests.rs"]
mod tests;
