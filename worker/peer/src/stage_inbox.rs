//! Messages from other ranks of this worker's replica, until its device takes them.

use std::collections::HashMap;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_proto::frame::{FrameKind, FrameMeta};

/// Bytes that may wait for the device: a residual stream for each micro-batch and chunk, in each direction, and a borrowed embedding. Beyond this, frames are
/// refused and retried, except for the message that the device waits for.
const UNREAD_BYTES_MAX: usize = 4 << 30;
/// Parts of messages that may wait, because each has overhead.
const UNREAD_PARTS_MAX: usize = 1 << 16;

/// Bytes kept for a future session: other ranks may learn of it earlier, and send all messages that the schedule permits.
const EARLY_BYTES_MAX: usize = 1 << 30;

/// Identity of a message, the same for sender and receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct About {
    /// Index among the exchanges, which all ranks begin in the same order.
    pub exchange: u64,
    /// Kind.
    pub kind: StageKind,
    /// Sender's chunk.
    pub chunk: u32,
    /// Micro-batch.
    pub micro_batch: u32,
}

impl About {
    /// Returns the header of a frame with a part of such a message.
    #[must_use]
    pub fn to_meta(self, session: Generation, sender: WorkerId, part: u32) -> FrameMeta {
        let kind = match self.kind {
            StageKind::Forward => 0,
            StageKind::Backward => 1,
            StageKind::Number => 2,
            StageKind::Given => 3,
            StageKind::Returned => 4,
        };
        FrameMeta {
            kind: FrameKind::Stage,
            generation: session,
            round: Round(self.exchange),
            fragment: FragmentId(self.micro_batch),
            sender,
            weight: self.chunk * KINDS + kind,
            part,
        }
    }

    /// Decodes the result of [`Self::to_meta`]; `None`: unknown kind.
    pub(crate) fn of_meta(meta: &FrameMeta) -> Option<Self> {
        let kind = match meta.weight % KINDS {
            0 => StageKind::Forward,
            1 => StageKind::Backward,
            2 => StageKind::Number,
            3 => StageKind::Given,
            4 => StageKind::Returned,
            _ => return None,
        };
        let (exchange, micro_batch) = (meta.round.0, meta.fragment.0);
        Some(Self { exchange, kind, chunk: meta.weight / KINDS, micro_batch })
    }
}

/// Kinds of messages in a header's field.
const KINDS: u32 = 5;

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StageKind {
    /// A residual stream.
    Forward,
    /// The gradient of one.
    Backward,
    /// A number to be summed over all ranks.
    Number,
    /// A lent parameter.
    Given,
    /// The gradient of one.
    Returned,
}

/// The replica has changed, or this worker stops: the message will not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the replica's other workers have left")]
pub struct Interrupted;

/// A worker's messages of one session, from the workers of its replica; all others are refused at once.
#[derive(Debug, Default)]
pub struct StageInbox {
    state: Mutex<State>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct State {
    replica: Option<StageGroup>,
    /// Last exchange requested by the device: older ones are read, or never will be.
    exchange: u64,
    /// Message that the device waits for, of known length.
    awaited: Option<(WorkerId, About)>,
    messages: HashMap<(WorkerId, About), BTreeMap<u32, Bytes>>,
    unread_parts: usize,
    unread_bytes: usize,
    /// Messages of future sessions.
    early: Vec<Early>,
    early_bytes: usize,
}

/// A part of a future session's message.
#[derive(Debug)]
struct Early {
    session: Generation,
    from: WorkerId,
    about: About,
    part: u32,
    body: Bytes,
}

/// The workers of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageGroup {
    /// Generation in which it was formed.
    pub session: Generation,
    /// Its workers, by rank.
    pub workers: Vec<WorkerId>,
}

impl StageInbox {
    /// Switches to messages of this replica; drops others and interrupts waits for them. `None`: this worker computes alone.
    pub fn open(&self, replica: Option<StageGroup>) {
        let mut state = self.lock();
        if state.replica == replica {
            return;
        }
        let early = std::mem::take(&mut state.early);
        let opened = replica.as_ref().map(|replica| replica.session);
        *state = State { replica, ..State::default() };
        for message in
            early.into_iter().filter(|message| opened.is_some_and(|opened| message.session >= opened))
        {
            state.keep(message);
        }
        self.came.notify_all();
    }

    /// Reports whether a part of a message would be kept: of this session or a future one. Senders may not notice a refusal, so only illegal parts are
    /// refused.
    pub fn admits(&self, session: Generation, from: WorkerId, about: About, bytes: usize) -> bool {
        self.lock().admits(session, from, about, bytes)
    }

    /// Keeps a part of a message of this session, except a duplicate of a read one.
    pub fn deliver(&self, session: Generation, from: WorkerId, about: About, part: u32, body: Bytes) {
        // It was admitted: the memory for frames bounds parts in between.
        self.lock().keep(Early { session, from, about, part, body });
        self.came.notify_all();
    }

    /// Waits for a message of this many parts, and takes it.
    ///
    /// # Errors
    /// [`Interrupted`], after the end of the session.
    pub fn wait(
        &self,
        session: Generation,
        from: WorkerId,
        about: About,
        parts: usize,
    ) -> Result<Vec<Bytes>, Interrupted> {
        let mut state = self.lock();
        if about.exchange > state.exchange {
            state.begin(about.exchange);
        }
        let key = (from, about);
        state.awaited = Some(key);
        let is_missing = |state: &mut State| {
            state.is_of(session) && state.messages.get(&key).is_none_or(|message| message.len() < parts)
        };
        let mut state = self.came.wait_while(state, is_missing).unwrap_or_else(PoisonError::into_inner);
        state.awaited = None;
        if !state.is_of(session) {
            return Err(Interrupted);
        }
        Ok(state.take(&key).into_values().collect())
    }

    /// Returns the replica's workers, including this one; empty if it computes alone.
    pub fn workers(&self) -> Vec<WorkerId> {
        self.lock().replica.as_ref().map(|replica| replica.workers.clone()).unwrap_or_default()
    }

    /// Reports whether this session is the present one.
    pub fn is_open(&self, session: Generation) -> bool {
        self.lock().is_of(session)
    }

    /// Each statement leaves the state consistent, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn knows(&self, session: Generation, from: WorkerId) -> bool {
        let is_one = |replica: &StageGroup| replica.session == session && replica.workers.contains(&from);
        self.replica.as_ref().is_some_and(is_one)
    }

    fn is_to_come(&self, session: Generation) -> bool {
        self.replica.as_ref().is_none_or(|replica| replica.session < session)
    }

    /// Keeps a part of a message of the present or a future session.
    fn keep(&mut self, message: Early) {
        let Early { session, from, about, part, .. } = message;
        let bytes = message.body.len();
        if self.is_to_come(session) {
            self.early_bytes += bytes;
            self.early.push(message);
            return;
        }
        if !self.knows(session, from) || about.exchange < self.exchange {
            return;
        }
        if let Entry::Vacant(place) = self.messages.entry((from, about)).or_default().entry(part) {
            place.insert(message.body);
            self.unread_parts += 1;
            self.unread_bytes += bytes;
        }
    }

    fn admits(&self, session: Generation, from: WorkerId, about: About, bytes: usize) -> bool {
        if self.is_to_come(session) {
            let has_room = self.early.len() < UNREAD_PARTS_MAX && self.early_bytes + bytes <= EARLY_BYTES_MAX;
            return bytes > 0 && has_room;
        }
        let has_room = self.unread_parts < UNREAD_PARTS_MAX && self.unread_bytes + bytes <= UNREAD_BYTES_MAX;
        self.knows(session, from) && bytes > 0 && (has_room || self.awaited == Some((from, about)))
    }

    fn is_of(&self, session: Generation) -> bool {
        self.replica.as_ref().is_some_and(|replica| replica.session == session)
    }

    /// Drops older messages: duplicates of read parts.
    fn begin(&mut self, exchange: u64) {
        self.exchange = exchange;
        let old: Vec<_> =
            self.messages.keys().filter(|(_, about)| about.exchange < exchange).copied().collect();
        for key in old {
            self.take(&key);
        }
    }

    fn take(&mut self, key: &(WorkerId, About)) -> BTreeMap<u32, Bytes> {
        let message = self.messages.remove(key).unwrap_or_default();
        self.unread_parts -= message.len();
        self.unread_bytes -= message.values().map(Bytes::len).sum::<usize>();
        message
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const ONE: WorkerId = WorkerId(1);
    const SEVENTH: Generation = Generation(7);

    fn about(exchange: u64) -> About {
        About { exchange, kind: StageKind::Forward, chunk: 0, micro_batch: 1 }
    }

    fn mail() -> Arc<StageInbox> {
        let mail = Arc::new(StageInbox::default());
        mail.open(Some(StageGroup { session: SEVENTH, workers: vec![ONE, WorkerId(2)] }));
        mail
    }

    fn deliver(mail: &StageInbox, exchange: u64, part: u32, body: &'static [u8]) {
        mail.deliver(SEVENTH, ONE, about(exchange), part, Bytes::from_static(body));
    }

    fn unread(mail: &StageInbox) -> (usize, usize, usize) {
        let state = mail.lock();
        (state.messages.len(), state.unread_parts, state.unread_bytes)
    }

    #[test]
    fn parts_come_in_any_order_and_are_forgotten_when_they_are_read() {
        let mail = mail();
        deliver(&mail, 3, 1, b"second");
        assert_eq!(unread(&mail), (1, 1, 6));
        let reader = std::thread::spawn({
            let mail = Arc::clone(&mail);
            move || mail.wait(SEVENTH, ONE, about(3), 2)
        });
        deliver(&mail, 3, 0, b"first");
        let read = reader.join().unwrap().unwrap();
        assert_eq!(read, [Bytes::from_static(b"first"), Bytes::from_static(b"second")]);
        assert_eq!(unread(&mail), (0, 0, 0));
    }

    #[test]
    fn a_part_that_comes_again_is_gone_with_the_next_exchange() {
        let mail = mail();
        for _ in 0..2 {
            deliver(&mail, 3, 0, b"twice");
        }
        assert_eq!(unread(&mail), (1, 1, 5));
        mail.wait(SEVENTH, ONE, about(3), 1).unwrap();
        deliver(&mail, 3, 0, b"twice");
        deliver(&mail, 4, 0, b"next");
        mail.wait(SEVENTH, ONE, about(4), 1).unwrap();
        deliver(&mail, 3, 0, b"twice");
        assert_eq!(unread(&mail), (0, 0, 0));
    }

    #[test]
    fn strangers_other_sessions_empty_parts_and_too_much_are_turned_away() {
        let mail = mail();
        assert!(mail.admits(SEVENTH, ONE, about(3), UNREAD_BYTES_MAX));
        assert!(!mail.admits(SEVENTH, ONE, about(3), UNREAD_BYTES_MAX + 1));
        assert!(!mail.admits(SEVENTH, WorkerId(3), about(3), 1));
        assert!(!mail.admits(Generation(6), ONE, about(3), 1) && !mail.admits(SEVENTH, ONE, about(3), 0));
        for part in 0..UNREAD_PARTS_MAX as u32 {
            assert!(mail.admits(SEVENTH, ONE, about(3), 1));
            deliver(&mail, 3, part, b"x");
        }
        assert!(!mail.admits(SEVENTH, ONE, about(3), 1));
        // Another body in place of a present one is ignored.
        deliver(&mail, 3, 0, b"longer");
        assert_eq!(unread(&mail), (1, UNREAD_PARTS_MAX, UNREAD_PARTS_MAX));
        mail.wait(SEVENTH, ONE, about(3), 1).unwrap();
        assert_eq!(unread(&mail), (0, 0, 0));
        assert!(!StageInbox::default().admits(SEVENTH, ONE, about(3), 0));
    }

    /// One message may exceed the limit, as a tied embedding does, and others may have come first.
    #[test]
    fn the_message_that_the_device_waits_for_always_has_room() {
        let mail = mail();
        (0..UNREAD_PARTS_MAX as u32).for_each(|part| deliver(&mail, 3, part, b"x"));
        assert!(!mail.admits(SEVENTH, WorkerId(2), about(3), 1));
        let reader = std::thread::spawn({
            let mail = Arc::clone(&mail);
            move || mail.wait(SEVENTH, WorkerId(2), about(3), 1)
        });
        while !mail.admits(SEVENTH, WorkerId(2), about(3), UNREAD_BYTES_MAX) {
            std::thread::yield_now();
        }
        assert!(!mail.admits(SEVENTH, WorkerId(2), about(4), 1), "not another one from its sender");
        mail.deliver(SEVENTH, WorkerId(2), about(3), 0, Bytes::from_static(b"awaited"));
        assert_eq!(reader.join().unwrap(), Ok(vec![Bytes::from_static(b"awaited")]));
        assert!(!mail.admits(SEVENTH, WorkerId(2), about(3), 1));
    }

    /// Ranks learn of their session one after the other, and the first one begins.
    #[test]
    fn messages_of_a_session_to_come_wait_for_it_and_are_bounded() {
        let mail = StageInbox::default();
        assert!(
            mail.admits(SEVENTH, ONE, about(3), EARLY_BYTES_MAX)
                && !mail.admits(SEVENTH, ONE, about(3), EARLY_BYTES_MAX + 1)
        );
        deliver(&mail, 3, 0, b"early");
        mail.deliver(SEVENTH, WorkerId(9), about(3), 0, Bytes::from_static(b"stranger"));
        mail.deliver(Generation(6), ONE, about(3), 0, Bytes::from_static(b"old"));
        mail.deliver(Generation(8), ONE, about(3), 0, Bytes::from_static(b"next"));
        let replica = |session| Some(StageGroup { session, workers: vec![ONE, WorkerId(2)] });
        mail.open(replica(SEVENTH));
        assert_eq!(mail.wait(SEVENTH, ONE, about(3), 1), Ok(vec![Bytes::from_static(b"early")]));
        assert_eq!(unread(&mail), (0, 0, 0));
        mail.open(replica(Generation(8)));
        assert_eq!(mail.wait(Generation(8), ONE, about(3), 1), Ok(vec![Bytes::from_static(b"next")]));
        let state = mail.lock();
        assert_eq!((state.early.len(), state.early_bytes), (0, 0));
    }

    #[test]
    fn who_waits_for_a_session_that_ends_is_told_and_its_messages_are_forgotten() {
        let mail = mail();
        deliver(&mail, 3, 0, b"first");
        let reader = std::thread::spawn({
            let mail = Arc::clone(&mail);
            move || mail.wait(SEVENTH, ONE, about(3), 2)
        });
        mail.open(Some(StageGroup { session: Generation(8), workers: vec![ONE] }));
        assert_eq!(reader.join().unwrap(), Err(Interrupted));
        deliver(&mail, 3, 1, b"late");
        assert_eq!(unread(&mail), (0, 0, 0));
        mail.open(None);
        assert_eq!(mail.wait(Generation(8), ONE, about(3), 1), Err(Interrupted));
    }
}
