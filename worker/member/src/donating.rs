//! Copies of the run's state for healing members.

use std::sync::Arc;

use anyhow::Result;
use longhaul_common::config::RunConfig;
use longhaul_common::id::Round;

use super::event::{HealedState, Reply};
use super::outer::outer_step;
use super::running::{Running, Stage};
use super::synchroniser::Synchroniser;
use crate::message::{DeviceState, Load, ToDevice};

/// Joiners that heal from this member at once; further ones ask another donor, or retry.
const REQUESTS_MAX: usize = 8;

/// Requests that wait for a copy of the state.
#[derive(Default)]
pub(super) struct Donations {
    /// First usable round, and the reply handle.
    waiting: Vec<(Round, Reply<HealedState>)>,
    /// An export from the device is in flight.
    exporting: bool,
}

impl Donations {
    /// Answers all requests whose round the state has reached.
    fn give(&mut self, state: &HealedState) {
        for (_, reply) in self.waiting.extract_if(.., |(from, _)| *from <= state.next_round) {
            // The requester may have left.
            reply.give(state.clone());
        }
    }
}

impl Synchroniser {
    /// Serves a consistent copy of the state, of round `from` or later: at once if the synchroniser has it, otherwise from the device at its next round.
    /// Requests beyond the next round are refused: no member is further, and they would hold their slots.
    pub(super) fn serve_state(&mut self, from: Round, reply: Reply<HealedState>) -> Result<()> {
        let waiting = &mut self.donations.waiting;
        waiting.retain(|(_, reply)| reply.is_wanted());
        let comes_soon = match &self.stage {
            Stage::Running(running) => from <= running.replica.next_round().next(),
            Stage::Preparing => false,
        };
        if comes_soon && waiting.len() < REQUESTS_MAX {
            waiting.push((from, reply));
        }
        self.serve_waiting()
    }

    /// Serves requests that waited for a later round.
    pub(super) fn serve_waiting(&mut self) -> Result<()> {
        if self.donations.waiting.is_empty() {
            return Ok(());
        }
        let Stage::Running(running) = &self.stage else {
            self.donations.waiting.clear();
            return Ok(());
        };
        if let Some(state) = state_here(&self.config, running) {
            self.donations.give(&state);
            return Ok(());
        }
        let reached = running.replica.next_round();
        let is_due = self.donations.waiting.iter().any(|(from, _)| *from <= reached);
        if !is_due || self.donations.exporting {
            return Ok(());
        }
        self.donations.exporting = true;
        self.tell_device(ToDevice::Export)
    }

    pub(super) fn state_exported(&mut self, next_round: Round, state: DeviceState) {
        self.donations.exporting = false;
        let Stage::Running(running) = &self.stage else { return };
        let state = if self.shares_everything_in(next_round) {
            let updates = state.updates;
            HealedState { next_round, updates, buffers: shared_buffers(state, running) }
        } else {
            synchronised(running, state)
        };
        self.donations.give(&state);
    }
}

/// Returns the state if it does not need the device.
fn state_here(config: &RunConfig, running: &Running) -> Option<HealedState> {
    if config.sync.opens_with_gradients() {
        return running.device.load.as_ref().and_then(|load| not_loaded(running, load));
    }
    let mut buffers = vec![Arc::clone(running.replica.parameters())];
    if outer_step(&config.sync).has_memory() {
        let momentum = running.replica.momentum();
        let none_yet = || Arc::new(vec![0.0; running.rounds.layout.values as usize]);
        buffers.push(if momentum.is_empty() { none_yet() } else { Arc::clone(momentum) });
    }
    buffers.extend(average_of(running));
    Some(HealedState { next_round: running.replica.next_round(), buffers, updates: 0 })
}

/// Dense runs: the state held by a member and not yet loaded by its device. `None`: the device has it already.
fn not_loaded(running: &Running, load: &Load) -> Option<HealedState> {
    let zeros = || vec![0.0; running.rounds.layout.values as usize];
    let state = match load {
        Load::Nothing => return None,
        // Only the device can export its drawn factors.
        Load::Parameters(_) if running.rounds.layouts.has_exchanges() => return None,
        Load::Parameters(parameters) => DeviceState {
            parameters: parameters.clone(),
            first_moments: zeros(),
            second_moments: zeros(),
            ..DeviceState::default()
        },
        Load::All(state) | Load::Private { state, .. } => state.clone(),
    };
    Some(synchronised(running, state))
}

/// The synchronised parameters with a device's moments, the second of which are constant or synchronised.
fn synchronised(running: &Running, state: DeviceState) -> HealedState {
    let updates = state.updates;
    let mut buffers = shared_buffers(state, running);
    buffers[0] = Arc::clone(running.replica.parameters());
    HealedState { next_round: running.replica.next_round(), buffers, updates }
}

/// Returns the buffers that are equal on all members, as served.
fn shared_buffers(state: DeviceState, running: &Running) -> Vec<Arc<Vec<f32>>> {
    let DeviceState { parameters, first_moments, second_moments, factors, .. } = state;
    let factors = Some(factors).filter(|factors| !factors.is_empty());
    let of_device = [parameters, first_moments, second_moments].into_iter().chain(factors).map(Arc::new);
    of_device.chain(average_of(running)).collect()
}

fn average_of(running: &Running) -> Option<Arc<Vec<f32>>> {
    running.replica.average().map(|average| Arc::clone(average.values()))
}
