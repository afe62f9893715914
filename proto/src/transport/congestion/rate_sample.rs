//! Delivery rate sampling (draft-ietf-ccwg-bbr, section "Delivery Rate Samples").

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Snapshots kept for packets in flight. One is taken per batch of acknowledgements, at most one per two
/// packets of a round trip: enough for 16,384 packets (20 MB) in flight. Beyond that the oldest is dropped,
/// which costs a sample.
const SNAPSHOTS_MAX: usize = 8192;

/// Delivery rate of the path over about one round trip, measured at the end of a batch of acknowledgements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RateSample {
    /// Bytes per second.
    pub(super) rate: f64,
    /// Bytes delivered in total when the newest acknowledged packet was sent.
    pub(super) delivered_at_send: u64,
    /// Time from sending to acknowledgement of the newest packet, including the receiver's delay.
    pub(super) rtt: Duration,
    /// The sender had too little to send, so the path may be faster.
    pub(super) app_limited: bool,
}

/// Delivery state when the packets from `from` on were sent.
#[derive(Debug, Clone, Copy)]
struct Snapshot {
    from: Instant,
    delivered: u64,
    delivered_at: Instant,
    first_sent: Instant,
    app_limited: bool,
}

/// Turns sends and acknowledgements into rate samples.
///
/// Order of calls: [`handle_sent`](Self::handle_sent) at each transmission; for each batch of
/// acknowledgements [`handle_ack`](Self::handle_ack) per packet, then [`finish_batch`](Self::finish_batch)
/// once.
#[derive(Debug, Clone)]
pub(super) struct RateSampler {
    snapshots: VecDeque<Snapshot>,
    delivered: u64,
    delivered_at: Instant,
    first_sent: Instant,
    /// Packets sent until this much is delivered belong to a phase without enough data.
    app_limited_until: u64,
    /// Nothing was in flight after the last batch.
    idle: bool,
    /// The state changed since the last snapshot.
    stale: bool,
    newest_sent: Option<Instant>,
}

impl RateSampler {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            snapshots: VecDeque::new(),
            delivered: 0,
            delivered_at: now,
            first_sent: now,
            app_limited_until: 0,
            idle: true,
            stale: true,
            newest_sent: None,
        }
    }

    /// Returns the bytes acknowledged since the connection began.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Records one or several datagrams sent at `now`. Idle time must not count as slow delivery; `rtt` is
    /// the idle time after which a send counts as a new start. Returns true if this send is one.
    pub(super) fn handle_sent(&mut self, now: Instant, rtt: Duration) -> bool {
        let restarts = self.idle && (self.stale || now.saturating_duration_since(self.first_sent) > rtt);
        if restarts {
            self.first_sent = now;
            self.delivered_at = now;
            self.snapshots.clear();
            self.stale = true;
        }
        if !std::mem::take(&mut self.stale) {
            return false;
        }
        if self.snapshots.len() == SNAPSHOTS_MAX {
            self.snapshots.pop_front();
        }
        self.snapshots.push_back(Snapshot {
            from: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
            app_limited: self.delivered < self.app_limited_until,
        });
        restarts
    }

    /// Records the acknowledgement of a packet of `bytes` sent at `sent`.
    pub(super) fn handle_ack(&mut self, now: Instant, sent: Instant, bytes: u64) {
        self.delivered += bytes;
        self.delivered_at = now;
        self.newest_sent = Some(self.newest_sent.map_or(sent, |newest| newest.max(sent)));
    }

    /// Ends a batch; `None`: it acknowledged no packet new enough for a measurement.
    pub(super) fn finish_batch(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
    ) -> Option<RateSample> {
        let newest = self.newest_sent.take();
        self.stale = true;
        self.idle = in_flight == 0;
        if app_limited {
            // At least one byte, so that packets after an empty pipe are marked as well.
            self.app_limited_until = self.delivered + in_flight.max(1);
        }
        let sent = newest?;
        let snapshot = self.take_snapshot(sent)?;
        self.first_sent = sent;

        let ack_elapsed = now.saturating_duration_since(snapshot.delivered_at);
        let send_elapsed = sent.saturating_duration_since(snapshot.first_sent);
        let interval = ack_elapsed.max(send_elapsed);
        if interval.is_zero() {
            return None;
        }
        Some(RateSample {
            rate: (self.delivered - snapshot.delivered) as f64 / interval.as_secs_f64(),
            delivered_at_send: snapshot.delivered,
            rtt: now.saturating_duration_since(sent),
            app_limited: snapshot.app_limited,
        })
    }

    /// Returns the snapshot in force at `sent`. Drops older ones: a packet older than the newest acknowledged
    /// one adds no information.
    fn take_snapshot(&mut self, sent: Instant) -> Option<Snapshot> {
        let later = self.snapshots.partition_point(|snapshot| snapshot.from <= sent);
        let current = later.checked_sub(1)?;
        self.snapshots.drain(..current);
        self.snapshots.front().copied()
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "an arbitrary origin of virtual time")]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(50);
    const PACKET_BYTES: u64 = 1_000;

    /// Sends a packet each `gap`, acknowledges each after [`RTT`]; returns the samples.
    fn paced(sampler: &mut RateSampler, start: Instant, gap: Duration, packets: u32) -> Vec<RateSample> {
        let mut samples = Vec::new();
        let (mut sent, mut acked) = (0, 0);
        while acked < packets {
            let next_send = start + gap * sent;
            let next_ack = start + gap * acked + RTT;
            if sent < packets && next_send <= next_ack {
                sampler.handle_sent(next_send, RTT);
                sent += 1;
            } else {
                sampler.handle_ack(next_ack, next_ack - RTT, PACKET_BYTES);
                acked += 1;
                let in_flight = u64::from(sent - acked) * PACKET_BYTES;
                samples.extend(sampler.finish_batch(next_ack, in_flight, false));
            }
        }
        samples
    }

    #[test]
    fn paced_sending_is_sampled_at_its_rate() {
        let start = Instant::now();
        let mut sampler = RateSampler::new(start);
        let samples = paced(&mut sampler, start, Duration::from_millis(1), 300);
        // 1,000 bytes each millisecond; samples from the second round trip on span a whole round trip.
        for sample in &samples[60..] {
            assert!((sample.rate / 1e6 - 1.0).abs() < 0.03, "{sample:?}");
            assert_eq!(sample.rtt, RTT);
            assert!(!sample.app_limited);
        }
    }

    #[test]
    fn time_without_traffic_does_not_lower_the_rate() {
        let start = Instant::now();
        let mut sampler = RateSampler::new(start);
        paced(&mut sampler, start, Duration::from_millis(1), 300);
        let later = start + Duration::from_secs(60);
        let samples = paced(&mut sampler, later, Duration::from_millis(1), 300);
        let largest = samples.iter().map(|sample| sample.rate).fold(0.0, f64::max);
        assert!((largest / 1e6 - 1.0).abs() < 0.03, "{largest}");
        assert!(samples[60..].iter().all(|sample| sample.rate > 0.95e6));
    }

    #[test]
    fn a_burst_of_acknowledgements_does_not_raise_the_rate() {
        let start = Instant::now();
        let mut sampler = RateSampler::new(start);
        paced(&mut sampler, start, Duration::from_millis(1), 300);
        // 100 packets over 100 ms, all acknowledged together at the end.
        let begin = start + Duration::from_millis(400);
        for packet in 0..100 {
            sampler.handle_sent(begin + Duration::from_millis(packet), RTT);
        }
        let end = begin + Duration::from_millis(100) + RTT;
        for packet in 0..100 {
            sampler.handle_ack(end, begin + Duration::from_millis(packet), PACKET_BYTES);
        }
        let sample = sampler.finish_batch(end, 0, false).expect("all were sent after the snapshot");
        assert!(sample.rate <= 1.02e6, "{sample:?}");
    }

    #[test]
    fn packets_sent_while_data_was_short_are_marked() {
        let start = Instant::now();
        let mut sampler = RateSampler::new(start);
        sampler.handle_sent(start, RTT);
        sampler.handle_ack(start + RTT, start, PACKET_BYTES);
        sampler.finish_batch(start + RTT, 0, true);
        let next = start + RTT * 2;
        sampler.handle_sent(next, RTT);
        sampler.handle_ack(next + RTT, next, PACKET_BYTES);
        let sample = sampler.finish_batch(next + RTT, 0, false).expect("one packet was acknowledged");
        assert!(sample.app_limited);
    }

    #[test]
    fn snapshots_stay_few_when_nothing_is_acknowledged() {
        let start = Instant::now();
        let mut sampler = RateSampler::new(start);
        for packet in 0..100_000 {
            sampler.handle_sent(start + Duration::from_micros(packet), RTT);
        }
        assert_eq!(sampler.snapshots.len(), 1);
    }
}
