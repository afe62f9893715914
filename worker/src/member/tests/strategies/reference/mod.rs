//! All strategies in f64, after the papers, `worker/member/docs/sync.md` and the meaning of the `[sync]` keys. Of the code under test, this uses only the schedule and
//! the constants of the protocol.

mod adamw;
mod chain;
mod dct;
mod low_rank;
mod muon;
mod sending;
mod tensors;
mod values;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use longhaul_common::config::{Application, InnerRule, LateRule, Optimiser, RunConfig, Source};
use longhaul_common::id::Round;
use longhaul_common::schedule::RoundSchedule;
use longhaul_engine::LearningRate;

use self::adamw::{State, Step, clipped};
use self::low_rank::LowRank;
use self::sending::Sending;
use self::tensors::{TensorAt, tensors_of};
use super::toy::{Oracle, spec};

/// A mistake that no configuration key can express.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// The owner keeps no residual of its mean.
    NoOwnerResidual,
    /// Momentum continues where values were sent (no factor masking).
    NoMasking,
    /// Residuals of gradients carry over into deltas.
    KeepsGradients,
    /// A frozen v has no floor.
    NoFloor,
    /// The owner's residual adds to each union.
    FlushesUnions,
    /// The remainder of a low-rank product is lost.
    NoLowRankResidual,
    /// All contributions have equal weight.
    NoWeights,
    /// Changes are sent that bf16 does not show.
    SeesAll,
}

/// The course of a run.
#[derive(Default)]
pub struct Course {
    /// The initial parameters, drawn from the seed.
    pub start: Vec<f64>,
    /// The synchronised parameters after each round.
    pub synchronised: Vec<Vec<f64>>,
    /// By member and round, with deltas: the parameters of due fragments at the end of the round's steps, zeros elsewhere.
    pub local: Vec<Vec<Vec<f64>>>,
    /// By member: the final parameters and moments.
    pub ended: Vec<[Vec<f64>; 3]>,
}

/// A result in flight.
struct Late {
    round: u64,
    mean: Vec<f64>,
    /// The step before which it is applied.
    due: u64,
    /// The members' parameters at the contribution.
    contributed: Vec<Vec<f64>>,
}

pub struct Reference {
    config: RunConfig,
    schedule: RoundSchedule,
    tensors: Vec<TensorAt>,
    rates: LearningRate,
    oracle: Oracle,
    mistake: Option<Mistake>,
    members: Vec<State>,
    /// By member: the last contributed gradient.
    gradients: Vec<Vec<f64>>,
    /// θ_g, and the outer optimiser's b.
    global: Vec<f64>,
    outer: Vec<f64>,
    /// By member: the part of error feedback that is also in the member's parameters.
    unsent: Vec<Vec<f64>>,
    sending: Sending,
    low_rank: Option<LowRank>,
    /// The real parameters after each round, adopted after steps that are identical on all members; empty if the reference runs alone.
    guide: Vec<Arc<Vec<f32>>>,
    course: Course,
}

/// Numbers of values kept by thresholds, by round and fragment, for each member.
pub type KeptIndices = BTreeMap<(u64, u32), Vec<usize>>;

impl Reference {
    pub fn new(
        config: &RunConfig,
        folder: &Path,
        kept: &KeptIndices,
        guide: Vec<Arc<Vec<f32>>>,
        mistake: Option<Mistake>,
    ) -> Self {
        let oracle = Oracle::new(config, folder);
        let (start, tensors) = (oracle.start(), tensors_of(&spec(config)));
        let (members, len) = (config.run.workers as usize, start.len());
        let fragments = len.div_ceil(config.sync.fragment_values as usize) as u32;
        let rank = config.sync.rank as usize;
        Self {
            config: config.clone(),
            schedule: config.round_schedule().for_fragments(fragments),
            rates: LearningRate::new(&config.train, config.run.steps),
            mistake,
            members: vec![State::new(start.clone()); members],
            gradients: vec![Vec::new(); members],
            outer: vec![0.0; len],
            unsent: vec![vec![0.0; len]; members],
            sending: Sending::new(config, &tensors, oracle.weights(), kept.clone(), mistake),
            low_rank: (rank > 0).then(|| LowRank::new(&tensors, rank, config.run.seed, members, len)),
            course: Course { start: start.clone(), local: vec![Vec::new(); members], ..Course::default() },
            global: start,
            guide,
            tensors,
            oracle,
        }
    }

    /// Computes the whole run.
    pub fn run(mut self) -> Course {
        let mut late = None;
        for round in 0..self.schedule.rounds() {
            let span = self.schedule.steps_of(Round(round));
            for step in span.clone() {
                self.apply_if_due(&mut late, step);
                self.step(step, self.is_warmup(round), late.as_ref());
            }
            // A result not applied by now would be missing from the next contribution.
            self.apply_if_due(&mut late, u64::MAX);
            if !span.is_empty() {
                late = Some(self.contribute(round, span.end));
            }
            // With low rank, the second exchange completes a step's gradient.
            if self.low_rank.is_some() && !self.is_warmup(round) && !span.is_empty() {
                self.course.synchronised.push(self.global.clone());
            } else {
                self.apply_if_due(&mut late, span.end);
            }
        }
        self.apply_if_due(&mut late, u64::MAX);
        let ended = self.members.into_iter().map(|state| [state.parameters, state.first, state.second]);
        Course { ended: ended.collect(), ..self.course }
    }

    fn is_warmup(&self, round: u64) -> bool {
        round < self.schedule.warmup_rounds
    }

    /// Returns whether all members make identical steps in a round.
    fn is_common(&self, round: u64) -> bool {
        let sync = &self.config.sync;
        let is_common_warmup = sync.source != Source::Delta || sync.inner == InnerRule::FrozenAdamw;
        if self.is_warmup(round) { is_common_warmup } else { sync.source != Source::Delta }
    }

    fn source(&self, is_warmup: bool) -> Source {
        if is_warmup && self.is_common(0) { Source::Gradient } else { self.config.sync.source }
    }

    fn rules(&self, step: u64) -> Step<'_> {
        let floor = self.mistake != Some(Mistake::NoFloor);
        Step { train: &self.config.train, tensors: &self.tensors, rate: self.rates.at(step), floor }
    }

    /// Computes a step of all members: their own with deltas, else only the gradient.
    fn step(&mut self, step: u64, is_warmup: bool, late: Option<&Late>) {
        let is_delta = self.source(is_warmup) == Source::Delta;
        for at in 0..self.members.len() {
            let parameters = match late.filter(|_| self.config.sync.look_ahead && !is_delta) {
                // AdamW's destination if the mean in flight were the member's own gradient.
                Some(late) => {
                    let mut ahead = self.members[at].clone();
                    let rules = self.rules(self.schedule.steps_of(Round(late.round)).start);
                    ahead.adamw(&rules, &self.gradients[at]);
                    ahead.parameters
                }
                None => self.members[at].parameters.clone(),
            };
            let gradient = self.oracle.gradient(&parameters, step, at);
            if is_delta {
                let mut state = self.members[at].clone();
                match self.config.sync.inner {
                    InnerRule::Adamw => state.adamw(&self.rules(step), &gradient),
                    InnerRule::Muon => state.muon(&self.rules(step), &gradient),
                    InnerRule::FrozenAdamw => {
                        let limit = self.config.train.gradient_clip * (self.members.len() as f64).sqrt();
                        state.frozen(&self.rules(step), &clipped(&gradient, limit));
                    }
                }
                self.members[at] = state;
            }
            self.gradients[at] = gradient;
        }
    }

    /// Computes the contributions at the end of a round, and their result.
    fn contribute(&mut self, round: u64, end: u64) -> Late {
        let is_warmup = self.is_warmup(round);
        let (sync, train) = (&self.config.sync, &self.config.train);
        let own = |((state, gradient), unsent): ((&State, &Vec<f64>), &Vec<f64>)| match self.source(is_warmup)
        {
            Source::Gradient => gradient.clone(),
            Source::CorrectedGradient => {
                clipped(gradient, train.gradient_clip / (self.members.len() as f64).sqrt())
            }
            Source::Momentum => state.momentum(train, &clipped(gradient, train.gradient_clip)),
            Source::Delta => {
                let both = self.global.iter().zip(&state.parameters).zip(unsent);
                both.map(|((global, own), unsent)| global - own - unsent).collect()
            }
        };
        let updates = self.members.iter().zip(&self.gradients).zip(&self.unsent).map(own);
        let updates: Vec<Vec<f64>> = updates.collect();
        let contributed: Vec<_> = self.members.iter().map(|state| state.parameters.clone()).collect();
        let (due_fragments, is_common) = (self.due(round), self.is_common(round));
        for (local, parameters) in self.course.local.iter_mut().zip(&contributed) {
            let mut due = vec![0.0; if is_common { 0 } else { parameters.len() }];
            for (_, range) in due_fragments.iter().filter(|_| !is_common) {
                due[range.clone()].copy_from_slice(&parameters[range.clone()]);
            }
            local.push(due);
        }
        // A warm-up of common steps is plain dense: its exchanges are never late.
        let overlap = match is_warmup && self.is_common(round) {
            true => 0,
            false => sync.overlap,
        };
        let mean = match self.low_rank.as_mut().filter(|_| !is_warmup) {
            Some(low_rank) => low_rank.step(&self.tensors, &self.sending.weights, &updates),
            None => self.sending.at(&self.global).exchange(round, is_warmup, &due_fragments, &updates),
        };
        if let Some(low_rank) =
            self.low_rank.as_mut().filter(|_| self.mistake == Some(Mistake::NoLowRankResidual))
        {
            low_rank.errors.iter_mut().for_each(|error| error.fill(0.0));
        }
        Late { round, mean, due: end + overlap, contributed }
    }

    /// Returns the due fragments: by number, and all in the warm-up and at the end.
    fn due(&self, round: u64) -> Vec<(u32, Range<usize>)> {
        let groups = u64::from(self.schedule.groups);
        let is_last = round + 1 == self.schedule.rounds();
        let fragments = (0..self.global.len()).step_by(self.config.sync.fragment_values as usize).zip(0..);
        let is_due = |number: u32| {
            self.is_warmup(round)
                || is_last
                || u64::from(number) % groups == (round - self.schedule.warmup_rounds) % groups
        };
        let end = |start: usize| (start + self.config.sync.fragment_values as usize).min(self.global.len());
        fragments
            .filter(|(_, number)| is_due(*number))
            .map(|(start, number)| (number, start..end(start)))
            .collect()
    }

    fn apply_if_due(&mut self, late: &mut Option<Late>, step: u64) {
        if let Some(late) = late.take_if(|late| late.due <= step) {
            self.apply(&late);
            self.course.synchronised.push(self.global.clone());
            if let Some(real) = self.guide.get(late.round as usize).filter(|_| self.is_common(late.round)) {
                self.global = real.iter().map(|value| f64::from(*value)).collect();
                self.members.iter_mut().for_each(|state| state.parameters.clone_from(&self.global));
            }
        }
    }

    fn apply(&mut self, late: &Late) {
        let round = late.round;
        let is_common_warmup = self.is_warmup(round) && self.is_common(round);
        let application = if is_common_warmup { Application::Inner } else { self.config.sync.apply };
        if application == Application::Outer {
            return self.apply_outer(late);
        }
        let mut members = std::mem::take(&mut self.members);
        let rules = self.rules(self.schedule.steps_of(Round(round)).start);
        for state in &mut members {
            match application {
                Application::Inner if rules.train.optimiser == Optimiser::Sgd => {
                    state.sgd(&rules, &late.mean);
                }
                Application::Inner => state.adamw(&rules, &late.mean),
                Application::Sgd => state.descend(&rules, &late.mean),
                Application::Sign => {
                    let sign = |value: &f64| if *value == 0.0 { 0.0 } else { value.signum() };
                    state.descend(&rules, &late.mean.iter().map(sign).collect::<Vec<_>>());
                }
                Application::FrozenAdamw => state.onebit(&rules, &late.mean),
                Application::Outer => unreachable!("it is no step of the members"),
            }
        }
        self.members = members;
        self.global.clone_from(&self.members[0].parameters);
        if self.is_common(round)
            && !self.is_common(round + 1)
            && self.mistake != Some(Mistake::KeepsGradients)
        {
            self.sending.forget();
        }
    }

    /// b ← μ·b + Δ, θ_g ← θ_g − η·(Δ + μ·b), and the resulting change of the members' parameters.
    fn apply_outer(&mut self, late: &Late) {
        let sync = &self.config.sync;
        let [rate, momentum] = [sync.outer_learning_rate, sync.outer_momentum].map(f64::from);
        let is_last = late.round + 1 == self.schedule.rounds();
        let kept = if is_last || sync.overlap == 0 { 0.0 } else { f64::from(sync.mix) };
        for at in self.due(late.round).into_iter().flat_map(|(_, range)| range) {
            let delta = late.mean[at];
            self.outer[at] = momentum * self.outer[at] + delta;
            self.global[at] -= rate * (delta + momentum * self.outer[at]);
            let keeps_unsent = sync.late == LateRule::KeepUnsent && !is_last;
            for (member, (state, contributed)) in self.members.iter_mut().zip(&late.contributed).enumerate() {
                let own = state.parameters[at];
                self.unsent[member][at] = if keeps_unsent { self.sending.residual(member)[at] } else { 0.0 };
                state.parameters[at] = match sync.late {
                    LateRule::Keep | LateRule::KeepUnsent => {
                        own + self.global[at] - contributed[at] - self.unsent[member][at]
                    }
                    LateRule::Mix => kept * own + (1.0 - kept) * self.global[at],
                };
            }
        }
    }
}
