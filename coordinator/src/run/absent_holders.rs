//! Workers that left in order and have, on their disks, more than anybody who is here.
//!
//! Where all workers have left, only the last one has the newest checkpoint. The first worker to come back must not begin without it. Nobody
//! waits for workers that were killed: their disks may be gone, and their newest rounds are in no checkpoint.

use std::collections::BTreeSet;
use std::time::Duration;

use longhaul_common::id::{Round, WorkerId};
use serde::{Deserialize, Serialize};

use super::command::Severity;
use super::machine::Run;
use super::source::Source;
use super::state::Phase;

/// For how long, at most: a machine may be gone for good.
const WAIT: Duration = Duration::from_secs(1800);

/// Since when they are waited for.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct AbsentHolders {
    since: Option<Duration>,
}

impl Run {
    /// Whether the run waits for a worker that has a newer checkpoint than `source`. People are told once.
    pub(super) fn waits_for_absent_holders(&mut self, source: &Source) -> bool {
        let (round, absent) = self.absent_holders(source);
        if absent.is_empty() {
            self.absent_holders = AbsentHolders::default();
            return false;
        }
        let is_news = self.absent_holders.since.is_none();
        let since = *self.absent_holders.since.get_or_insert(self.now);
        let names: Vec<String> = absent.iter().map(ToString::to_string).collect();
        let from = source.round().map_or("the beginning".to_owned(), |round| round.to_string());
        if since + WAIT <= self.now {
            let text = format!(
                "goes back to {from}: nobody of {} has come with all before {round}",
                names.join(", ")
            );
            self.notice(Severity::Error, None, text);
            return false;
        }
        if is_news {
            let text = format!(
                "waits for {}, who left with all before {round}: without them the run goes back to {from}, in {} minutes, or when `coordinator kick` says that they will not come",
                names.join(", "),
                WAIT.as_secs() / 60
            );
            self.notice(Severity::Warning, None, text);
        }
        true
    }

    /// The same as a line of the status, also before enough are here to go on without them.
    pub(super) fn absent_holders_problem(&self) -> Option<String> {
        if self.state.phase != Phase::Gathering {
            return None;
        }
        let (round, absent) = self.absent_holders(&self.choose_source());
        let names: Vec<String> = absent.iter().map(ToString::to_string).collect();
        let at_most = self.absent_holders.since.map_or(String::new(), |since| {
            format!(": for {} s at most", (since + WAIT).saturating_sub(self.now).as_secs())
        });
        (!names.is_empty()).then(|| {
            format!(
                "the run waits for {}, who left with all before {round}{at_most}; `coordinator kick` says that they will not come",
                names.join(", ")
            )
        })
    }

    /// When that ends, if nothing happens before.
    pub(super) fn absent_holders_end(&self) -> Option<Duration> {
        self.absent_holders.since.map(|since| since + WAIT)
    }

    /// Those who left with more than `source`, and before which round they have all.
    fn absent_holders(&self, source: &Source) -> (Round, BTreeSet<WorkerId>) {
        let Some((round, left)) = self.state.left_with.as_ref().filter(|left| source.round() < Some(left.0))
        else {
            return (Round(0), BTreeSet::new());
        };
        let is_here =
            |worker: &WorkerId| self.peers.get(worker).is_some_and(|peer| peer.connection.is_some());
        let may_come = |worker: &&WorkerId| !self.state.revoked.contains(worker) && !is_here(worker);
        (*round, left.iter().filter(may_come).copied().collect())
    }
}
