//! The sender's phase of probing (draft-ietf-ccwg-bbr, "State Machine").
//!
//! ```text
//! Startup ─ pipe full ─▶ Drain ─▶ Cruise ─▶ Refill ─▶ Up ─▶ Down ─▶ Cruise …
//!                                    ▲                              │
//!                                    └── ProbeRtt ◀─ no smallest round trip for 10 s
//! ```
//!
//! Cycles are short and counted in round trips, not in BBRv3's 2–3 s: our traffic comes in bursts of a few
//! seconds, and each cycle moves unequal flows towards equal shares.

use std::time::{Duration, Instant};

/// Round trips of cruising between two probes: [`CRUISE_RTTS_MIN`] and up to [`CRUISE_RTTS_SPREAD`] more, so
/// that flows do not probe in step. A shorter cruise probes, and queues, more often. A longer one lets an
/// overestimate of 2–3 % build a queue, and keeps an outdated rate.
const CRUISE_RTTS_MIN: u32 = 4;
const CRUISE_RTTS_SPREAD: u32 = 4;
/// Minimum round trip for counting cruise time: on a LAN, scheduling noise outlasts many round trips.
const CRUISE_RTT_MIN: Duration = Duration::from_millis(5);
/// Probing up ends once it has filled the pipe by this factor.
const UP_FILL: f64 = 1.25;
/// A round of probing up that raises the rate by this factor is repeated.
const UP_GROWTH: f64 = 1.1;
/// Round trips after which a phase ends in any case, even if the queue lengthens rounds: the estimate behind
/// its target may be stale after the path's rate fell.
const PHASE_RTTS_MAX: u32 = 3;
/// Time for which the pipe stays half empty to measure the round trip (BBRv3's ProbeRTTDuration).
const PROBE_RTT: Duration = Duration::from_millis(200);

/// Phase of the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Doubles the window each round until the rate stops growing.
    Startup,
    /// Drains the queue of start-up.
    Drain,
    /// Sends at the estimated rate.
    Cruise,
    /// Fills the pipe for a round, so that losses while probing are due to the probe.
    Refill,
    /// Sends faster than estimated, to test whether the path carries it.
    Up,
    /// Drains the queue of the probe.
    Down,
    /// Keeps the pipe half empty to measure the round trip without a queue.
    ProbeRtt,
}

/// State of the path after a batch of acknowledgements.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub(super) now: Instant,
    pub(super) round_ended: bool,
    pub(super) in_flight: f64,
    /// Bytes that fill the pipe: rate × smallest round trip.
    pub(super) pipe: f64,
    /// The estimated rate, bytes/s.
    pub(super) rate: f64,
    pub(super) min_rtt: Duration,
    pub(super) app_limited: bool,
    /// This round lost more than chance explains.
    pub(super) congested: bool,
    /// The rate stopped growing in start-up.
    pub(super) pipe_full: bool,
    pub(super) min_rtt_expired: bool,
}

/// The state machine. It takes a [`View`] after each batch and returns the phase it enters, if any.
#[derive(Debug, Clone)]
pub(super) struct Cycle {
    phase: Phase,
    entered: Instant,
    cruise_rtts: u32,
    probes: u64,
    rate_at_round: f64,
    drained: Option<Instant>,
}

impl Cycle {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            phase: Phase::Startup,
            entered: now,
            cruise_rtts: CRUISE_RTTS_MIN,
            probes: 0,
            rate_at_round: 0.0,
            drained: None,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the phase entered, if any.
    pub(super) fn handle_acks(&mut self, view: &View) -> Option<Phase> {
        let next = self.next_phase(view)?;
        self.phase = next;
        self.entered = view.now;
        self.drained = None;
        match next {
            Phase::Cruise => self.draw_cruise_length(view.now),
            Phase::Up => {
                self.probes += 1;
                self.rate_at_round = view.rate;
            }
            _ => {}
        }
        Some(next)
    }

    fn next_phase(&mut self, view: &View) -> Option<Phase> {
        if view.min_rtt_expired && !matches!(self.phase, Phase::Startup | Phase::Drain | Phase::ProbeRtt) {
            return Some(Phase::ProbeRtt);
        }
        let elapsed = view.now.saturating_duration_since(self.entered);
        let too_long = elapsed >= view.min_rtt * PHASE_RTTS_MAX;
        match self.phase {
            Phase::Startup => view.pipe_full.then_some(Phase::Drain),
            Phase::Drain | Phase::Down => (view.in_flight <= view.pipe || too_long).then_some(Phase::Cruise),
            Phase::Cruise => {
                let due = elapsed >= view.min_rtt.max(CRUISE_RTT_MIN) * self.cruise_rtts;
                (due && !view.app_limited).then_some(Phase::Refill)
            }
            Phase::Refill => (view.round_ended || too_long).then_some(Phase::Up),
            Phase::Up => self.up_is_over(view, elapsed, too_long).then_some(Phase::Down),
            Phase::ProbeRtt => self.round_trip_is_measured(view).then_some(Phase::Cruise),
        }
    }

    /// Whether Up is over: the pipe accepts no more, as the queue is filled as planned and the rate did not
    /// follow.
    fn up_is_over(&mut self, view: &View, elapsed: Duration, too_long: bool) -> bool {
        if view.congested {
            return true;
        }
        if view.round_ended && view.rate > self.rate_at_round * UP_GROWTH {
            self.rate_at_round = view.rate;
            self.entered = view.now;
            return false;
        }
        too_long || (elapsed >= view.min_rtt && view.in_flight >= view.pipe * UP_FILL)
    }

    fn round_trip_is_measured(&mut self, view: &View) -> bool {
        if self.drained.is_none() && view.in_flight <= view.pipe * super::rate_controller::PROBE_RTT_FILL {
            self.drained = Some(view.now);
        }
        let long_enough = PROBE_RTT.max(view.min_rtt);
        self.drained.is_some_and(|since| view.now.saturating_duration_since(since) >= long_enough)
    }

    /// Draws a different length each time, from the phase's own history: flows that started apart stay apart,
    /// and a replay sees the same lengths.
    fn draw_cruise_length(&mut self, now: Instant) {
        let seed = self.probes ^ u64::from(now.saturating_duration_since(self.entered).subsec_nanos());
        let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.cruise_rtts = CRUISE_RTTS_MIN + (mixed as u32) % (CRUISE_RTTS_SPREAD + 1);
    }
}
