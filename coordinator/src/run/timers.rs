//! When a run wants to be woken, if nothing happens before.

use std::time::Duration;

use super::machine::Run;

impl Run {
    /// The next of all times at which something becomes due; none: nothing waits for the time.
    pub(super) fn find_next_due(&self) -> Option<Duration> {
        let times = [
            self.silence_at,
            self.grace_until,
            self.gathering_ends(),
            self.telling_ends(),
            self.backlog_settle_at(),
            self.joiners_are_due_at(),
            self.latecomers_are_looked_at(),
            self.moves_are_told_at(),
            self.plan_is_looked_at(),
            self.move_waits_until(),
            self.shares_are_looked_at(),
            self.handovers_end(),
            self.absent_holders_end(),
            self.together_at().filter(|_| !self.is_closing()),
        ];
        times.into_iter().flatten().filter(|&at| at > self.now).min()
    }
}
