use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use longhaul_common::id::Round;

use super::plan::SiteLayout;

/// One member's update of a round, for the site.
#[derive(Debug)]
pub(in crate::sync) struct Request {
    pub round: Round,
    /// Where everything is.
    pub layout: SiteLayout,
    /// The update, packed.
    pub values: Vec<f32>,
    /// Samples behind it; with 0, what the values are does not matter.
    pub samples: u32,
}

/// Room for one request: a newer one takes the place of one that nobody has begun, as rounds are decided in order.
#[derive(Debug, Default)]
pub(in crate::sync) struct Slot {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    request: Option<Request>,
    closed: bool,
}

impl Slot {
    /// Leaves a request.
    pub fn put(&self, request: Request) {
        self.lock().request = Some(request);
        self.changed.notify_all();
    }

    /// Nothing more comes.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits for a request of this round or a later one. None: the slot is closed.
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
