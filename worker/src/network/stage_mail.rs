//! What other ranks of this worker's replica have sent, until its device asks for it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use longhaul_common::id::{Generation, WorkerId};

/// What a letter is about. The same for sender and receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct About {
    /// In which of the exchanges that all ranks begin in the same order.
    pub exchange: u64,
    /// Of which kind.
    pub kind: LetterKind,
    /// The sender's chunk.
    pub chunk: u32,
    /// The micro-batch.
    pub micro_batch: u32,
}

/// The kinds of letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LetterKind {
    /// A residual stream.
    Forward,
    /// The gradient of one.
    Backward,
    /// A number that is summed over all ranks.
    Number,
    /// A tensor that is handed over.
    Given,
}

/// The replica has changed, or this worker stops: nobody sends what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the replica's other workers are not there any more")]
pub struct Interrupted;

/// One worker's letters. What is unread is bounded by the memory that the transport lends for frames, of which each part keeps its share: who
/// sends more has to wait.
#[derive(Debug)]
pub struct StageMail<Memory> {
    state: Mutex<State<Memory>>,
    came: Condvar,
}

#[derive(Debug)]
struct State<Memory> {
    /// The replica that this worker belongs to: the generation in which it was formed.
    session: Option<Generation>,
    /// By session and sender: also of a session that this worker has not been told of yet.
    letters: HashMap<(Generation, WorkerId, About), Letter<Memory>>,
}

/// The parts that are here.
type Letter<Memory> = BTreeMap<u32, (Bytes, Memory)>;

impl<Memory> Default for StageMail<Memory> {
    fn default() -> Self {
        Self { state: Mutex::new(State { session: None, letters: HashMap::new() }), came: Condvar::new() }
    }
}

impl<Memory> StageMail<Memory> {
    /// From now on, letters of this session count; those of others are forgotten, and who waits for one is told. None: this worker computes alone.
    pub fn open(&self, session: Option<Generation>) {
        let mut state = self.lock();
        if state.session == session {
            return;
        }
        state.session = session;
        state.letters.retain(|(of, ..), _| Some(*of) >= session);
        self.came.notify_all();
    }

    /// Keeps a part of a letter. One of a session that is over is dropped.
    pub fn deliver(
        &self,
        session: Generation,
        from: WorkerId,
        about: About,
        part: u32,
        body: Bytes,
        memory: Memory,
    ) {
        let mut state = self.lock();
        if Some(session) < state.session {
            return;
        }
        state.letters.entry((session, from, about)).or_default().insert(part, (body, memory));
        self.came.notify_all();
    }

    /// Waits for a letter of so many parts, and takes it.
    ///
    /// # Errors
    /// [`Interrupted`], when the session is over.
    pub fn wait(
        &self,
        session: Generation,
        from: WorkerId,
        about: About,
        parts: usize,
    ) -> Result<Vec<Bytes>, Interrupted> {
        let key = (session, from, about);
        let is_missing = |state: &mut State<Memory>| {
            state.session == Some(session)
                && state.letters.get(&key).is_none_or(|letter| letter.len() < parts)
        };
        let mut state = self.came.wait_while(self.lock(), is_missing).unwrap_or_else(PoisonError::into_inner);
        if state.session != Some(session) {
            return Err(Interrupted);
        }
        let letter = state.letters.remove(&key).ok_or(Interrupted)?;
        Ok(letter.into_values().map(|(body, _)| body).collect())
    }

    /// Whether letters of this session count.
    pub fn is_open(&self, session: Generation) -> bool {
        self.lock().session == Some(session)
    }

    /// The state is consistent after each statement that changes it, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State<Memory>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{OwnedSemaphorePermit, Semaphore};

    use super::*;

    type Mail = StageMail<OwnedSemaphorePermit>;

    const ABOUT: About = About { exchange: 3, kind: LetterKind::Forward, chunk: 0, micro_batch: 1 };

    fn deliver(mail: &Mail, memory: &Arc<Semaphore>, session: u64, part: u32, body: &'static [u8]) {
        let share = Arc::clone(memory).try_acquire_many_owned(body.len() as u32).unwrap();
        mail.deliver(Generation(session), WorkerId(1), ABOUT, part, Bytes::from_static(body), share);
    }

    #[test]
    fn parts_come_in_any_order_and_before_the_session_and_free_their_memory_when_they_are_read() {
        let (mail, memory) = (Arc::new(Mail::default()), Arc::new(Semaphore::new(100)));
        deliver(&mail, &memory, 7, 1, b"second");
        mail.open(Some(Generation(7)));
        let reader = std::thread::spawn({
            let mail = Arc::clone(&mail);
            move || mail.wait(Generation(7), WorkerId(1), ABOUT, 2)
        });
        deliver(&mail, &memory, 7, 0, b"first");
        let read = reader.join().unwrap().unwrap();
        assert_eq!(read, [Bytes::from_static(b"first"), Bytes::from_static(b"second")]);
        assert_eq!(memory.available_permits(), 100);
    }

    #[test]
    fn who_waits_for_a_session_that_ends_is_told_and_its_letters_are_forgotten() {
        let (mail, memory) = (Arc::new(Mail::default()), Arc::new(Semaphore::new(100)));
        mail.open(Some(Generation(7)));
        deliver(&mail, &memory, 7, 0, b"first");
        let reader = std::thread::spawn({
            let mail = Arc::clone(&mail);
            move || mail.wait(Generation(7), WorkerId(1), ABOUT, 2)
        });
        mail.open(Some(Generation(8)));
        assert_eq!(reader.join().unwrap(), Err(Interrupted));
        assert_eq!(memory.available_permits(), 100);
        deliver(&mail, &memory, 7, 1, b"late");
        assert_eq!(memory.available_permits(), 100);
        mail.open(None);
        assert_eq!(mail.wait(Generation(8), WorkerId(1), ABOUT, 1), Err(Interrupted));
    }
}
