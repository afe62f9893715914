//! A device that computes in virtual time: each sample lowers one parameter by one. It answers as the worker's device does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use longhaul_common::config::{RunConfig, TaskKind};
use longhaul_common::id::{FragmentId, Round, WorkerId};
use longhaul_common::model::{Evaluation, ModelSpec};
use longhaul_member::message::{
    Applied, DeviceState, Enter, FinishedPart, FromDevice, Load, LocalUpdate, ParameterChange, Prepared,
    RoundUpdate, ToDevice,
};
use longhaul_member::sparse_ranges::SparseRanges;
use longhaul_member::step_barrier::{Entry, StepBarrier};
use longhaul_proto::control::message::TaskScore;

/// Training from an entry on, until something ends it.
#[derive(Clone, Debug)]
struct Stretch {
    epoch: u64,
    round: Round,
    /// The next step of the round.
    step: u64,
    /// The round that it has contributed to and not applied, and the step before which it must be.
    pending: Option<(Round, u64)>,
    /// Positions trained on in this round, by step.
    trained: Vec<Vec<u64>>,
    /// The sum of this round's gradients, where rounds exchange gradients.
    gradient: Vec<f32>,
    /// Samples behind the exchanges of a step.
    weight: u32,
    /// Samples in `gradient`: more, where it has computed others', too.
    computed: u32,
}

/// What it is about.
#[derive(Clone, Debug)]
enum Doing {
    /// It waits for an entry.
    Nothing,
    AtBarrier(Stretch),
    Computing(Stretch),
    /// It waits for the pending result, before this.
    Waiting(Stretch, Next),
}

/// What follows a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Step,
    Contribution,
    Barrier,
    /// The run ends before this round.
    End(Round),
}

/// Samples of the training data: more than any run takes.
const SAMPLES: u64 = 1 << 40;

pub struct Device {
    /// The worker to which the samples of this copy of the model are assigned.
    first: WorkerId,
    config: Arc<RunConfig>,
    barrier: Arc<StepBarrier>,
    /// By rank.
    specs: Arc<[ModelSpec]>,
    rank: u32,
    state: DeviceState,
    /// Of the first exchange of a step.
    first_mean: Vec<f32>,
    /// Positions of the step that it computes: its own, or in a redundant warm-up all.
    given: Vec<u64>,
    inbox: VecDeque<ToDevice>,
    doing: Doing,
    next_round: Round,
}

/// What it says, and the step that it computes from now on.
#[derive(Default)]
pub struct Told {
    pub said: Vec<FromDevice>,
    /// Sequences of a step that begins.
    pub computes: Option<usize>,
    /// A round that it has contributed to, and all positions trained on for that.
    pub trained: Option<(Round, Vec<u64>)>,
}

/// Adds each sample to its one of `count` values.
fn learn(values: &mut Vec<f32>, positions: &[u64], count: usize, each: f32) {
    values.resize(count, 0.0);
    for position in positions {
        values[*position as usize % count] += each;
    }
}

impl Device {
    pub fn new(
        worker: WorkerId,
        config: Arc<RunConfig>,
        specs: Arc<[ModelSpec]>,
        barrier: Arc<StepBarrier>,
    ) -> Self {
        let (inbox, doing, next_round) = (VecDeque::new(), Doing::Nothing, Round(0));
        let (first, rank, state) = (worker, 0, DeviceState::default());
        let (first_mean, given) = (Vec::new(), Vec::new());
        let mut device =
            Self { first, config, barrier, specs, rank, state, first_mean, given, inbox, doing, next_round };
        device.build(0);
        device
    }

    /// Builds a part of the model.
    fn build(&mut self, rank: u32) {
        self.rank = rank;
        let zeros = || vec![0.0; self.spec().parameter_count() as usize];
        self.state = DeviceState {
            parameters: zeros(),
            first_moments: zeros(),
            second_moments: zeros(),
            factors: if self.config.sync.rank > 0 { zeros() } else { Vec::new() },
            ..DeviceState::default()
        };
    }

    fn spec(&self) -> &ModelSpec {
        let at = (self.rank as usize).min(self.specs.len() - 1);
        &self.specs[at]
    }

    /// The part of the model that it has.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Whether it waits for a result.
    pub fn is_waiting(&self) -> bool {
        matches!(self.doing, Doing::Waiting(..))
    }

    /// The step that it computes, or the first of the next round.
    pub fn step(&self) -> u64 {
        match &self.doing {
            Doing::Computing(stretch) | Doing::AtBarrier(stretch) | Doing::Waiting(stretch, _) => {
                stretch.step
            }
            Doing::Nothing => self.barrier.schedule().steps_of(self.next_round).start,
        }
    }

    pub fn prepared(&self) -> FromDevice {
        FromDevice::Prepared(Box::new(Prepared {
            rank: self.rank,
            gpu: None,
            spec: self.spec().clone(),
            companions: Default::default(),
            parameters: vec![0.0; self.state.parameters.len()],
            samples: SAMPLES,
            data_hash: [0; 32],
            evaluation: Default::default(),
            // Factors are as long as the model.
            exchanges: (self.config.sync.rank > 0).then_some([self.state.parameters.len(); 2]),
            cores: 1,
        }))
    }

    pub fn take(&mut self, message: ToDevice) {
        self.inbox.push_back(message);
    }

    /// The time that a step takes is over.
    pub fn computed(&mut self) -> Told {
        let mut told = Told::default();
        let Doing::Computing(mut stretch) = std::mem::replace(&mut self.doing, Doing::Nothing) else {
            return told;
        };
        let positions = std::mem::take(&mut self.given);
        let (is_gradient, count) = (self.is_gradient(stretch.round), self.state.parameters.len());
        if is_gradient {
            learn(&mut stretch.gradient, &positions, count, 1.0);
            stretch.computed += positions.len() as u32;
        } else {
            learn(&mut self.state.parameters, &positions, count, -1.0);
        }
        stretch.trained.push(self.positions(stretch.step));
        stretch.step += 1;
        let next = if stretch.step < self.end_of(stretch.round) { Next::Step } else { Next::Contribution };
        self.before(stretch, next, &mut told);
        told
    }

    /// A part of the gradient of a round's last step that is final before its end: the model's values in this fragment, and all positions trained on for the round.
    /// `None`: it computes no such step.
    pub fn finished(&self, fragment: FragmentId) -> Option<(FinishedPart, Vec<u64>)> {
        let Doing::Computing(stretch) = &self.doing else { return None };
        let schedule = self.barrier.schedule();
        let is_last = stretch.step + 1 == self.end_of(stretch.round);
        let is_redundant = self.is_redundant(stretch.round);
        if !is_last || is_redundant || !self.is_gradient(stretch.round) || self.config.sync.rank > 0 {
            return None;
        }
        let positions: Vec<u64> = stretch.trained.iter().chain([&self.given]).flatten().copied().collect();
        let weight = positions.len() as u32;
        let layout = self.config.sync.layout(self.state.parameters.len() as u64);
        let is_due = fragment.0 < layout.count() && schedule.is_due(stretch.round, fragment);
        if weight == 0 || !is_due {
            return None;
        }
        let mut gradient = stretch.gradient.clone();
        learn(&mut gradient, &self.given, self.state.parameters.len(), 1.0);
        let range = layout.range(fragment);
        let values = gradient[range.clone()].iter().map(|value| value / weight as f32).collect();
        let (round, start) = (stretch.round, range.start);
        Some((FinishedPart { round, weight, start, values }, positions))
    }

    fn positions(&self, step: u64) -> Vec<u64> {
        self.barrier.positions(step, self.first).into_iter().flatten().collect()
    }

    /// Whether a round exchanges gradients.
    fn is_gradient(&self, round: Round) -> bool {
        let is_warmup = self.barrier.schedule().is_warmup(round);
        self.config.sync.source_in(is_warmup).is_gradient()
    }

    /// Whether everybody computes all samples of a round.
    fn is_redundant(&self, round: Round) -> bool {
        self.config.sync.is_redundant_in(self.barrier.schedule().is_warmup(round))
    }

    /// Steps that may be computed before the result of a round is applied.
    fn overlap_after(&self, round: Round) -> u64 {
        let schedule = self.barrier.schedule();
        let is_plain = schedule.is_warmup(round) && self.config.sync.opens_with_gradients();
        if is_plain { 0 } else { schedule.pace_in(round).overlap }
    }

    fn end_of(&self, round: Round) -> u64 {
        self.barrier.schedule().steps_of(round).end
    }

    /// Does what comes next, or waits for the result that has to be there first.
    fn before(&mut self, stretch: Stretch, next: Next, told: &mut Told) {
        let is_due = stretch.pending.is_some_and(|(_, due)| next != Next::Step || due <= stretch.step);
        if is_due {
            self.doing = Doing::Waiting(stretch, next);
            return;
        }
        match next {
            Next::Step => {
                self.given = match self.is_redundant(stretch.round) {
                    true => self.barrier.all_positions(stretch.step).into_iter().flatten().collect(),
                    false => self.positions(stretch.step),
                };
                told.computes = Some(self.given.len());
                self.doing = Doing::Computing(stretch);
            }
            Next::Contribution => self.contribute(stretch, told),
            Next::Barrier => self.doing = Doing::AtBarrier(stretch),
            Next::End(next_round) => {
                let state = self.state.clone();
                told.said.push(FromDevice::Ended { next_round, state, validation: None });
                self.doing = Doing::Nothing;
            }
        }
    }

    fn contribute(&mut self, mut stretch: Stretch, told: &mut Told) {
        let round = stretch.round;
        let trained: Vec<u64> = stretch.trained.drain(..).flatten().collect();
        let schedule = self.barrier.schedule();
        if schedule.exchange_of(round) == 0 {
            stretch.weight = trained.len() as u32;
        }
        let weight = stretch.weight;
        let computed = std::mem::take(&mut stretch.computed);
        let values = self.contribution(round, std::mem::take(&mut stretch.gradient), computed);
        told.said.push(FromDevice::Contribute(LocalUpdate {
            round,
            values,
            columns: None,
            repeated: Vec::new(),
            weight,
            steps: 1,
            compute: Duration::from_millis(1),
            loss: (weight > 0).then_some(1.0),
            gradient_norm: None,
            spare_cores: 0.0,
        }));
        told.trained = Some((round, trained));
        let overlap = self.overlap_after(round);
        stretch.pending = Some((round, stretch.step + overlap));
        if overlap == 0 {
            self.doing = Doing::Waiting(stretch, Next::Barrier);
        } else {
            self.doing = Doing::AtBarrier(stretch);
        }
    }

    /// The values for a round: of the first exchange of a step, or of its only one, the gradient; of the second, the mean of the first.
    fn contribution(&self, round: Round, mut gradient: Vec<f32>, computed: u32) -> SparseRanges {
        if !self.is_gradient(round) {
            let layout = self.config.sync.layout(self.state.parameters.len() as u64);
            let mut due =
                SparseRanges::reusing(Vec::new(), self.barrier.schedule().due_stretches(&layout, round));
            for (range, values) in due.iter_mut() {
                values.copy_from_slice(&self.state.parameters[range]);
            }
            return due;
        }
        if self.barrier.schedule().exchange_of(round) > 0 {
            return SparseRanges::whole(self.first_mean.clone());
        }
        gradient.resize(self.state.parameters.len(), 0.0);
        gradient.iter_mut().for_each(|value| *value /= computed.max(1) as f32);
        SparseRanges::whole(gradient)
    }

    /// Goes on as far as it can.
    pub fn go_on(&mut self) -> Told {
        let mut told = Told::default();
        loop {
            match std::mem::replace(&mut self.doing, Doing::Nothing) {
                computing @ Doing::Computing(_) => {
                    self.doing = computing;
                    return told;
                }
                Doing::AtBarrier(mut stretch) => match self.barrier.try_enter(stretch.epoch) {
                    None => {
                        self.doing = Doing::AtBarrier(stretch);
                        return told;
                    }
                    Some(Entry::Begun(round)) => {
                        let first = self.barrier.schedule().steps_of(round).start;
                        stretch.round = round;
                        stretch.step = first + stretch.trained.len() as u64;
                        told.said.push(FromDevice::Begun(round));
                        let next =
                            if stretch.step < self.end_of(round) { Next::Step } else { Next::Contribution };
                        self.before(stretch, next, &mut told);
                    }
                    Some(Entry::AtEnd(round)) => self.before(stretch, Next::End(round), &mut told),
                    Some(Entry::Outlived | Entry::Stopped) => {}
                },
                doing @ (Doing::Nothing | Doing::Waiting(..)) => {
                    self.doing = doing;
                    let Some(message) = self.inbox.pop_front() else { return told };
                    self.hear(message, &mut told);
                }
            }
            if told.computes.is_some() {
                return told;
            }
        }
    }

    fn hear(&mut self, message: ToDevice, told: &mut Told) {
        match message {
            ToDevice::Build { rank } => {
                self.doing = Doing::Nothing;
                self.build(rank);
                told.said.push(self.prepared());
            }
            ToDevice::Enter(enter) => self.enter(*enter, told),
            ToDevice::Export => {
                told.said.push(FromDevice::State { next_round: self.next_round, state: self.state.clone() });
            }
            ToDevice::Apply { round, update, .. } => self.apply(round, update, told),
        }
    }

    fn enter(&mut self, enter: Enter, told: &mut Told) {
        if let Some(place) = enter.place {
            self.first = place.first;
        }
        let mut resumed = Vec::new();
        match enter.load {
            Load::Nothing => {}
            Load::Parameters(parameters) => self.state.parameters = parameters,
            Load::All(state) => self.state = state,
            Load::Private { state, synchronised, trained } => {
                self.state = state;
                let first = self.barrier.schedule().steps_of(enter.round).start;
                // What it has trained on since counts only if it is given the same samples again.
                let is_whole = !self.config.parallel.is_divided();
                if is_whole
                    && (first..).zip(&trained).all(|(step, positions)| self.positions(step) == *positions)
                {
                    resumed = trained;
                } else {
                    self.state.parameters = synchronised;
                }
            }
        }
        let last = enter.replay.last().map(|(last, _)| *last);
        for (round, mean) in enter.replay {
            self.take_mean(round, mean);
        }
        if let Some(round) = last {
            self.tell_applied(round, Vec::new(), told);
        }
        self.next_round = enter.round;
        let (epoch, round, pending, gradient) = (enter.epoch, enter.round, None, Vec::new());
        let step = self.barrier.schedule().steps_of(round).start + resumed.len() as u64;
        let (trained, weight, computed) = (resumed, 0, 0);
        let stretch = Stretch { epoch, round, step, pending, trained, gradient, weight, computed };
        self.doing = Doing::AtBarrier(stretch);
    }

    /// A step by a mean that all members have, once its last exchange is there.
    fn take_mean(&mut self, round: Round, mean: Vec<f32>) {
        let schedule = self.barrier.schedule();
        let is_first =
            self.config.sync.rank > 0 && !schedule.is_warmup(round) && schedule.exchange_of(round) == 0;
        if is_first {
            self.first_mean = mean;
            return;
        }
        self.state.parameters.iter_mut().zip(mean).for_each(|(there, value)| *there -= value);
        self.state.updates += 1;
    }

    fn apply(&mut self, round: Round, update: RoundUpdate, told: &mut Told) {
        let Doing::Waiting(mut stretch, next) = std::mem::replace(&mut self.doing, Doing::Nothing) else {
            return;
        };
        // One of an epoch that is over is of no use.
        if stretch.pending.is_none_or(|(pending, _)| pending != round) {
            self.doing = Doing::Waiting(stretch, next);
            return;
        }
        match update {
            RoundUpdate::Parameters(ParameterChange { kept, values }) => {
                for (range, values) in values.iter() {
                    let there = self.state.parameters[range].iter_mut().zip(values);
                    there.for_each(|(there, value)| *there = kept * *there + value);
                }
            }
            RoundUpdate::Mean(mean) => self.take_mean(round, mean),
        }
        (stretch.pending, self.next_round) = (None, round.next());
        self.tell_applied(round, stretch.trained.clone(), told);
        self.before(stretch, next, told);
    }

    fn tell_applied(&mut self, round: Round, trained: Vec<Vec<u64>>, told: &mut Told) {
        let is_asked_for = self.barrier.take_checkpoint(round);
        let is_checkpoint = is_asked_for || self.config.checkpoints_before(round.next());
        let state = is_checkpoint.then(|| self.state.clone());
        let validation = self.config.evaluates_before(round.next()).then(|| held_out(round.next()));
        let parameters = self.is_gradient(round).then(|| self.state.parameters.clone());
        told.said.push(FromDevice::Applied(Applied { round, validation, parameters, state, trained }));
        if validation.is_some() {
            self.tell_scores(round, told);
        }
    }

    /// Answers every other question of this worker's part of them.
    fn tell_scores(&mut self, round: Round, told: &mut Told) {
        let step = self.barrier.schedule().steps_of(round).start;
        let Some((place, workers)) = self.barrier.place(step, self.first) else { return };
        if !self.config.evaluate.tasks.are_none() {
            let own = (place..QUESTIONS).step_by(workers);
            let [questions, right] = [own.clone().count(), own.filter(|at| at % 2 == 0).count()];
            let score =
                TaskScore { kind: TaskKind::Arc, right: [right as u32, 0], questions: questions as u32 };
            told.said.push(FromDevice::Scores { next_round: round.next(), scores: vec![score] });
        }
    }
}

/// Questions of a run with `evaluate.tasks`.
pub const QUESTIONS: usize = 11;

/// The round whose preceding state has the lowest held-out loss.
pub const TURNING_ROUND: u64 = 12;

/// A held-out loss that falls up to [`TURNING_ROUND`] and rises thereafter.
fn held_out(next_round: Round) -> Evaluation {
    Evaluation { loss: 1.0 + 0.1 * next_round.0.abs_diff(TURNING_ROUND) as f32, accuracy: None }
}
