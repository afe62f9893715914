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

/// What it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It waits for an entry.
    Nothing,
    /// It waits at the barrier, in this epoch.
    AtBarrier(u64),
    Computing(u64, Round),
    /// It waits for the result of a round that it has contributed to.
    Pending(u64, Round),
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

/// What it says, and the round that it has begun to compute.
#[derive(Default)]
pub struct Told {
    pub said: Vec<FromDevice>,
    pub computes: Option<Round>,
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

    /// The time that it was to compute is over.
    pub fn computed(&mut self, round: Round) -> Told {
        let Doing::Computing(epoch, begun) = self.doing else { return Told::default() };
        if begun != round {
            return Told::default();
        }
        let mut weight = 0;
        for step in self.barrier.schedule().steps_of(round) {
            for position in self.barrier.positions(step, self.worker).into_iter().flatten() {
                let at = position as usize % self.state.parameters.len();
                self.state.parameters[at] -= 1.0;
                weight += 1;
            }
        }
        self.doing = Doing::Pending(epoch, round);
        let update = LocalUpdate {
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
        };
        Told { said: vec![FromDevice::Contribute(update)], computes: None }
    }

    /// Goes on as far as it can.
    pub fn go_on(&mut self) -> Told {
        let mut told = Told::default();
        loop {
            match self.doing {
                Doing::Computing(..) => return told,
                Doing::AtBarrier(epoch) => match self.barrier.try_enter(epoch) {
                    None => return told,
                    Some(Entry::Begun(round)) => {
                        self.doing = Doing::Computing(epoch, round);
                        told.said.push(FromDevice::Begun(round));
                        told.computes = Some(round);
                        return told;
                    }
                    Some(Entry::AtEnd(next_round)) => {
                        self.doing = Doing::Nothing;
                        let state = self.state.clone();
                        told.said.push(FromDevice::Ended { next_round, state, validation: None });
                    }
                    Some(Entry::Outlived | Entry::Stopped) => self.doing = Doing::Nothing,
                },
                Doing::Nothing | Doing::Pending(..) => match self.inbox.pop_front() {
                    None => return told,
                    Some(message) => told.said.extend(self.hear(message)),
                },
            }
        }
    }

    fn hear(&mut self, message: ToDevice) -> Option<FromDevice> {
        match message {
            ToDevice::Build { .. } => {
                self.doing = Doing::Nothing;
                Some(self.prepared())
            }
            ToDevice::Enter(enter) => {
                self.enter(*enter);
                None
            }
            ToDevice::Export => {
                Some(FromDevice::State { next_round: self.next_round, state: self.state.clone() })
            }
            ToDevice::Apply { round, update, .. } => self.apply(round, update),
        }
    }

    fn enter(&mut self, enter: Enter) {
        match enter.load {
            Load::Nothing => {}
            Load::Parameters(parameters) => self.state.parameters = parameters,
            // What was trained on since the checkpoint is none, as its round was not begun.
            Load::All(state) | Load::Private { state, .. } => self.state = state,
        }
        assert!(enter.replay.is_empty(), "this run exchanges no gradients");
        self.next_round = enter.round;
        self.doing = Doing::AtBarrier(enter.epoch);
    }

    fn apply(&mut self, round: Round, update: RoundUpdate) -> Option<FromDevice> {
        // One of an epoch that is over is of no use.
        let Doing::Pending(epoch, pending) = self.doing else { return None };
        let RoundUpdate::Parameters(parts) = update else { panic!("this run exchanges no gradients") };
        if pending != round {
            return None;
        }
        for Part { start, kept, values } in parts {
            let there = self.state.parameters[start..].iter_mut().zip(values);
            there.for_each(|(there, value)| *there = kept * *there + value);
        }
        (self.doing, self.next_round) = (Doing::AtBarrier(epoch), round.next());
        let every = self.config.checkpoint.every_rounds;
        let is_asked_for = self.barrier.take_checkpoint(round);
        let is_checkpoint = is_asked_for || every != 0 && round.next().0.is_multiple_of(every);
        let state = is_checkpoint.then(|| self.state.clone());
        let applied = Applied { round, validation: None, parameters: None, state, trained: Vec::new() };
        Some(FromDevice::Applied(applied))
    }
}
