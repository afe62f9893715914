//! Choice of the sender of this worker's heartbeats: itself or another member of its site. Design: `docs/agent.md`.

use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::{HEARTBEAT_INTERVAL_MS, OWN_WORD_EVERY};
use tokio::time::Instant;

use longhaul_peer::Shown;

/// Heartbeat interval.
const INTERVAL: Duration = Duration::from_millis(HEARTBEAT_INTERVAL_MS);
/// Lead of a heartbeat over the speaker's next message: time to schedule a thread. A late one would go with the following message, half a second old.
const LEAD: Duration = Duration::from_millis(50);
/// Initial pause without a speaker after a failure: the worker then sends its own heartbeats.
const REST: Duration = Duration::from_secs(5);
/// Limit on the doublings of this pause, one per failure: 2⁶ times are five minutes.
const REST_DOUBLINGS: u32 = 6;

/// The route of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beat {
    /// Directly to the coordinator.
    Own,
    /// Through this worker, which passes it to the coordinator.
    Through(WorkerId),
}

/// Chooses the route of each heartbeat, without clock or socket.
///
/// Call [`Speaking::begin`] for each conversation and [`Speaking::beat`] at [`Speaking::next_at`]. Pass the result of [`Beat::Through`] to [`Speaking::shown`]
/// before the next beat.
#[derive(Debug)]
pub(super) struct Speaking {
    /// Whether another worker may report for this one.
    is_allowed: bool,
    next_at: Instant,
    /// Number of heartbeats in this conversation.
    beats: u64,
    /// The speaker chosen for the last heartbeat.
    speaker: Option<WorkerId>,
    /// Time before which the speaker is not used.
    rests_until: Option<Instant>,
    /// Number of the speaker's failures.
    failures: u32,
    /// Whether the speaker has ever passed a heartbeat on.
    has_spoken: bool,
}

impl Speaking {
    pub fn new(is_allowed: bool, now: Instant) -> Self {
        Self {
            is_allowed,
            next_at: now,
            beats: 0,
            speaker: None,
            rests_until: None,
            failures: 0,
            has_spoken: false,
        }
    }

    /// Starts a conversation: its first heartbeat goes directly to the coordinator.
    pub fn begin(&mut self, now: Instant) {
        (self.next_at, self.beats) = (now, 0);
    }

    /// Returns the time of the next heartbeat.
    pub fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Routes a due heartbeat. `speaker`: the member that reports for this worker, if any; `is_relied_on`: peers pass their heartbeats to this worker.
    pub fn beat(&mut self, now: Instant, speaker: Option<WorkerId>, is_relied_on: bool) -> Beat {
        let is_own_word = self.beats.is_multiple_of(OWN_WORD_EVERY);
        self.beats += 1;
        self.next_at = now + INTERVAL;
        if self.speaker != speaker {
            (self.speaker, self.rests_until, self.failures, self.has_spoken) = (speaker, None, 0, false);
        }
        let is_resting = self.rests_until.is_some_and(|until| now < until);
        match speaker {
            Some(speaker) if self.is_allowed && !is_own_word && !is_relied_on && !is_resting => {
                Beat::Through(speaker)
            }
            _ => Beat::Own,
        }
    }

    /// Records the result of [`Beat::Through`]; true: this worker must send the heartbeat itself, at once.
    pub fn shown(&mut self, now: Instant, shown: Shown) -> bool {
        match shown {
            Shown::Taken { next_in } => {
                let next_in = next_in.min(INTERVAL);
                // Just before the speaker's next message or the one after, whichever is nearer to half a second from now.
                let turns = if next_in < INTERVAL / 2 { next_in + INTERVAL } else { next_in };
                self.next_at = now + turns.saturating_sub(LEAD);
                if !std::mem::replace(&mut self.has_spoken, true) {
                    let speaker = self.speaker.map(|speaker| speaker.to_string());
                    tracing::info!(speaker, "another worker of this site says that this one is alive");
                }
                return false;
            }
            Shown::Refused | Shown::Unconnected => self.rests_until = Some(now + REST),
            Shown::Unanswered => self.is_let_down(now),
        }
        true
    }

    /// Records the coordinator's query after a silence of this worker.
    pub fn asked(&mut self, now: Instant) {
        if self.rests_until.is_none_or(|until| until <= now) {
            self.is_let_down(now);
        }
    }

    fn is_let_down(&mut self, now: Instant) {
        self.rests_until = Some(now + REST * (1 << self.failures.min(REST_DOUBLINGS)));
        self.failures = self.failures.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::config::SPOKEN_FOR_SILENCE_MIN_MS;

    use super::*;
    use longhaul_peer::ANSWER_MAX;

    const SPEAKER: Option<WorkerId> = Some(WorkerId(1));
    const THROUGH: Beat = Beat::Through(WorkerId(1));

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// An instance after its first heartbeat, and the time of that.
    fn speaking() -> (Speaking, Instant) {
        let now = Instant::now();
        let mut speaking = Speaking::new(true, now);
        speaking.begin(now);
        assert_eq!(speaking.beat(now, SPEAKER, false), Beat::Own);
        (speaking, now)
    }

    /// The routes of heartbeats until `to`, each at its due time.
    fn beats(speaking: &mut Speaking, to: Instant, shown: impl Fn(Instant) -> Shown) -> Vec<(Instant, Beat)> {
        let mut beats = Vec::new();
        while speaking.next_at() < to {
            let now = speaking.next_at();
            let beat = speaking.beat(now, SPEAKER, false);
            if beat != Beat::Own {
                speaking.shown(now, shown(now));
            }
            beats.push((now, beat));
        }
        beats
    }

    #[test]
    fn one_heartbeat_of_five_is_its_own_while_another_one_speaks() {
        let (mut speaking, now) = speaking();
        let said = beats(&mut speaking, now + ms(60_000), |_| Shown::Taken { next_in: LEAD });
        let own: Vec<_> = said.iter().filter(|(_, beat)| *beat == Beat::Own).map(|(at, _)| *at).collect();
        assert!(own.windows(2).all(|pair| pair[1] - pair[0] == INTERVAL * OWN_WORD_EVERY as u32));
        assert_eq!((said.len(), own.len()), (119, 23));
    }

    #[test]
    fn signs_are_shown_just_before_the_speaker_tells_of_them() {
        for phase in 0..500 {
            let (mut speaking, began) = speaking();
            // The speaker reports every half second, at this phase.
            let next_in = |now: Instant| {
                let since = now - began + ms(500 - phase);
                ms(500 - (since.as_millis() % 500) as u64)
            };
            let said = beats(&mut speaking, began + ms(10_000), |now| Shown::Taken { next_in: next_in(now) });
            assert!(said.windows(2).all(|pair| pair[1].0 - pair[0].0 <= ms(700)), "at phase {phase}");
            assert!(said.iter().skip(5).all(|(at, _)| next_in(*at) == LEAD), "at phase {phase}");
        }
    }

    #[test]
    fn who_is_let_down_speaks_for_itself_at_once_and_for_longer_each_time() {
        let (mut speaking, began) = speaking();
        assert_eq!(speaking.beat(began + INTERVAL, SPEAKER, false), THROUGH);
        assert!(speaking.shown(began + INTERVAL + ANSWER_MAX, Shown::Unanswered));
        let said = beats(&mut speaking, began + ms(3_600_000), |_| Shown::Unanswered);
        let through: Vec<_> = said.iter().filter(|(_, beat)| *beat == THROUGH).map(|(at, _)| *at).collect();
        let pauses: Vec<_> = through.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
        assert!(pauses.starts_with(&[10, 20, 40, 80, 160, 320, 320]), "{pauses:?}");
        assert!(through[0] - began >= REST);
    }

    /// Includes a speaker that accepts the last heartbeat and then stalls before passing it on.
    #[test]
    fn who_is_let_down_is_heard_again_well_before_it_is_missed() {
        let since_last_told = INTERVAL * 2 + ms(200) + ANSWER_MAX;
        assert!(since_last_told + ms(500) <= ms(SPOKEN_FOR_SILENCE_MIN_MS));
    }

    #[test]
    fn nobody_is_asked_to_speak_where_that_is_not_allowed_or_nobody_is_there_or_others_rely_on_this_one() {
        let (mut speaking, now) = speaking();
        assert_eq!(speaking.beat(now, SPEAKER, true), Beat::Own);
        assert_eq!(speaking.beat(now, None, false), Beat::Own);
        assert_eq!(speaking.beat(now, SPEAKER, false), THROUGH);
        let mut alone = Speaking::new(false, now);
        assert!((0..20).all(|_| alone.beat(now, SPEAKER, false) == Beat::Own));
    }

    #[test]
    fn who_is_asked_to_speak_does_so_for_a_while_and_another_speaker_is_another_matter() {
        let (mut speaking, now) = speaking();
        speaking.asked(now);
        assert_eq!(speaking.beat(now + ms(500), SPEAKER, false), Beat::Own);
        speaking.asked(now + ms(600));
        assert_eq!(speaking.beat(now + ms(4900), SPEAKER, false), Beat::Own);
        assert_eq!(
            speaking.beat(now + ms(5000), SPEAKER, false),
            THROUGH,
            "what it was asked twice counts once"
        );
        speaking.asked(now + ms(5000));
        assert_eq!(speaking.beat(now + ms(5500), SPEAKER, false), Beat::Own);
        assert_eq!(speaking.beat(now + ms(6000), SPEAKER, false), Beat::Own);
        assert_eq!(speaking.beat(now + ms(6500), Some(WorkerId(2)), false), Beat::Through(WorkerId(2)));
    }
}
