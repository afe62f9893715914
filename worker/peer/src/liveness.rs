//! Signs of life: workers of a site send them to its reporter, which reports all at once to the coordinator. See `worker/docs/agent.md`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::{HEARTBEAT_INTERVAL_MS, SIGNS_MAX, SignOfLife};
use longhaul_proto::transport::bulk::ReceiveError;
use tokio::time::{Instant, timeout};

use super::Network;
use super::request;

/// Timeout of a sign's answer, after which the worker reports for itself in time: within a site an answer takes a millisecond.
pub const ANSWER_MAX: Duration = Duration::from_millis(300);
/// Age at which a sign is no longer reported.
const AGE_MAX: Duration = Duration::from_millis(2 * HEARTBEAT_INTERVAL_MS);
/// A longer delay of a message to the coordinator shows that this process was suspended: the age of messages read then is unknown.
const OVERDUE_MAX: Duration = Duration::from_millis(250);

/// An acknowledgement takes a round trip, the peer's delay (25 ms at most, RFC 9000, section 18.2), and a probe's time after a loss; this and two round trips
/// cover all but several losses in a row.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_millis(200);
/// Messages remembered: as many as may be unacknowledged on a satellite link, with a round trip of a second and a half and a probe's time.
const SAID_MAX: usize = 8;

/// Outcome of a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// It will be reported.
    Taken {
        /// Time until the next message to the coordinator.
        next_in: Duration,
    },
    /// The other worker does not report at present.
    Refused,
    /// The connection is being made.
    Unconnected,
    /// No answer within the timeout.
    Unanswered,
}

/// Signs from other workers, and this worker's ability to report them.
#[derive(Default)]
pub(super) struct PeerLiveness {
    open: Mutex<Option<Open>>,
}

/// State of a conversation with the coordinator.
struct Open {
    /// Returns the number of acknowledgements from the coordinator so far, and their round trip.
    ear: Box<dyn Fn() -> (u64, Duration) + Send>,
    /// That number and the time at each of the last messages, newest first.
    said: VecDeque<(u64, Instant)>,
    /// Time of the next message.
    next_at: Instant,
    /// By worker: process and time of its newest sign.
    shown: BTreeMap<WorkerId, (u64, Instant)>,
}

impl Open {
    /// Reports whether anything has been acknowledged since the message before the last one.
    fn is_heard(&self) -> bool {
        self.said.get(1).is_some_and(|&(before, _)| (self.ear)().0 > before)
    }

    /// Reports whether anything has been acknowledged since the newest message whose acknowledgement is due; `true` if none is.
    fn may_be_heard(&self, now: Instant) -> bool {
        let (acknowledged, round_trip) = (self.ear)();
        let is_due = |&(_, at): &(u64, Instant)| {
            now.saturating_duration_since(at) >= 2 * round_trip + ACKNOWLEDGED_WITHIN
        };
        self.said.iter().find(|said| is_due(said)).is_none_or(|&(before, _)| acknowledged > before)
    }
}

impl PeerLiveness {
    /// Begins a conversation with the coordinator. `ear` returns the number of its acknowledgements, and their round trip.
    pub fn open(&self, ear: impl Fn() -> (u64, Duration) + Send + 'static, next_at: Instant) {
        *self.lock() =
            Some(Open { ear: Box::new(ear), said: VecDeque::new(), next_at, shown: BTreeMap::new() });
    }

    /// Ends it.
    pub fn close(&self) {
        *self.lock() = None;
    }

    /// Notes a sign of another worker; returns the time until its report. `None`: this worker cannot report it, or its ability is unknown.
    pub fn show(&self, worker: WorkerId, incarnation: u64, now: Instant) -> Option<Duration> {
        let mut open = self.lock();
        let open = open.as_mut().filter(|open| now <= open.next_at + OVERDUE_MAX && open.is_heard())?;
        if open.shown.len() >= SIGNS_MAX && !open.shown.contains_key(&worker) {
            return None;
        }
        open.shown.insert(worker, (incarnation, now));
        Some(open.next_at.saturating_duration_since(now))
    }

    /// Reports whether any sign is pending.
    pub fn are_there(&self) -> bool {
        self.lock().as_ref().is_some_and(|open| !open.shown.is_empty())
    }

    /// Reports whether the coordinator may be receiving this worker's messages.
    pub fn may_be_heard(&self, now: Instant) -> bool {
        self.lock().as_ref().is_none_or(|open| open.may_be_heard(now))
    }

    /// Takes the pending signs, each once. A message leaves now, and the next one at `next_at`.
    pub fn take(&self, now: Instant, next_at: Instant) -> Vec<SignOfLife> {
        let mut open = self.lock();
        let Some(open) = open.as_mut() else { return Vec::new() };
        open.said.truncate(SAID_MAX - 1);
        open.said.push_front(((open.ear)().0, now));
        open.next_at = next_at;
        let sign = |(worker, (incarnation, at)): (WorkerId, (u64, Instant))| {
            let age = now.saturating_duration_since(at);
            let age_ms = u16::try_from(age.as_millis()).ok().filter(|_| age <= AGE_MAX)?;
            Some(SignOfLife { worker, incarnation, age_ms })
        };
        std::mem::take(&mut open.shown).into_iter().filter_map(sign).collect()
    }

    /// Skips the present message, as another worker reports for this one; the next one may leave at `next_at`.
    pub fn put_off(&self, next_at: Instant) {
        if let Some(open) = self.lock().as_mut() {
            open.next_at = next_at;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network {
    /// Returns the worker that reports for this one: the lowest-numbered member of its site, unless that is itself. All of a site with the same part of the
    /// model agree on it.
    #[must_use]
    pub fn speaker(&self) -> Option<WorkerId> {
        let state = self.lock();
        let first = state.peers.iter().find(|(_, peer)| peer.site == self.own.site);
        first.map(|(&worker, _)| worker).filter(|worker| *worker < self.own.worker)
    }

    /// Sends a sign of life of this process to another worker of this site.
    pub async fn show_sign(self: &Arc<Self>, to: WorkerId, incarnation: u64) -> Shown {
        let Some(peer) = self.lock().peers.get(&to).cloned() else { return Shown::Refused };
        let Some(connection) = peer.connected() else {
            self.dial(&peer);
            return Shown::Unconnected;
        };
        match timeout(ANSWER_MAX, request::show_sign(connection.connection(), incarnation)).await {
            Ok(Ok(next_in)) => Shown::Taken { next_in },
            Ok(Err(error)) if error.downcast_ref().is_some_and(ReceiveError::is_refusal) => Shown::Refused,
            Ok(Err(_)) | Err(_) => Shown::Unanswered,
        }
    }

    /// Begins a conversation with the coordinator, in which this worker can report for others; `ear` returns its acknowledgements and their round trip.
    pub fn open_signs(&self, ear: impl Fn() -> (u64, Duration) + Send + 'static, next_at: Instant) {
        self.signs.open(ear, next_at);
    }

    /// Ends it.
    pub fn close_signs(&self) {
        self.signs.close();
    }

    /// Reports whether the coordinator may be receiving this worker's messages: it acknowledged earlier ones.
    #[must_use]
    pub fn may_be_heard(&self, now: Instant) -> bool {
        self.signs.may_be_heard(now)
    }

    /// Reports whether others have sent signs since the last message.
    #[must_use]
    pub fn has_signs(&self) -> bool {
        self.signs.are_there()
    }

    /// Takes the signs for the present message to the coordinator; the next one leaves at `next_at`.
    pub fn take_signs(&self, now: Instant, next_at: Instant) -> Vec<SignOfLife> {
        self.signs.take(now, next_at)
    }

    /// Skips the present message.
    pub fn put_off_signs(&self, next_at: Instant) {
        self.signs.put_off(next_at);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const BEAT: Duration = Duration::from_millis(HEARTBEAT_INTERVAL_MS);
    const ROUND_TRIP: Duration = Duration::from_millis(100);
    const W2: WorkerId = WorkerId(2);
    const W3: WorkerId = WorkerId(3);

    /// A worker that reports each half second, and the time of its next message.
    struct Speaker {
        signs: PeerLiveness,
        heard: Arc<AtomicU64>,
        next_at: Instant,
    }

    impl Speaker {
        /// After two acknowledged messages.
        fn speaking() -> Self {
            Self::speaking_over(ROUND_TRIP)
        }

        fn speaking_over(round_trip: Duration) -> Self {
            let heard = Arc::new(AtomicU64::new(7));
            let (signs, ear, next_at) = (PeerLiveness::default(), Arc::clone(&heard), Instant::now());
            signs.open(move || (ear.load(Ordering::Relaxed), round_trip), next_at);
            let mut speaker = Self { signs, heard, next_at };
            (0..2).for_each(|_| assert!(speaker.speak(true).is_empty()));
            speaker
        }

        fn speak(&mut self, is_heard: bool) -> Vec<SignOfLife> {
            let now = self.next_at;
            self.next_at += BEAT;
            let taken = self.signs.take(now, self.next_at);
            self.heard.fetch_add(u64::from(is_heard), Ordering::Relaxed);
            taken
        }

        fn show(&self, worker: WorkerId, before: Duration) -> Option<Duration> {
            self.signs.show(worker, 70, self.next_at - before)
        }
    }

    fn sign(worker: WorkerId, age_ms: u16) -> SignOfLife {
        SignOfLife { worker, incarnation: 70, age_ms }
    }

    #[tokio::test(start_paused = true)]
    async fn each_sign_is_told_once_with_its_age() {
        let mut speaker = Speaker::speaking();
        for before in [300, 100] {
            let before = Duration::from_millis(before);
            assert_eq!(speaker.show(W2, before), Some(before), "time until the report");
        }
        speaker.show(W3, Duration::from_millis(50));
        assert!(speaker.signs.are_there());
        assert_eq!(speaker.speak(true), [sign(W2, 100), sign(W3, 50)]);
        assert!(!speaker.signs.are_there() && speaker.speak(true).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_not_heard_by_the_coordinator_takes_no_signs() {
        let mut speaker = Speaker::speaking();
        let soon = Duration::from_millis(50);
        speaker.speak(false);
        assert!(speaker.show(W2, soon).is_some(), "one message may be in flight for longer");
        speaker.speak(false);
        assert_eq!(speaker.show(W2, soon), None);
        // A packet arrives.
        speaker.heard.fetch_add(1, Ordering::Relaxed);
        assert!(speaker.show(W2, soon).is_some());
        speaker.signs.close();
        assert_eq!(speaker.show(W2, soon), None);
        assert!(speaker.speak(true).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_acknowledged_in_time_was_not_heard() {
        let mut speaker = Speaker::speaking();
        speaker.speak(false);
        let said = speaker.next_at - BEAT;
        let may_be_heard = |after: u64| speaker.signs.may_be_heard(said + Duration::from_millis(after));
        assert!(may_be_heard(399), "it may be in flight");
        assert!(!may_be_heard(400) && !may_be_heard(3_600_000));
        speaker.heard.fetch_add(1, Ordering::Relaxed);
        assert!(may_be_heard(400), "a probe was answered");
        assert!(PeerLiveness::default().may_be_heard(said), "without a conversation nothing was sent");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_said_meanwhile_does_not_hide_what_was_not_acknowledged_over_a_satellite() {
        let mut speaker = Speaker::speaking_over(Duration::from_millis(1400));
        let said = speaker.next_at;
        (0..6).for_each(|_| assert!(speaker.speak(false).is_empty()));
        let may_be_heard = |after: u64| speaker.signs.may_be_heard(said + Duration::from_millis(after));
        assert!(may_be_heard(2999) && !may_be_heard(3000));
        speaker.heard.fetch_add(1, Ordering::Relaxed);
        assert!(may_be_heard(3000));
    }

    #[tokio::test(start_paused = true)]
    async fn who_stood_still_takes_no_signs_and_tells_no_old_ones() {
        let speaker = Speaker::speaking();
        speaker.show(W2, Duration::from_millis(50));
        let late = speaker.next_at + Duration::from_millis(1500);
        assert_eq!(speaker.signs.show(W3, 70, late), None);
        assert!(speaker.signs.take(late, late + BEAT).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_speaker_has_room_for_as_many_as_a_message_has() {
        let speaker = Speaker::speaking();
        let soon = Duration::from_millis(50);
        let taken = (0..=SIGNS_MAX as u32).filter(|worker| speaker.show(WorkerId(*worker), soon).is_some());
        assert_eq!(taken.count(), SIGNS_MAX);
        assert!(speaker.show(W2, soon).is_some(), "a known worker again");
    }
}
