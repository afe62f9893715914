//! Reports to the coordinator: those queued during its absence, and those sent last.

use std::borrow::Cow;
use std::collections::VecDeque;

use longhaul_proto::control::message::ToCoordinator;

use longhaul_flight::Progress;

/// Limit on queued reports: over ten minutes of absence with a round every few seconds.
pub const REPORTS_KEPT: usize = 512;
/// Reports repeated after a lost connection: more rounds than fit into the silence that marks it as lost.
pub const REPORTS_REPEATED: usize = 128;

/// A queue that drops the oldest report when full.
#[derive(Debug, Default)]
pub struct Reports {
    waiting: VecDeque<ToCoordinator>,
    /// Sent over this connection or an earlier one; their delivery is unknown.
    said: VecDeque<ToCoordinator>,
    forgotten: u64,
}

impl Reports {
    /// Queues a report. Only the newest settlement is kept.
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

    /// Returns the oldest queued report.
    #[must_use]
    pub fn next(&self) -> Option<&ToCoordinator> {
        self.waiting.front()
    }

    /// Marks the oldest report as sent. Reports that the run's accounts need are kept for [`Self::repeat`].
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

    /// Queues the last sent reports again, before the waiting ones, after a lost connection.
    pub fn repeat(&mut self) {
        while let Some(report) = self.said.pop_back() {
            self.waiting.push_front(report);
        }
    }

    /// Returns the number of dropped reports.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

/// Updates a report for sending: queued counters are older than those sent meanwhile, and would look like a restart.
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
