//! When a run wants to be woken, if nothing happens before.

use std::time::Duration;

use crate::run::machine::Run;

impl Run {
    /// The next of all times at which something becomes due; none: nothing waits for the time.
    pub(super) fn find_next_due(&self) -> Option<Duration> {
        let times = [
            self.liveness.is_looked_at(),
            self.generations.waits_until(),
            self.generations.gathering_ends(&self.core),
            self.planning.telling_ends(&self.core),
            self.generations.backlog_settle_at(&self.core),
            self.core.joiners_are_due_at(),
            self.accounting.slow_joiners_are_looked_at(&self.core),
            self.liveness.moves_are_told_at(&self.core),
            self.plan_is_looked_at(),
            self.planning.move_waits_until(&self.core),
            self.shares_are_looked_at(),
            self.recovery.handovers_end(&self.core),
            self.recovery.absent_holders_end(),
            self.together_at().filter(|_| !self.core.is_closing()),
        ];
        times.into_iter().flatten().filter(|&at| at > self.core.now).min()
    }
}
