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
    /// Whether people know that the run goes back.
    is_told: bool,
}

impl Run {
    /// Whether the run waits for a worker that has a newer checkpoint than `source`. People are told once, and once if the run goes back without it.
    pub(super) fn waits_for_absent_holders(&mut self, source: &Source) -> bool {
        let Some((round, left)) = self.left_with_more_than(source) else {
            self.absent_holders = AbsentHolders::default();
            return false;
        };
        let (absent, left) = (names(self.absent_of(left)), names(left.iter()));
        let from = source.round().map_or("the beginning".to_owned(), |round| round.to_string());
        let since = (!absent.is_empty()).then(|| self.absent_holders.since.unwrap_or(self.now));
        let waits = since.is_some_and(|since| self.now < since + WAIT);
        let is_news = if waits { self.absent_holders.since.is_none() } else { !self.absent_holders.is_told };
        self.absent_holders = AbsentHolders { since, is_told: !waits };
        if !is_news {
            return waits;
        }
        let (severity, text) = match waits {
            true => (
                Severity::Warning,
                format!(
                    "waits for {absent}, who left with all before {round}: without them the run goes back to {from}, in {} minutes, or when `coordinator kick` says that they will not come",
                    WAIT.as_secs() / 60
                ),
            ),
            false => (
                Severity::Error,
                format!(
                    "goes back to {from}: {left} left with all before {round}, and nobody who is here has it: was a worker started with another `--checkpoint-dir`, or without its disk?"
                ),
            ),
        };
        self.notice(severity, None, text);
        waits
    }

    /// The same as a line of the status, also before enough are here to go on without them.
    pub(super) fn absent_holders_problem(&self) -> Option<String> {
        if self.state.phase != Phase::Gathering {
            return None;
        }
        let source = self.choose_source();
        let (round, left) = self.left_with_more_than(&source)?;
        let absent = names(self.absent_of(left));
        let at_most = self.absent_holders.since.map_or(String::new(), |since| {
            format!(": for {} s at most", (since + WAIT).saturating_sub(self.now).as_secs())
        });
        (!absent.is_empty()).then(|| {
            format!(
                "the run waits for {absent}, who left with all before {round}{at_most}; `coordinator kick` says that they will not come"
            )
        })
    }

    /// When that ends, if nothing happens before.
    pub(super) fn absent_holders_end(&self) -> Option<Duration> {
        self.absent_holders.since.map(|since| since + WAIT)
    }

    /// Those who left with more than `source`, and before which round they have all.
    fn left_with_more_than(&self, source: &Source) -> Option<(Round, &BTreeSet<WorkerId>)> {
        let (round, left) = self.state.left_with.as_ref()?;
        (source.round() < Some(*round)).then_some((*round, left))
    }

    /// Those of them who are not here and may come.
    fn absent_of<'a>(&'a self, left: &'a BTreeSet<WorkerId>) -> impl Iterator<Item = &'a WorkerId> {
        let is_here =
            |worker: &WorkerId| self.peers.get(worker).is_some_and(|peer| peer.connection.is_some());
        left.iter().filter(move |worker| !self.state.revoked.contains(worker) && !is_here(worker))
    }
}

fn names<'a>(workers: impl Iterator<Item = &'a WorkerId>) -> String {
    workers.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
