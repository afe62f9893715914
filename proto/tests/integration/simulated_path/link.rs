//! One direction of a path: a rate, a drop-tail queue, a delay, random loss.

use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// UDP and IPv4 headers, which use part of the link.
const HEADER_BYTES: u64 = 28;

#[derive(Debug, Clone, Copy)]
pub struct LinkSpec {
    pub mbit_per_s: f64,
    pub delay: Duration,
    /// Drop-tail queue, as its drain time at the link's rate.
    pub queue: Duration,
    /// Share of packets lost at random.
    pub loss: f64,
    /// Packets arrive only at multiples of this, as behind a radio or a coalescing network card.
    pub batching: Duration,
}

impl LinkSpec {
    /// Creates a link with a queue of one round trip.
    pub fn new(mbit_per_s: f64, delay_ms: u64, loss_percent: f64) -> Self {
        Self {
            mbit_per_s,
            delay: Duration::from_millis(delay_ms),
            queue: Duration::from_millis(2 * delay_ms),
            loss: loss_percent / 100.0,
            batching: Duration::ZERO,
        }
    }

    pub fn queue(self, queue: Duration) -> Self {
        Self { queue, ..self }
    }

    pub fn batching(self, batching: Duration) -> Self {
        Self { batching, ..self }
    }

    pub fn bytes_per_s(&self) -> f64 {
        self.mbit_per_s * 1e6 / 8.0
    }
}

pub struct Link {
    spec: LinkSpec,
    rng: ChaCha8Rng,
    epoch: Instant,
    /// Departure of the last queued packet.
    busy_until: Instant,
    waits: Vec<(Instant, Duration)>,
    pub overflowed: u64,
    pub accepted: u64,
}

impl Link {
    pub fn new(spec: LinkSpec, epoch: Instant, seed: u64) -> Self {
        Self {
            spec,
            rng: ChaCha8Rng::seed_from_u64(seed),
            epoch,
            busy_until: epoch,
            waits: Vec::new(),
            overflowed: 0,
            accepted: 0,
        }
    }

    /// Returns the arrival of a packet handed in at `now`; `None`: lost.
    pub fn handle_packet(&mut self, now: Instant, bytes: usize) -> Option<Instant> {
        let wait = self.busy_until.saturating_duration_since(now);
        if wait > self.spec.queue {
            self.overflowed += 1;
            return None;
        }
        self.accepted += 1;
        self.waits.push((now, wait));
        let serialized = (bytes as u64 + HEADER_BYTES) as f64 / self.spec.bytes_per_s();
        self.busy_until = self.busy_until.max(now) + Duration::from_secs_f64(serialized);
        if self.rng.random_bool(self.spec.loss) {
            return None;
        }
        Some(round_up(self.epoch, self.busy_until + self.spec.delay, self.spec.batching))
    }

    /// Changes the link's rate; queued packets leave at the new rate.
    pub fn change_rate(&mut self, now: Instant, mbit_per_s: f64) {
        let backlog = self.busy_until.saturating_duration_since(now);
        let factor = self.spec.mbit_per_s / mbit_per_s;
        self.busy_until = now + backlog.mul_f64(factor);
        self.spec.queue = self.spec.queue.mul_f64(factor);
        self.spec.mbit_per_s = mbit_per_s;
    }

    /// Batches arrivals at multiples of `step` from now on.
    pub fn change_batching(&mut self, step: Duration) {
        self.spec.batching = step;
    }

    /// Returns the waiting time that the part `quantile` of packets sent since `from` did not exceed.
    pub fn wait_quantile(&self, from: Instant, quantile: f64) -> Duration {
        let mut waits: Vec<_> =
            self.waits.iter().filter(|(at, _)| *at >= from).map(|(_, wait)| *wait).collect();
        waits.sort_unstable();
        let index = ((waits.len().saturating_sub(1)) as f64 * quantile) as usize;
        waits.get(index).copied().unwrap_or_default()
    }
}

/// Returns the next multiple of `step` after `epoch`, not before `at`; `at` itself if the step is zero.
pub fn round_up(epoch: Instant, at: Instant, step: Duration) -> Instant {
    let step = step.as_nanos();
    if step == 0 {
        return at;
    }
    let since = at.saturating_duration_since(epoch).as_nanos();
    epoch + Duration::from_nanos((since.div_ceil(step) * step) as u64)
}
