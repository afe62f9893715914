//! Model of the path.

use std::time::{Duration, Instant};

use super::ack_aggregation::AckAggregation;
use super::bandwidth::Bandwidth;
use super::loss::LossMonitor;
use super::min_rtt::MinRtt;
use super::rate_sample::{RateSample, RateSampler};
use super::round::RoundCounter;

/// The estimates, updated by sends, acknowledgements and losses. It makes no decisions.
#[derive(Debug, Clone)]
pub(super) struct PathModel {
    pub(super) bandwidth: Bandwidth,
    pub(super) loss: LossMonitor,
    pub(super) min_rtt: MinRtt,
    sampler: RateSampler,
    rounds: RoundCounter,
    aggregation: AckAggregation,
    smoothed_rtt: Duration,
    batch_acked: u64,
    in_flight: u64,
}

/// Trust in a delivery rate measured over one round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Accept it: start-up must not lag behind.
    Quick,
    /// Accept it only if the last whole round confirms it: when the opposite direction drains its queue,
    /// acknowledgements arrive compressed, and a single round trip shows up to a quarter too much.
    Cautious,
}

/// One batch of acknowledgements, evaluated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    pub(super) sample: RateSample,
    pub(super) round_ended: bool,
}

impl PathModel {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            bandwidth: Bandwidth::new(),
            loss: LossMonitor::new(),
            min_rtt: MinRtt::new(now),
            sampler: RateSampler::new(now),
            rounds: RoundCounter::default(),
            aggregation: AckAggregation::new(),
            smoothed_rtt: Duration::ZERO,
            batch_acked: 0,
            in_flight: 0,
        }
    }

    pub(super) fn handle_sent(&mut self, now: Instant) {
        if self.sampler.handle_sent(now, self.smoothed_rtt) {
            self.rounds.forget_times();
        }
    }

    pub(super) fn handle_ack(&mut self, now: Instant, sent: Instant, bytes: u64, smoothed_rtt: Duration) {
        self.sampler.handle_ack(now, sent, bytes);
        self.loss.handle_delivered(bytes);
        self.batch_acked += bytes;
        self.smoothed_rtt = smoothed_rtt;
    }

    /// Ends a batch of acknowledgements; `None`: no measurement was possible.
    pub(super) fn finish_batch(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        judgement: Judgement,
    ) -> Option<Batch> {
        self.in_flight = in_flight;
        let acked = std::mem::take(&mut self.batch_acked);
        let mut sample = self.sampler.finish_batch(now, in_flight, app_limited)?;
        let delivered = self.sampler.delivered();
        let round_ended = self.rounds.handle_ack(now, sample.delivered_at_send, delivered);
        if judgement == Judgement::Cautious
            && let Some(rate) = self.rounds.delivery_rate(now, delivered)
        {
            sample.rate = sample.rate.min(rate);
        }
        self.min_rtt.handle_sample(now, sample.rtt);
        self.bandwidth.handle_sample(&sample);
        self.aggregation.handle_ack(now, acked, self.bandwidth.rate());
        Some(Batch { sample, round_ended })
    }

    /// Starts a new round; call it last, after the ended round has been judged.
    pub(super) fn start_round(&mut self, learn_loss: bool) {
        self.bandwidth.handle_round();
        self.aggregation.handle_round();
        self.loss.finish_round(learn_loss);
    }

    /// Returns the bytes in flight after the last batch.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Returns the bytes that fill the pipe: rate × smallest round trip.
    pub(super) fn pipe_bytes(&self) -> f64 {
        self.bandwidth.rate() * self.min_rtt.get().unwrap_or_default().as_secs_f64()
    }

    /// Returns the bytes in flight for a rate of `gain` times the estimate, at the current round trip.
    pub(super) fn bytes_for_gain(&self, gain: f64) -> f64 {
        gain * self.bandwidth.rate() * self.smoothed_rtt.as_secs_f64()
    }

    /// Returns the bursts of acknowledgements.
    pub(super) fn aggregation(&self) -> &AckAggregation {
        &self.aggregation
    }
}
