//! Bits that follow the link: a round's time decides the bits of the next one.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_common::config::{SyncConfig, ValueFormat};
use longhaul_common::id::Round;
use longhaul_common::plan::FragmentLayout;
use longhaul_common::schedule::RoundSchedule;
use longhaul_proto::codec::{CodecSpec, Selection, TopK};
use longhaul_proto::control::message::Measured;
use longhaul_proto::round::{Content, FragmentResult};

use super::layouts::Layouts;
use super::running::Running;
use crate::adapt::backlog::{BacklogFloor, Left};
use crate::adapt::ladder::{chain_for, int4_bits, two_bits};
use crate::adapt::rate::{RateBounds, RateController, RoundTiming};

/// The controller of an adaptive run, and the round under observation.
pub(super) struct Adaptation {
    controller: RateController,
    config: SyncConfig,
    layouts: Layouts,
    /// Steps of the run's early part.
    early_steps: u64,
    watched: Option<Watched>,
    /// Last complete round, and its bits per value.
    sent: Option<(Round, f64)>,
    /// Chain in effect, once set.
    chain: Option<CodecSpec>,
    /// Average time of the last few steps.
    step: Duration,
    /// Longest round trips to other sites, for the last [`ROUND_TRIPS_KEPT`] rounds: queueing above the shortest one is not latency.
    round_trips: VecDeque<Duration>,
    /// Idle cores during steps.
    spare_cores: f32,
    /// `None`: the backlog is unbounded.
    backlog: Option<BacklogFloor>,
}

struct Watched {
    round: Round,
    contributed_at: Duration,
    window: Duration,
    bits: f64,
    /// Of the chain in effect.
    own_bits: f64,
}

impl Adaptation {
    /// `None` if the configuration does not adapt.
    pub fn new(config: &SyncConfig, layouts: Layouts) -> Option<Self> {
        let bounds = RateBounds {
            target_utilisation: config.target_utilisation,
            bits_min: config.bits_min,
            bits_max: config.bits_max,
        };
        config.adapt.then(|| Self {
            controller: RateController::new(bounds, bits_at_first(config)),
            early_steps: early_steps(config, layouts.schedule()),
            config: config.clone(),
            layouts,
            watched: None,
            sent: None,
            chain: None,
            step: Duration::ZERO,
            round_trips: VecDeque::with_capacity(ROUND_TRIPS_KEPT),
            spare_cores: 0.0,
            backlog: BacklogFloor::new(config.backlog_max),
        })
    }

    /// Switches to other layouts of rounds.
    pub fn follow(&mut self, layouts: Layouts) {
        self.layouts = layouts;
    }

    /// Returns recent measurements.
    pub fn measured(&self) -> Option<Measured> {
        let bit_s = self.controller.bit_s()? as f32;
        let (step_s, round_trip_s) = (self.step.as_secs_f32(), self.round_trip().as_secs_f32());
        Some(Measured { step_s, round_trip_s, bit_s, spare_cores: self.spare_cores })
    }

    /// Puts the chain of the next round into effect; returns it if it changed.
    pub fn chain(&mut self, round: Round) -> Option<CodecSpec> {
        let bits = self.bits(round);
        let chain = match self.layouts.is_redundant(round) {
            // A value for comparison, which leaves nothing to error feedback.
            true => CodecSpec::new(Selection::All, ValueFormat::F32),
            false => chain_for(bits, self.config.chunk),
        };
        if self.chain.replace(chain) == Some(chain) {
            return None;
        }
        let (least, least_for) = self.least_bits(round);
        let keep =
            if let Selection::TopK(TopK { keep, .. }) = chain.selection { keep } else { self.config.chunk };
        tracing::info!(
            round = round.0, bits, bits_of_link = self.controller.bits(), bits_least = least, least_for, keep, of = self.config.chunk, values = %chain.values,
            "the encoding of updates changes"
        );
        Some(chain)
    }

    fn bits(&self, round: Round) -> f64 {
        let (least, _) = self.least_bits(round);
        self.controller.bits().max(least)
    }

    /// Returns the least bits per value, whatever the link carries, and the reason.
    fn least_bits(&self, round: Round) -> (f64, &'static str) {
        let (least, least_for) = match self.is_common(round) {
            true => (int4_bits(), "the warm-up"),
            false if self.layouts.schedule().step_of(round) < self.early_steps => {
                (two_bits(), "the run's early part")
            }
            false => (self.backlog.map_or(0.0, |floor| floor.bits()), "the backlog of error feedback"),
        };
        (self.config.bits_at_least(least, self.is_common(round)), least_for)
    }

    /// Takes in the backlog of a round, as a multiple of its addition.
    pub fn left(&mut self, round: Round, backlog: f32) {
        let is_common = self.is_common(round);
        let turns = f64::from(self.layouts.schedule().pace_in(round).groups.max(1));
        let Some((_, bits)) = self.sent.filter(|(of, _)| *of == round) else { return };
        if let Some(floor) = self.backlog.as_mut().filter(|_| !is_common) {
            floor.observe(Left { bits, backlog: f64::from(backlog), turns });
            let least = floor.bits();
            tracing::debug!(round = round.0, backlog, bits, least, "the backlog of error feedback");
        }
    }

    fn round_trip(&self) -> Duration {
        self.round_trips.iter().min().copied().unwrap_or_default()
    }

    fn is_common(&self, round: Round) -> bool {
        self.config.opens_with_gradients() && self.layouts.schedule().is_warmup(round)
    }

    /// Notes a contribution after steps of this average time, which left this many cores idle.
    pub fn contributed(&mut self, round: Round, now: Duration, step: Duration, spare_cores: f32) {
        let schedule = self.layouts.schedule();
        if !self.config.measures(round, schedule.is_warmup(round)) {
            // Traffic during a step takes cores from it.
            self.watched = None;
            return;
        }
        self.spare_cores = spare_cores;
        let known = if self.step.is_zero() { step } else { self.step };
        self.step = known.mul_f64(1.0 - STEP_WEIGHT) + step.mul_f64(STEP_WEIGHT);
        let steps = match self.is_common(round) {
            true => WARMUP_STEPS,
            false => {
                let until_next = schedule.steps_of(round.next()).count() as u64;
                schedule.pace_in(round).overlap.min(until_next) as u32
            }
        };
        let bits = self.bits(round);
        let own_bits = self.chain.map_or(bits, |chain| chain.bits_per_value());
        self.watched =
            Some(Watched { round, contributed_at: now, window: self.step * steps, bits, own_bits });
    }

    /// Notes a complete round with this many bits per value in its results; returns the chain of the next one if it changed.
    pub fn completed(
        &mut self,
        round: Round,
        bits: f64,
        now: Duration,
        round_trip: Duration,
    ) -> Option<CodecSpec> {
        if self.round_trips.len() == ROUND_TRIPS_KEPT {
            self.round_trips.pop_front();
        }
        self.round_trips.push_back(round_trip);
        let round_trip = self.round_trip();
        if let Some(watched) = self.watched.take_if(|watched| watched.round == round) {
            let (taken, window) = (now.saturating_sub(watched.contributed_at), watched.window);
            self.sent = Some((round, watched.bits));
            let changed = self.controller.observe(RoundTiming {
                bits,
                own_bits: watched.own_bits,
                share: self.layouts.share_of(round),
                taken,
                window,
                round_trip,
            });
            if let Some(wanted) = changed {
                tracing::info!(
                    round = round.0,
                    bits_before = bits,
                    bits = wanted,
                    taken_ms = taken.as_millis(),
                    window_ms = window.as_millis(),
                    round_trip_ms = round_trip.as_millis(),
                    "the bits per value follow the link"
                );
            }
        }
        self.chain(round.next())
    }
}

/// Returns the bits per value in the first round, before any measurement. Without a warm-up, what few bits leave out of the first changes would wait long.
fn bits_at_first(config: &SyncConfig) -> f64 {
    if config.has_warmup() { BITS_AT_FIRST } else { two_bits() }
}

/// Bits per value in the first round, before any measurement: a model of ten million parameters in a second over 1 Mbit/s.
const BITS_AT_FIRST: f64 = 0.1;

/// Weight of a new step: on a busy machine one step predicts little of the next.
const STEP_WEIGHT: f64 = 0.1;
/// Rounds whose shortest round trip counts: few, because the path may change, but more than a burst on the link lasts.
const ROUND_TRIPS_KEPT: usize = 16;

/// Steps that an exchange of a common warm-up may take: a young model needs exact gradients more than many. Two bits are too few for it on any link (decision
/// 0011).
const WARMUP_STEPS: u32 = 2;

/// Steps of the early part: in a short run, the warm-up is the better measure of a model's youth.
fn early_steps(config: &SyncConfig, schedule: &RoundSchedule) -> u64 {
    const WARMUPS: u64 = 3;
    if config.early_share == 0.0 {
        return 0;
    }
    let share = (config.early_share * schedule.steps as f64).ceil() as u64;
    share.max(WARMUPS.saturating_mul(schedule.warmup_rounds).saturating_mul(schedule.warmup_every))
}

/// Bits per value in the non-empty results of a round, averaged over owners, which send as they contribute. The traffic of all members decides a round's
/// time.
pub(super) fn bits_in(results: &[FragmentResult], layout: FragmentLayout) -> f64 {
    let (mut bytes, mut values) = (0.0, 0.0);
    for (fragment, result) in layout.fragments().zip(results).filter(|(_, r)| !r.contributors.is_empty()) {
        bytes += match &result.content {
            Content::Mean(mean) => mean.len() as f64,
            Content::Bundle(parts) => {
                parts.iter().map(|part| part.len() as f64).sum::<f64>() / parts.len().max(1) as f64
            }
        };
        values += layout.range(fragment).len() as f64;
    }
    8.0 * bytes / f64::max(values, 1.0)
}

/// Puts the chain of a round into effect if it follows the link.
pub(super) fn adapt_to(running: &mut Running, round: Round) -> Result<()> {
    match running.codec.adaptation.as_mut().and_then(|adaptation| adaptation.chain(round)) {
        Some(chain) => apply_chain(running, chain),
        None => Ok(()),
    }
}

pub(super) fn apply_chain(running: &mut Running, chain: CodecSpec) -> Result<()> {
    running.codec.compressor.adapt(chain);
    running.codec.reducer.adapt(chain).context("adapt the codec to the link")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use longhaul_common::config::SyncPreset;
    use longhaul_common::id::SiteId;
    use longhaul_common::schedule::Changes;
    use longhaul_proto::round::Contribution;

    use super::*;

    /// A warm-up of 100 rounds, then two bits up to the 300th, over a link for a hundredth of a bit.
    #[test]
    fn after_the_start_of_a_run_bits_fall_as_far_as_what_waits_allows() {
        let config = SyncConfig::of(SyncPreset::Auto);
        let (warmup_rounds, every, groups) = (100, 1, 5);
        let schedule = RoundSchedule {
            warmup_rounds,
            warmup_every: 1,
            every,
            overlap: every,
            groups,
            exchanges: 1,
            steps: 1500,
            changes: Changes::NONE,
        };
        let model = FragmentLayout { values: 10_000, fragment_values: 1000 };
        let bits_after = |backlog_max, backlog| {
            let config = SyncConfig { backlog_max, ..config.clone() };
            let mut adaptation = Adaptation::new(&config, Layouts::new(model, None, schedule)).unwrap();
            let (mut now, mut bits) = (Duration::ZERO, Vec::new());
            for round in (0..1000).map(Round) {
                adaptation.contributed(round, now, Duration::from_secs(1), 0.0);
                now += Duration::from_secs_f64(0.1 + 20.0 * adaptation.bits(round));
                bits.push(adaptation.bits(round));
                adaptation.completed(round, bits[round.0 as usize], now, Duration::from_millis(50));
                adaptation.left(round, backlog);
            }
            [0, 299, 300, 999].map(|round: usize| bits[round])
        };
        let [first, early, after, _] = bits_after(4.0, 4.0);
        assert_eq!([first, early, after], [int4_bits(), two_bits(), 0.25]);
        let [.., without] = bits_after(0.0, 40.0);
        assert!(without < 0.1, "{without} bits without a bound");
        // From round 100 on it grows by 2 % in five rounds: after 200 rounds it is 0.25·2^(0.03·40).
        let [_, _, more, _] = bits_after(4.0, 8.0);
        assert!((0.55..0.6).contains(&more), "{more} bits with twice the backlog for 200 rounds");
    }

    /// In a warm-up, rounds that leave during back-propagation end long before an undivided round would.
    #[test]
    fn what_a_bit_takes_is_known_from_the_rounds_that_are_exchanged_as_a_whole() {
        let config = SyncConfig::of(SyncPreset::Auto);
        let schedule = RoundSchedule {
            warmup_rounds: 100,
            warmup_every: 1,
            every: 1,
            overlap: 1,
            groups: 5,
            exchanges: 1,
            steps: 1500,
            changes: Changes::NONE,
        };
        let model = FragmentLayout { values: 10_000, fragment_values: 1000 };
        let mut adaptation = Adaptation::new(&config, Layouts::new(model, None, schedule)).unwrap();
        let mut now = Duration::ZERO;
        for round in (0..100).map(Round) {
            adaptation.contributed(round, now, Duration::from_secs(1), 0.0);
            let bits = adaptation.bits(round);
            let taken = if config.streams_in(round, true) { 0.01 } else { 0.06 + 2.0 * bits };
            now += Duration::from_secs_f64(taken);
            adaptation.completed(round, bits, now, Duration::from_millis(50));
        }
        let bit_s = adaptation.measured().unwrap().bit_s;
        assert!((bit_s - 2.0).abs() < 0.02, "{bit_s} s");
    }

    #[test]
    fn the_bits_of_a_round_are_those_of_a_contribution_in_what_has_a_result() {
        let layout = FragmentLayout { values: 250, fragment_values: 100 };
        let bytes = |len: usize| Bytes::from(vec![0; len]);
        let contribution = |site, len| Contribution { site: SiteId(site), weight: 1, body: bytes(len) };
        let parts = vec![contribution(0, 100), contribution(1, 300)];
        let bundle = FragmentResult::bundle(parts.clone());
        let mean = FragmentResult::mean(&parts, bytes(50));
        let nothing = FragmentResult::nothing();
        assert_eq!(bits_in(&[bundle.clone(), nothing.clone(), nothing.clone()], layout), 16.0);
        // 200 and 50 bytes for 100 and 50 values.
        assert_eq!(bits_in(&[bundle, nothing.clone(), mean], layout), 40.0 / 3.0);
        assert_eq!(bits_in(&[nothing.clone(), nothing.clone(), nothing], layout), 0.0);
    }
}
