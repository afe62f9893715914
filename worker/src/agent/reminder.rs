//! Repetition of log messages of a waiting worker.

use std::time::Duration;

use tokio::time::Instant;

/// Repetition interval: the end of a log shows the reason for the wait, and a night fills no disk.
const REMIND_EVERY: Duration = Duration::from_secs(60);

/// The last message and its time.
#[derive(Debug, Default)]
pub(super) struct Reminder {
    said: Option<(String, Instant)>,
}

impl Reminder {
    /// Returns whether to log the message now: it is new, or [`REMIND_EVERY`] has passed. If so, records it.
    pub fn is_due(&mut self, words: &str, now: Instant) -> bool {
        let due = self.said.as_ref().is_none_or(|(before, at)| before != words || now >= *at + REMIND_EVERY);
        if due {
            self.said = Some((words.to_owned(), now));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_is_said_at_once_and_the_same_once_a_minute() {
        let (mut reminder, start) = (Reminder::default(), Instant::now());
        let mut due = |words, after_s| reminder.is_due(words, start + Duration::from_secs(after_s));
        assert!(due("no answer", 0));
        assert!(!due("no answer", 59));
        assert!(due("no answer", 60));
        assert!(!due("no answer", 61));
        assert!(due("refused", 61));
        assert!(!due("refused", 120));
        assert!(due("refused", 121));
    }
}
