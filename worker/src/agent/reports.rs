//! Reports to the coordinator: those that wait while it is away, and the last ones that were said.

use std::borrow::Cow;
use std::collections::VecDeque;

use longhaul_proto::control::message::ToCoordinator;

use longhaul_flight::Progress;

/// Reports kept: at a round every few seconds, well over ten minutes of absence.
pub const REPORTS_KEPT: usize = 512;
/// Reports that are said again after a lost connection: more rounds than fit into the silence after which it counts as lost.
pub const REPORTS_REPEATED: usize = 128;

/// A queue that forgets the oldest when it is full.
#[derive(Debug, Default)]
pub struct Reports {
    waiting: VecDeque<ToCoordinator>,
    /// Said over the present connection or one before it; nobody knows whether they were heard.
    said: VecDeque<ToCoordinator>,
    forgotten: u64,
}

impl Reports {
    /// Adds a report. Of settlements, only the newest counts.
    pub fn push(&mut self, report: ToCoordinator) {
        if matches!(report, ToCoordinator::Settled(_)) {
            self.waiting.retain(|old| !matches!(old, ToCoordinator::Settled(_)));
        }
        if self.waiting.len() == REPORTS_KEPT {
            self.waiting.pop_front();
            self.forgotten += 1;
        }
        self.waiting.push_back(report);
    }

    /// The oldest.
    #[must_use]
    pub fn next(&self) -> Option<&ToCoordinator> {
        self.waiting.front()
    }

    /// The oldest was said. What the run's books are made of is remembered, for [`Self::repeat`].
    pub fn said(&mut self) {
        let report = self.waiting.pop_front();
        if let Some(
            report @ (ToCoordinator::RoundApplied(_)
            | ToCoordinator::Finished { .. }
            | ToCoordinator::Archived(_)),
        ) = report
        {
            if self.said.len() == REPORTS_REPEATED {
                self.said.pop_front();
            }
            self.said.push_back(report);
        }
    }

    /// The connection was lost, and perhaps the last reports with it: they are said again, before those that wait.
    pub fn repeat(&mut self) {
        while let Some(report) = self.said.pop_back() {
            self.waiting.push_front(report);
        }
    }

    /// Reports that were lost so far.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

/// A report as it is to be said: counts that waited are older than those said meanwhile, and would look like ones begun anew.
pub fn as_of_now<'a>(report: &'a ToCoordinator, progress: &Progress) -> Cow<'a, ToCoordinator> {
    match report {
        ToCoordinator::Heartbeat(_) => Cow::Owned(ToCoordinator::Heartbeat(progress.heartbeat())),
        report => Cow::Borrowed(report),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_common::id::Round;

    fn finished(round: u64) -> ToCoordinator {
        ToCoordinator::Finished { next_round: Round(round), validation_loss: None, validation_accuracy: None }
    }

    #[test]
    fn the_oldest_reports_are_forgotten_first_and_counted() {
        let mut reports = Reports::default();
        for round in 0..REPORTS_KEPT as u64 + 3 {
            reports.push(finished(round));
        }
        assert_eq!(reports.forgotten(), 3);
        assert_eq!(reports.next(), Some(&finished(3)));
    }

    #[test]
    fn what_was_said_last_is_said_again_in_order_before_anything_newer() {
        let mut reports = Reports::default();
        for round in 0..REPORTS_REPEATED as u64 + 2 {
            reports.push(finished(round));
            reports.said();
        }
        reports.push(ToCoordinator::Leaving);
        reports.said();
        reports.push(finished(1000));
        for _ in 0..2 {
            reports.repeat();
            for round in 2..REPORTS_REPEATED as u64 + 2 {
                assert_eq!(reports.next(), Some(&finished(round)));
                reports.said();
            }
            assert_eq!(reports.next(), Some(&finished(1000)));
        }
    }

    #[test]
    fn the_last_counts_are_not_older_than_those_that_were_said_while_they_waited() {
        let progress = Progress::default();
        let waits = ToCoordinator::Heartbeat(progress.heartbeat());
        progress.sent(100, true);
        let said_meanwhile = ToCoordinator::Heartbeat(progress.heartbeat());
        assert_ne!(waits, said_meanwhile);
        assert_eq!(*as_of_now(&waits, &progress), said_meanwhile);
        let other = ToCoordinator::Failed { reason: "no memory".to_owned() };
        assert_eq!(*as_of_now(&other, &progress), other);
    }
}
