//! The run's notices, for later readers and for followers.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use longhaul_run::{EventStatus, Notice};

/// Notices that are kept, about a quarter of a megabyte: a quiet run's week, or a stormy one's hour.
const NOTICES_KEPT: usize = 1024;

/// A notice and its number, which is higher than those before it, also those of a coordinator that ran before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedEvent {
    /// Number to ask for later events.
    pub number: u64,
    /// The event.
    #[serde(flatten)]
    pub event: EventStatus,
}

/// The newest notices, in order. Written by the owner of the run, read by the HTTP API.
#[derive(Debug)]
pub struct Journal {
    kept: Mutex<VecDeque<NumberedEvent>>,
    /// The number of the newest.
    newest: watch::Sender<u64>,
}

impl Journal {
    /// An empty one. Its numbers begin with the Unix time in milliseconds at which the clock started, so that those of a coordinator that
    /// is started again go on above.
    #[must_use]
    pub fn new(clock_started_unix_ms: u64) -> Self {
        Self { kept: Mutex::new(VecDeque::new()), newest: watch::channel(clock_started_unix_ms).0 }
    }

    /// Puts an earlier coordinator's events, oldest first, in place of the present ones. Numbers go on above theirs, even if the clock was set
    /// back.
    pub fn begin_with(&self, mut before: Vec<NumberedEvent>) {
        let before = before.split_off(before.len().saturating_sub(NOTICES_KEPT));
        let newest = before.iter().map(|event| event.number).max();
        *self.lock() = before.into();
        self.newest.send_modify(|number| *number = (*number).max(newest.unwrap_or_default()));
    }

    /// Adds a notice of this Unix time; the oldest goes where there are too many.
    pub fn add(&self, notice: &Notice, at_unix_ms: u64) {
        let number = *self.newest.borrow() + 1;
        let event = EventStatus { at_unix_ms, ..EventStatus::of(notice, 0) };
        let mut kept = self.lock();
        if kept.len() == NOTICES_KEPT {
            kept.pop_front();
        }
        kept.push_back(NumberedEvent { number, event });
        drop(kept);
        self.newest.send_replace(number);
    }

    /// The kept events after this number, in order.
    #[must_use]
    pub fn after(&self, number: u64) -> Vec<NumberedEvent> {
        self.lock().iter().filter(|event| event.number > number).cloned().collect()
    }

    /// The newest so many, in order.
    #[must_use]
    pub fn newest(&self, count: usize) -> Vec<EventStatus> {
        let kept = self.lock();
        kept.iter().skip(kept.len().saturating_sub(count)).map(|numbered| numbered.event.clone()).collect()
    }

    /// Returns as soon as there is one after this number.
    pub async fn until_after(&self, number: u64) {
        // The sender lives as long as this journal.
        let _ = self.newest.subscribe().wait_for(|newest| *newest > number).await;
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<NumberedEvent>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_run::Severity;

    fn notice(text: &str) -> Notice {
        Notice { at_ms: 5, severity: Severity::Info, worker: None, text: text.to_owned() }
    }

    #[test]
    fn what_came_after_a_number_is_told_once_and_old_notices_go() {
        let journal = Journal::new(1000);
        for count in 0..NOTICES_KEPT + 3 {
            journal.add(&notice(&count.to_string()), 1005);
        }
        let all = journal.after(0);
        assert_eq!(
            (all.len(), all[0].event.text.as_str(), all[0].event.at_unix_ms),
            (NOTICES_KEPT, "3", 1005)
        );
        let last = all.last().unwrap().number;
        assert!(journal.after(last).is_empty());
        journal.add(&notice("new"), 1007);
        let newest = journal.newest(2).into_iter().map(|event| event.at_unix_ms);
        assert!(newest.eq([1005, 1007]));
        assert_eq!(journal.after(last).len(), 1);
        assert!(Journal::new(1001 + last).after(0).is_empty());
    }

    #[test]
    fn a_journal_goes_on_above_what_another_coordinator_kept_also_where_the_clock_was_set_back() {
        let before = Journal::new(5_000_000);
        before.add(&notice("before"), 5_000_000);
        let journal = Journal::new(1000);
        journal.begin_with(before.after(0));
        journal.add(&notice("now"), 1000);
        let told: Vec<(u64, String)> =
            journal.after(0).into_iter().map(|event| (event.number, event.event.text)).collect();
        assert_eq!(told, [(5_000_001, "before".to_owned()), (5_000_002, "now".to_owned())]);
    }

    #[tokio::test]
    async fn who_waits_is_woken_by_the_next_notice() {
        let journal = std::sync::Arc::new(Journal::new(0));
        let waiting = tokio::spawn({
            let journal = journal.clone();
            async move {
                journal.until_after(0).await;
                journal.after(0)
            }
        });
        journal.add(&notice("here"), 5);
        assert_eq!(waiting.await.unwrap()[0].event.text, "here");
    }
}
