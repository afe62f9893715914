//! A device that computes in virtual time: from each sample a parameter learns by one. It answers as the worker's device does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use longhaul_common::config::RunConfig;
use longhaul_common::id::{Round, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_common::model::tiny::tiny_mlp;
use longhaul_member::message::{
    Applied, DeviceState, Enter, FromDevice, Load, LocalUpdate, Part, Prepared, RoundUpdate, ToDevice,
};
use longhaul_member::sparse_ranges::SparseRanges;
use longhaul_member::step_barrier::{Entry, StepBarrier};

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

pub struct Device {
    worker: WorkerId,
    config: Arc<RunConfig>,
    barrier: Arc<StepBarrier>,
    spec: ModelSpec,
    state: DeviceState,
    inbox: VecDeque<ToDevice>,
    doing: Doing,
    next_round: Round,
}

/// What it says, and whether it computes a step from now on.
#[derive(Default)]
pub struct Told {
    pub said: Vec<FromDevice>,
    pub is_computing: bool,
    /// A round that it has contributed to, and all positions trained on for that.
    pub trained: Option<(Round, Vec<u64>)>,
}

impl Device {
    pub fn new(worker: WorkerId, config: Arc<RunConfig>, barrier: Arc<StepBarrier>) -> Self {
        let spec = tiny_mlp();
        let zeros = || vec![0.0; spec.parameter_count() as usize];
        let state = DeviceState {
            parameters: zeros(),
            first_moments: zeros(),
            second_moments: zeros(),
            ..DeviceState::default()
        };
        let (inbox, doing, next_round) = (VecDeque::new(), Doing::Nothing, Round(0));
        Self { worker, config, barrier, spec, state, inbox, doing, next_round }
    }

    pub fn prepared(&self) -> FromDevice {
        FromDevice::Prepared(Prepared {
            rank: 0,
            gpu: None,
            spec: self.spec.clone(),
            tokenizer: None,
            parameters: vec![0.0; self.state.parameters.len()],
            samples: 1000,
            data_hash: [0; 32],
            exchanges: None,
            cores: 1,
        })
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
        let positions = self.positions(stretch.step);
        for position in &positions {
            let at = *position as usize % self.state.parameters.len();
            self.state.parameters[at] -= 1.0;
        }
        stretch.trained.push(positions);
        stretch.step += 1;
        let next = if stretch.step < self.end_of(stretch.round) { Next::Step } else { Next::Contribution };
        self.before(stretch, next, &mut told);
        told
    }

    fn positions(&self, step: u64) -> Vec<u64> {
        self.barrier.positions(step, self.worker).into_iter().flatten().collect()
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
                told.is_computing = true;
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
        let weight = trained.len() as u32;
        told.said.push(FromDevice::Contribute(LocalUpdate {
            round,
            values: SparseRanges::whole(self.state.parameters.clone()),
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
        let overlap = self.config.sync.overlap;
        stretch.pending = Some((round, stretch.step + overlap));
        if overlap == 0 {
            self.doing = Doing::Waiting(stretch, Next::Barrier);
        } else {
            self.doing = Doing::AtBarrier(stretch);
        }
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
            if told.is_computing {
                return told;
            }
        }
    }

    fn hear(&mut self, message: ToDevice, told: &mut Told) {
        match message {
            ToDevice::Build { .. } => {
                self.doing = Doing::Nothing;
                told.said.push(self.prepared());
            }
            ToDevice::Enter(enter) => self.enter(*enter),
            ToDevice::Export => {
                told.said.push(FromDevice::State { next_round: self.next_round, state: self.state.clone() });
            }
            ToDevice::Apply { round, update, .. } => self.apply(round, update, told),
        }
    }

    fn enter(&mut self, enter: Enter) {
        assert!(enter.replay.is_empty(), "this run exchanges no gradients");
        let mut resumed = Vec::new();
        match enter.load {
            Load::Nothing => {}
            Load::Parameters(parameters) => self.state.parameters = parameters,
            Load::All(state) => self.state = state,
            Load::Private { state, synchronised, trained } => {
                self.state = state;
                let first = self.barrier.schedule().steps_of(enter.round).start;
                // What it has trained on since counts only if it is given the same samples again.
                if (first..).zip(&trained).all(|(step, positions)| self.positions(step) == *positions) {
                    resumed = trained;
                } else {
                    self.state.parameters = synchronised;
                }
            }
        }
        self.next_round = enter.round;
        let (epoch, round, pending) = (enter.epoch, enter.round, None);
        self.doing = Doing::AtBarrier(Stretch { epoch, round, step: 0, pending, trained: resumed });
    }

    fn apply(&mut self, round: Round, update: RoundUpdate, told: &mut Told) {
        let RoundUpdate::Parameters(parts) = update else { panic!("this run exchanges no gradients") };
        let Doing::Waiting(mut stretch, next) = std::mem::replace(&mut self.doing, Doing::Nothing) else {
            return;
        };
        // One of an epoch that is over is of no use.
        if stretch.pending.is_none_or(|(pending, _)| pending != round) {
            self.doing = Doing::Waiting(stretch, next);
            return;
        }
        for Part { start, kept, values } in parts {
            let there = self.state.parameters[start..].iter_mut().zip(values);
            there.for_each(|(there, value)| *there = kept * *there + value);
        }
        (stretch.pending, self.next_round) = (None, round.next());
        let every = self.config.checkpoint.every_rounds;
        let is_asked_for = self.barrier.take_checkpoint(round);
        let is_checkpoint = is_asked_for || every != 0 && round.next().0.is_multiple_of(every);
        let state = is_checkpoint.then(|| self.state.clone());
        let trained = stretch.trained.clone();
        told.said.push(FromDevice::Applied(Applied {
            round,
            validation: None,
            parameters: None,
            state,
            trained,
        }));
        self.before(stretch, next, told);
    }
}
