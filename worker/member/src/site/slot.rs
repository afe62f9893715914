use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use longhaul_common::id::Round;

use super::layout::SiteLayout;

/// A member's update of a round, or parts of it, for the site.
#[derive(Debug)]
pub(crate) struct Request {
    pub round: Round,
    /// Places of the fragments.
    pub layout: Arc<SiteLayout>,
    /// Parts since the last request of this round.
    pub pieces: Vec<Piece>,
    /// Samples behind it, the same in all requests of a round; with 0, the values are irrelevant.
    pub samples: u32,
}

/// A part of an update. Each fragment comes once.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Everything, in the order of [`SiteLayout::pack`].
    Whole(Vec<f32>),
    /// Fragment at this turn.
    Fragment { turn: usize, values: Vec<f32> },
}

impl Piece {
    pub fn is_finite(&self) -> bool {
        let (Self::Whole(values) | Self::Fragment { values, .. }) = self;
        values.iter().all(|value| value.is_finite())
    }
}

/// Room for the requests of one round: a newer round replaces it, because rounds are decided in order.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    request: Option<Request>,
    closed: bool,
}

impl Slot {
    /// Stores a request.
    pub fn put(&self, request: Request) {
        let mut state = self.lock();
        match &mut state.request {
            Some(waiting) if waiting.round == request.round => waiting.pieces.extend(request.pieces),
            waiting => *waiting = Some(request),
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Closes the slot.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits for a request of this round or a later one. `None`: the slot is closed.
    pub fn take(&self, from: Round) -> Option<Request> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(request) = state.request.take().filter(|request| request.round >= from) {
                return Some(request);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
