//! Speed of a run, from heartbeats and round reports.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use longhaul_common::id::{Round, SiteId, WorkerId};
use longhaul_proto::control::message::{Heartbeat, RoundReport};
use serde::{Deserialize, Serialize};

/// Window over which speeds are measured.
const METER_WINDOW: Duration = Duration::from_secs(10);
/// Heartbeats kept per window: three times as many as an honest worker sends.
const METER_HEARTBEATS_MAX: usize = 64;
/// Most rounds collected at once; the summaries do not wait for a member that lags further.
const OPEN_SUMMARIES_MAX: usize = 64;

/// Work of one or more processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Tokens of processed samples.
    pub tokens: u64,
    /// Of these, tokens of samples selected for backward passes.
    pub selected_tokens: u64,
    /// Bytes sent to other sites.
    pub wan_bytes: u64,
    /// Bytes that the same rounds would take as dense f32.
    pub dense_bytes: u64,
    /// Bytes of training data fetched from workers of other sites.
    pub data_wan_bytes: u64,
    /// Bytes of training data fetched from workers of the own site.
    pub data_lan_bytes: u64,
    /// Device seconds in forward, backward and optimiser.
    pub compute_s: f64,
    /// Device seconds of waiting for the network.
    pub wait_s: f64,
    /// Device seconds of waiting for training data.
    pub data_wait_s: f64,
    /// Device seconds without training because of checkpoints.
    pub checkpoint_s: f64,
    /// Seconds of encoding or decoding updates, beside any device work.
    pub encode_s: f64,
    /// Device seconds of waiting for results meanwhile: part of `wait_s`.
    pub encode_wait_s: f64,
    /// Device seconds in bubbles of pipelines: part of `wait_s`.
    pub bubble_s: f64,
}

impl Totals {
    /// Returns the totals of a heartbeat.
    #[must_use]
    pub fn of(heartbeat: &Heartbeat) -> Self {
        Self {
            tokens: heartbeat.tokens,
            selected_tokens: heartbeat.selected_tokens,
            wan_bytes: heartbeat.traffic.wan_sent_bytes,
            dense_bytes: heartbeat.traffic.dense_bytes,
            data_wan_bytes: heartbeat.traffic.data_wan_bytes,
            data_lan_bytes: heartbeat.traffic.data_lan_bytes,
            compute_s: heartbeat.time.compute_s,
            wait_s: heartbeat.time.wait_s,
            data_wait_s: heartbeat.time.data_wait_s,
            checkpoint_s: heartbeat.time.checkpoint_s,
            encode_s: heartbeat.time.encode_s,
            encode_wait_s: heartbeat.time.encode_wait_s,
            bubble_s: heartbeat.time.bubble_s,
        }
    }

    /// Returns the sum of two.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            selected_tokens: self.selected_tokens.saturating_add(other.selected_tokens),
            wan_bytes: self.wan_bytes.saturating_add(other.wan_bytes),
            dense_bytes: self.dense_bytes.saturating_add(other.dense_bytes),
            data_wan_bytes: self.data_wan_bytes.saturating_add(other.data_wan_bytes),
            data_lan_bytes: self.data_lan_bytes.saturating_add(other.data_lan_bytes),
            compute_s: self.compute_s + other.compute_s,
            wait_s: self.wait_s + other.wait_s,
            data_wait_s: self.data_wait_s + other.data_wait_s,
            checkpoint_s: self.checkpoint_s + other.checkpoint_s,
            encode_s: self.encode_s + other.encode_s,
            encode_wait_s: self.encode_wait_s + other.encode_wait_s,
            bubble_s: self.bubble_s + other.bubble_s,
        }
    }

    /// Returns the work done after `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            tokens: self.tokens.saturating_sub(before.tokens),
            selected_tokens: self.selected_tokens.saturating_sub(before.selected_tokens),
            wan_bytes: self.wan_bytes.saturating_sub(before.wan_bytes),
            dense_bytes: self.dense_bytes.saturating_sub(before.dense_bytes),
            data_wan_bytes: self.data_wan_bytes.saturating_sub(before.data_wan_bytes),
            data_lan_bytes: self.data_lan_bytes.saturating_sub(before.data_lan_bytes),
            compute_s: (self.compute_s - before.compute_s).max(0.0),
            wait_s: (self.wait_s - before.wait_s).max(0.0),
            data_wait_s: (self.data_wait_s - before.data_wait_s).max(0.0),
            checkpoint_s: (self.checkpoint_s - before.checkpoint_s).max(0.0),
            encode_s: (self.encode_s - before.encode_s).max(0.0),
            encode_wait_s: (self.encode_wait_s - before.encode_wait_s).max(0.0),
            bubble_s: (self.bubble_s - before.bubble_s).max(0.0),
        }
    }

    /// Whether no counter is below `before`: the same counters, later.
    #[must_use]
    pub fn continues(&self, before: &Self) -> bool {
        self.tokens >= before.tokens
            && self.selected_tokens >= before.selected_tokens
            && self.wan_bytes >= before.wan_bytes
            && self.dense_bytes >= before.dense_bytes
            && self.data_wan_bytes >= before.data_wan_bytes
            && self.data_lan_bytes >= before.data_lan_bytes
            && self.compute_s >= before.compute_s
            && self.wait_s >= before.wait_s
            && self.data_wait_s >= before.data_wait_s
            && self.checkpoint_s >= before.checkpoint_s
            && self.encode_s >= before.encode_s
            && self.encode_wait_s >= before.encode_wait_s
            && self.bubble_s >= before.bubble_s
    }

    /// Σ compute / (Σ compute + Σ wait); `None`: no time yet.
    #[must_use]
    pub fn share_of_local_speed(&self) -> Option<f64> {
        let busy = self.compute_s + self.wait_s;
        (busy > 0.0).then(|| self.compute_s / busy)
    }

    /// Share of tokens whose samples were selected for backward passes; `None`: no tokens yet.
    #[must_use]
    pub fn selected_share(&self) -> Option<f64> {
        (self.tokens > 0).then(|| self.selected_tokens as f64 / self.tokens as f64)
    }

    /// Share of checkpoint stalls in the time of computing, waiting and stalls; `None`: no time yet.
    #[must_use]
    pub fn checkpoint_stall_share(&self) -> Option<f64> {
        self.share(self.checkpoint_s)
    }

    /// Share of waiting for training data in that time.
    #[must_use]
    pub fn data_wait_share(&self) -> Option<f64> {
        self.share(self.data_wait_s)
    }

    /// Share of waiting for results while the same worker encoded or decoded updates.
    #[must_use]
    pub fn encode_wait_share(&self) -> Option<f64> {
        self.share(self.encode_wait_s)
    }

    /// Share of pipeline bubbles.
    #[must_use]
    pub fn bubble_share(&self) -> Option<f64> {
        self.share(self.bubble_s)
    }

    fn share(&self, seconds: f64) -> Option<f64> {
        let all = self.compute_s + self.wait_s + self.data_wait_s + self.checkpoint_s;
        (all > 0.0).then(|| seconds / all)
    }
}

/// Recent heartbeats of one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meter {
    window: VecDeque<(Duration, Heartbeat)>,
}

impl Meter {
    /// Adds a heartbeat.
    pub fn push(&mut self, now: Duration, heartbeat: Heartbeat) {
        self.window.push_back((now, heartbeat));
        // The oldest one kept is as old as the window, or a little older.
        let is_long = |window: &VecDeque<(Duration, Heartbeat)>| {
            window.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= METER_WINDOW)
        };
        while is_long(&self.window) || self.window.len() > METER_HEARTBEATS_MAX {
            self.window.pop_front();
        }
    }

    /// Returns the newest heartbeat.
    #[must_use]
    pub fn latest(&self) -> Option<&Heartbeat> {
        self.window.back().map(|(_, heartbeat)| heartbeat)
    }

    /// Seconds and work over the window.
    #[must_use]
    pub fn recent(&self) -> Option<(f64, Totals)> {
        let ((start, first), (end, last)) = (self.window.front()?, self.window.back()?);
        let seconds = end.saturating_sub(*start).as_secs_f64();
        let done = Totals::of(last).since(&Totals::of(first));
        (seconds > 0.0).then_some((seconds, done))
    }

    /// Steps of the run and work over the window; `None`: no step has ended.
    #[must_use]
    pub fn recent_steps(&self) -> Option<(u64, Totals)> {
        let ((_, first), (_, last)) = (self.window.front()?, self.window.back()?);
        let steps = last.step.checked_sub(first.step).filter(|steps| *steps > 0)?;
        Some((steps, Totals::of(last).since(&Totals::of(first))))
    }

    /// Steps of the run per second.
    #[must_use]
    pub fn steps_per_s(&self) -> Option<f64> {
        let (seconds, _) = self.recent()?;
        let (first, last) = (&self.window.front()?.1, &self.window.back()?.1);
        Some(last.step.saturating_sub(first.step) as f64 / seconds)
    }
}

/// Summary of a round over all members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundSummary {
    /// The round.
    pub round: Round,
    /// Mean training loss, weighted by samples, nats a token.
    pub loss: Option<f32>,
    /// Root mean square, over the members and their steps, of the L2 norm of a member's own gradient before clipping. Of a model in parts, that of all parts.
    pub gradient_norm: Option<f32>,
    /// Mean over the members that evaluated it, nats a token, or an image.
    pub validation_loss: Option<f32>,
    /// Mean share of correctly classified held-out images over the members that evaluated it; none for text.
    pub validation_accuracy: Option<f32>,
    /// Samples trained on.
    pub samples: u64,
    /// Learning rate of its last step, by the length that the run had then: an extension changes later rounds alone.
    pub learning_rate: f64,
    /// Sites with a contribution in every fragment's result, of at least one part of the model.
    pub sites: Vec<SiteId>,
    /// The same for each part, by rank.
    #[serde(skip)]
    pub sites_by_rank: BTreeMap<u32, BTreeSet<SiteId>>,
    /// Largest backlog of error feedback, in exchanges' changes, approximately.
    pub residual_ratio: Option<f32>,
}

/// Round reports, until those of all members are in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summaries {
    open: BTreeMap<Round, BTreeMap<WorkerId, (u32, RoundReport)>>,
    /// Rounds before this one are summarised.
    next: Round,
    loss: Option<f32>,
    gradient_norm: Option<f32>,
    validation_loss: Option<f32>,
    validation_accuracy: Option<f32>,
    residual_ratio: Option<f32>,
}

impl Summaries {
    /// Adds a report of a holder of the part of `rank`; one of a summarised round is too late.
    pub fn push(&mut self, worker: WorkerId, rank: u32, report: &RoundReport) {
        if report.round >= self.next {
            self.open.entry(report.round).or_default().insert(worker, (rank, report.clone()));
        }
    }

    /// Drops a worker's reports: its state differs from the others'.
    pub fn forget(&mut self, worker: WorkerId) {
        self.retain(|_, of, _| of != worker);
    }

    /// Reopens rounds from `open` on: all holders of the part of `rank` repeat them, as no worker that had applied them
    /// is left.
    pub fn reopen(&mut self, open: Round, rank: u32) {
        self.retain(|round, _, of| round < open || of != rank);
    }

    fn retain(&mut self, keeps: impl Fn(Round, WorkerId, u32) -> bool) {
        for (&round, reports) in &mut self.open {
            reports.retain(|&worker, (rank, _)| keeps(round, worker, *rank));
        }
        self.open.retain(|_, reports| !reports.is_empty());
    }

    /// Whether too many rounds are open.
    #[must_use]
    pub fn are_too_many(&self) -> bool {
        self.open.len() > OPEN_SUMMARIES_MAX
    }

    /// Takes the summaries of rounds before `through`, in order, and of older open ones beyond the limit.
    pub fn take_through(&mut self, through: Round) -> Vec<RoundSummary> {
        let mut done = Vec::new();
        while let Some(entry) = self.open.first_entry() {
            let round = *entry.key();
            if round >= through && self.open.len() <= OPEN_SUMMARIES_MAX {
                break;
            }
            let Some((round, reports)) = self.open.pop_first() else { break };
            let mut sites_by_rank: BTreeMap<u32, BTreeSet<SiteId>> = BTreeMap::new();
            for (rank, report) in reports.values() {
                sites_by_rank.entry(*rank).or_default().extend(&report.sites);
            }
            let summary = RoundSummary {
                sites_by_rank,
                gradient_norm: gradient_norm(reports.values()),
                ..summarise(round, reports.values().map(|(_, report)| report))
            };
            self.next = round.next();
            self.validation_loss = summary.validation_loss.or(self.validation_loss);
            self.validation_accuracy = summary.validation_accuracy.or(self.validation_accuracy);
            self.loss = summary.loss.or(self.loss);
            self.gradient_norm = summary.gradient_norm.or(self.gradient_norm);
            self.residual_ratio = summary.residual_ratio.or(self.residual_ratio);
            done.push(summary);
        }
        done
    }

    /// Training loss of the newest round with training.
    #[must_use]
    pub fn loss(&self) -> Option<f32> {
        self.loss
    }

    /// Gradient norm of the newest round that reports one ([`RoundSummary::gradient_norm`]).
    #[must_use]
    pub fn gradient_norm(&self) -> Option<f32> {
        self.gradient_norm
    }

    /// The newest validation loss.
    #[must_use]
    pub fn validation_loss(&self) -> Option<f32> {
        self.validation_loss
    }

    /// The newest share of correctly classified held-out images.
    #[must_use]
    pub fn validation_accuracy(&self) -> Option<f32> {
        self.validation_accuracy
    }

    /// The newest backlog of error feedback ([`RoundSummary::residual_ratio`]).
    #[must_use]
    pub fn residual_ratio(&self) -> Option<f32> {
        self.residual_ratio
    }

    /// Records the evaluation of the final state: the means over members count.
    pub fn evaluated(&mut self, losses: impl Iterator<Item = f32>, accuracies: impl Iterator<Item = f32>) {
        self.validation_loss = mean(losses).or(self.validation_loss);
        self.validation_accuracy = mean(accuracies).or(self.validation_accuracy);
    }

    /// Goes back to the state before `round`.
    pub fn cut_back(&mut self, round: Round) {
        self.open.clear();
        self.next = round;
    }
}

/// Returns the mean; `None` of no values.
fn mean(values: impl Iterator<Item = f32>) -> Option<f32> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + f64::from(value), count + 1));
    (count > 0).then(|| (sum / f64::from(count)) as f32)
}

/// Returns a reported share; `None`: out of range.
pub(crate) fn share(told: Option<f32>) -> Option<f32> {
    told.filter(|share| (0.0..=1.0).contains(share))
}

/// [`RoundSummary::gradient_norm`] of members with their parts. Squares of norms add up over the parts, and so do their means; `None` where a part has no report.
fn gradient_norm<'a>(reports: impl Iterator<Item = &'a (u32, RoundReport)>) -> Option<f32> {
    let mut squares: BTreeMap<u32, (f64, u32)> = BTreeMap::new();
    for (rank, report) in reports {
        let (sum, count) = squares.entry(*rank).or_default();
        if let Some(norm) = report.gradient_norm.filter(|norm| norm.is_finite()) {
            (*sum, *count) = (*sum + f64::from(norm).powi(2), *count + 1);
        }
    }
    let means = squares.into_values().map(|(sum, count)| (count > 0).then(|| sum / f64::from(count)));
    let norm = means.sum::<Option<f64>>()?.sqrt() as f32;
    norm.is_finite().then_some(norm)
}

fn summarise<'a>(round: Round, reports: impl Iterator<Item = &'a RoundReport> + Clone) -> RoundSummary {
    let finite = |value: Option<f32>| value.filter(|v| v.is_finite());
    let weighted = |weight: &dyn Fn(&RoundReport) -> f64, value: &dyn Fn(&RoundReport) -> Option<f32>| {
        let mut sum = (0.0, 0.0);
        for report in reports.clone() {
            if let Some(value) = finite(value(report)) {
                sum = (sum.0 + weight(report) * f64::from(value), sum.1 + weight(report));
            }
        }
        (sum.1 > 0.0).then(|| (sum.0 / sum.1) as f32)
    };
    let mut sites: Vec<SiteId> = reports.clone().flat_map(|report| report.sites.iter().copied()).collect();
    sites.sort_unstable();
    sites.dedup();
    RoundSummary {
        round,
        loss: weighted(&|report| f64::from(report.samples), &|report| report.loss),
        validation_loss: weighted(&|_| 1.0, &|report| report.validation_loss),
        validation_accuracy: weighted(&|_| 1.0, &|report| share(report.validation_accuracy)),
        samples: reports.clone().map(|report| u64::from(report.samples)).sum(),
        learning_rate: 0.0,
        sites,
        sites_by_rank: BTreeMap::new(),
        gradient_norm: None,
        residual_ratio: reports.filter_map(|report| finite(report.residual_ratio)).reduce(f32::max),
    }
}

#[cfg(test)]
mod tests;
