//! The congestion controller for quinn.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics};
use quinn_proto::RttEstimator;

use super::cycle::{Cycle, Phase, View};
use super::full_pipe::FullPipe;
use super::loss::Bound;
use super::model::{Judgement, PathModel};

/// Window over pipe in start-up: doubles the rate each round (BBRv3's startup cwnd gain).
const STARTUP_GAIN: f64 = 2.0;
/// Rate over estimate while probing up (BBRv3).
const UP_GAIN: f64 = 1.25;
/// Rate over estimate between probes. At 1 the queue of an estimate 3 % too high would stay, since the window
/// follows the round trip; a little less drains it.
const CRUISE_GAIN: f64 = 0.95;
/// Rate over estimate while draining a probe's queue. BBRv3 has 0.9; our cycle is shorter, and one round at
/// 0.75 undoes one round at 1.25.
const DOWN_GAIN: f64 = 0.75;
/// Maximum window over pipe: permits the queue of the opposite direction, which delays acknowledgements, and
/// bounds our own queue (BBRv3's cwnd gain).
const PIPE_GAIN: f64 = 2.0;
/// Part of the pipe kept full while the round trip is measured (BBRv3's ProbeRTTCwndGain).
pub(super) const PROBE_RTT_FILL: f64 = 0.5;
/// Minimum remainder of the pipe in the long-term bound after congestion (BBRv3's Beta).
const BETA: f64 = 0.7;
/// Part of the long-term bound left to new flows between probes. BBRv3 leaves 0.15; with both directions full
/// that costs 2 % of the rate, and our probes every ten round trips yield capacity anyway.
const HEADROOM: f64 = 0.05;
/// Growth of the long-term bound in the first round of probing up without congestion; each further one
/// doubles it, up to [`CEILING_GROWTH_MAX`]. Gentle at first, so that probes do not overfill a shallow queue;
/// fast after that, for a path that became faster.
const CEILING_GROWTH_MIN: f64 = 0.02;
const CEILING_GROWTH_MAX: f64 = 0.25;
/// A long-term bound of this many pipes is ineffective and is dropped.
const CEILING_PIPES_MAX: f64 = 4.0;
/// Packets always permitted in flight: enough to detect losses without a timeout (BBRv3).
const WINDOW_PACKETS_MIN: f64 = 4.0;
/// Packets added to a rate's window, so that the rounding of delayed acknowledgements does not lower it.
const ACK_QUANTUM_PACKETS: f64 = 2.0;
/// Packets permitted beyond the window to test whether a silent path works again: as many as a QUIC probe has
/// (RFC 9002, section 6.2.4).
const GRANTED_PACKETS: u32 = 2;
/// The window meanwhile: larger than any other.
const NO_WINDOW: u64 = u64::MAX;

/// Makes a [`RateController`] per path.
#[derive(Debug, Clone)]
pub struct RateControllerConfig {
    /// Bytes in flight before the path is known.
    pub initial_window_bytes: u64,
}

impl ControllerFactory for RateControllerConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(RateController::new(&self, now, current_mtu))
    }
}

/// Delivery-rate based congestion control after BBRv3 (draft-ietf-ccwg-bbr), with the differences listed in
/// the module's documentation. quinn calls it; [`window`](Controller::window) is its only output.
#[derive(Debug, Clone)]
pub struct RateController {
    initial_window_bytes: u64,
    packet_bytes: u64,
    model: PathModel,
    cycle: Cycle,
    full_pipe: FullPipe,
    /// Bytes in flight that overfilled the path's queue at the last probe.
    ceiling: Option<f64>,
    ceiling_growth: f64,
    reacted_this_round: bool,
    window: f64,
    /// Packets permitted regardless of the bytes in flight. Clones share them.
    granted: Arc<AtomicU32>,
}

impl RateController {
    fn new(config: &RateControllerConfig, now: Instant, mtu: u16) -> Self {
        Self {
            initial_window_bytes: config.initial_window_bytes,
            packet_bytes: u64::from(mtu),
            model: PathModel::new(now),
            cycle: Cycle::new(now),
            full_pipe: FullPipe::default(),
            ceiling: None,
            ceiling_growth: CEILING_GROWTH_MIN,
            reacted_this_round: false,
            window: config.initial_window_bytes as f64,
            granted: Arc::default(),
        }
    }

    /// Permits two packets beyond the window, as no acknowledgements arrive.
    pub fn grant(&self) {
        self.granted.store(GRANTED_PACKETS, Ordering::Relaxed);
    }

    /// Returns the shortest recent round trip, without queues: 10 ms at least; `None` before the first
    /// sample.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.model.min_rtt.get()
    }

    /// Returns the largest delivery rate of the last probing cycles, in bytes per second. `None` before the
    /// path was full once: until then it only reflects the data offered.
    #[must_use]
    pub fn delivery_rate(&self) -> Option<f64> {
        (self.cycle.phase() != Phase::Startup).then(|| self.model.bandwidth.max())
    }

    fn handle_batch(&mut self, now: Instant, in_flight: u64, app_limited: bool) {
        let starting = self.cycle.phase() == Phase::Startup;
        let judgement = if starting { Judgement::Quick } else { Judgement::Cautious };
        let Some(batch) = self.model.finish_batch(now, in_flight, app_limited, judgement) else {
            return;
        };
        if starting && self.model.min_rtt.expired(now) {
            // A sender that has not filled the pipe for so long sends little and has no queue.
            self.model.min_rtt.renew(now);
        }
        let rate = self.model.bandwidth.max();
        let congested = self.is_congested();
        let view = View {
            now,
            round_ended: batch.round_ended,
            in_flight: in_flight as f64,
            pipe: self.drained_bytes(),
            rate,
            min_rtt: self.model.min_rtt.get().unwrap_or_default(),
            app_limited: batch.sample.app_limited,
            congested,
            pipe_full: starting
                && (congested
                    || (batch.round_ended && self.full_pipe.handle_round(rate, batch.sample.app_limited))),
            min_rtt_expired: self.model.min_rtt.expired(now),
        };
        if congested {
            self.react_to_congestion();
        }
        let left = self.cycle.phase();
        if let Some(entered) = self.cycle.handle_acks(&view) {
            self.handle_transition(&view, left, entered);
        }
        if batch.round_ended {
            self.finish_round(congested);
        }
        self.window = self.target_window();
    }

    fn handle_transition(&mut self, view: &View, left: Phase, entered: Phase) {
        match (left, entered) {
            (_, Phase::Refill) => self.model.bandwidth.reset_short_term(),
            (Phase::Up, Phase::Down) if !view.app_limited => self.model.bandwidth.advance_cycle(),
            _ => {}
        }
        if entered == Phase::ProbeRtt {
            self.model.min_rtt.start_probe();
        } else if left == Phase::ProbeRtt {
            self.model.min_rtt.finish_probe(view.now);
        }
    }

    fn finish_round(&mut self, congested: bool) {
        let phase = self.cycle.phase();
        if phase == Phase::Up && !congested {
            let idle = CEILING_PIPES_MAX * self.model.pipe_bytes();
            let grown = self.ceiling.map(|ceiling| ceiling * (1.0 + self.ceiling_growth));
            self.ceiling = grown.filter(|ceiling| *ceiling < idle);
            self.ceiling_growth = (2.0 * self.ceiling_growth).min(CEILING_GROWTH_MAX);
        }
        let undisturbed = matches!(phase, Phase::Cruise | Phase::Refill) && !congested;
        self.model.start_round(undisturbed);
        self.reacted_this_round = false;
    }

    fn is_congested(&self) -> bool {
        let loss = &self.model.loss;
        match self.cycle.phase() {
            Phase::Startup | Phase::Drain => loss.is_excessive(self.packet_bytes, Bound::Unknown),
            _ => loss.congestion_marked() || loss.is_excessive(self.packet_bytes, Bound::Learnt),
        }
    }

    /// Reacts once per round: a probe's loss shows the capacity of the path; other loss shows a lower rate.
    fn react_to_congestion(&mut self) {
        if std::mem::replace(&mut self.reacted_this_round, true) {
            return;
        }
        match self.cycle.phase() {
            // Losses in `Down` were sent by the preceding probe.
            Phase::Startup | Phase::Refill | Phase::Up | Phase::Down => {
                let pipe = self.model.pipe_bytes();
                self.ceiling_growth = CEILING_GROWTH_MIN;
                self.ceiling = Some((self.model.in_flight() as f64).max(pipe * BETA));
            }
            Phase::Cruise => self.model.bandwidth.reduce(),
            Phase::Drain | Phase::ProbeRtt => {}
        }
    }

    /// Returns the bytes in flight that leave no queue of ours.
    fn drained_bytes(&self) -> f64 {
        self.model.pipe_bytes().min(self.ceiling_with_headroom())
    }

    fn ceiling_with_headroom(&self) -> f64 {
        self.ceiling.map_or(f64::INFINITY, |ceiling| ceiling * (1.0 - HEADROOM))
    }

    fn target_window(&self) -> f64 {
        let model = &self.model;
        let packet = self.packet_bytes as f64;
        let pipe = model.pipe_bytes();
        let at_rate = |gain: f64| {
            let wanted = model.bytes_for_gain(gain) + ACK_QUANTUM_PACKETS * packet;
            wanted.min(PIPE_GAIN.max(gain * PIPE_GAIN) * pipe + model.aggregation().largest_burst())
        };
        let pipe_with_bursts = pipe + model.aggregation().usual_burst();
        let steady = at_rate(CRUISE_GAIN).max(pipe_with_bursts);
        let ceiling = self.ceiling.unwrap_or(f64::INFINITY);
        let window = match self.cycle.phase() {
            Phase::Startup => self.window.max(STARTUP_GAIN * pipe + model.aggregation().largest_burst()),
            Phase::Drain => pipe,
            Phase::Cruise => steady.min(self.ceiling_with_headroom()),
            Phase::Refill => steady.min(ceiling),
            Phase::Up => at_rate(UP_GAIN).min(ceiling),
            Phase::Down => at_rate(DOWN_GAIN).min(self.ceiling_with_headroom()),
            Phase::ProbeRtt => pipe * PROBE_RTT_FILL,
        };
        window.max(WINDOW_PACKETS_MIN * packet)
    }
}

impl Controller for RateController {
    fn on_sent(&mut self, now: Instant, _bytes: u64, _last_packet_number: u64) {
        self.model.handle_sent(now);
        // Only one thread sends; a grant that is lost here is followed by another soon.
        let left = self.granted.load(Ordering::Relaxed).saturating_sub(1);
        self.granted.store(left, Ordering::Relaxed);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, _app_limited: bool, rtt: &RttEstimator) {
        self.model.handle_ack(now, sent, bytes, rtt.get());
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        _largest_packet_num_acked: Option<u64>,
    ) {
        self.granted.store(0, Ordering::Relaxed);
        self.handle_batch(now, in_flight, app_limited);
    }

    fn on_congestion_event(
        &mut self,
        _now: Instant,
        _sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.model.loss.handle_lost(lost_bytes);
        if is_persistent_congestion {
            self.model.bandwidth.reduce();
            self.window = self.target_window();
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.packet_bytes = u64::from(new_mtu);
    }

    fn window(&self) -> u64 {
        if self.granted.load(Ordering::Relaxed) > 0 { NO_WINDOW } else { self.window as u64 }
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics.pacing_rate = Some((self.model.bandwidth.rate() * 8.0) as u64);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.initial_window_bytes
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "an arbitrary origin of virtual time")]
mod tests {
    use super::*;

    #[test]
    fn a_grant_lets_two_packets_by_and_ends_with_an_acknowledgement() {
        let (now, initial_window_bytes) = (Instant::now(), 100_000);
        let mut controller = Arc::new(RateControllerConfig { initial_window_bytes }).build(now, 1200);
        // quinn returns a copy of the controller on request.
        let copy = controller.clone_box().into_any().downcast::<RateController>().unwrap();
        copy.grant();
        for packet in 0..2 {
            assert_eq!(controller.window(), NO_WINDOW, "packet {packet}");
            controller.on_sent(now, 1200, packet);
        }
        assert_eq!(controller.window(), initial_window_bytes);
        copy.grant();
        controller.on_end_acks(now, 0, true, None);
        assert_eq!(controller.window(), initial_window_bytes);
    }
}
