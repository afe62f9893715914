//! Reports that wait while the coordinator is away.

use std::collections::VecDeque;

use longhaul_proto::control::message::ToCoordinator;

/// Reports kept: at a round every few seconds, well over ten minutes of absence.
pub const REPORTS_KEPT: usize = 512;

/// A queue that forgets the oldest when it is full.
#[derive(Debug, Default)]
pub struct Reports {
    waiting: VecDeque<ToCoordinator>,
    forgotten: u64,
}

impl Reports {
    /// Adds a report. A settlement that is overtaken by a new one, and all but the last word on the same subject, are not kept.
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
    pub fn pop(&mut self) -> Option<ToCoordinator> {
        self.waiting.pop_front()
    }

    /// Reports that were lost so far.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_common::id::Round;

    #[test]
    fn the_oldest_reports_are_forgotten_first_and_counted() {
        let mut reports = Reports::default();
        for round in 0..REPORTS_KEPT as u64 + 3 {
            reports.push(ToCoordinator::Finished { next_round: Round(round), validation_loss: None });
        }
        assert_eq!(reports.forgotten(), 3);
        assert_eq!(
            reports.pop(),
            Some(ToCoordinator::Finished { next_round: Round(3), validation_loss: None })
        );
    }
}
