//! Workers that left in order with newer state on their disks than any present worker.
//!
//! Where all workers have left, only the last one has the newest checkpoint. The first worker to come back must not begin without it. The
//! run does not wait for killed workers: their disks may be lost, and their newest rounds are in no checkpoint.

use std::collections::BTreeSet;
use std::time::Duration;

use longhaul_common::id::{Round, WorkerId};
use serde::{Deserialize, Serialize};

use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::recovery::Recovery;
use crate::run::recovery::source::Source;
use crate::run::state::Phase;

/// For how long, at most: a machine may be gone for good.
const WAIT: Duration = Duration::from_secs(1800);

/// Since when they are waited for.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct AbsentHolders {
    since: Option<Duration>,
    /// Whether a notice has reported the return and its round.
    is_told: bool,
}

impl Recovery {
    /// Whether the run waits for a worker with a newer checkpoint than `source`. Reported once.
    pub(crate) fn waits_for_absent_holders(&mut self, core: &mut Core, source: &Source) -> bool {
        let Some((round, left)) = core.left_with_more_than(source) else {
            self.absent_holders = AbsentHolders::default();
            return false;
        };
        let absent = names(core.absent_of(left));
        if absent.is_empty() {
            return false;
        }
        let is_news = self.absent_holders.since.is_none();
        let since = *self.absent_holders.since.get_or_insert(core.now);
        if is_news {
            let text = format!(
                "waits for {absent}, which left with the state before {round}: the run goes back to {} in {} minutes, or once `coordinator kick` has removed them",
                source.name(),
                WAIT.as_secs() / 60
            );
            core.notice(Severity::Warning, None, text);
        }
        core.now < since + WAIT
    }

    /// Reports once the rounds lost, and the reason, as the run goes on from `source` while departed workers had more.
    pub(crate) fn tell_what_did_not_come(&mut self, core: &mut Core, source: &Source) {
        let Some((round, left)) = core.left_with_more_than(source).filter(|_| !self.absent_holders.is_told)
        else {
            return;
        };
        let has_it = |worker: &WorkerId| {
            core.peers
                .get(worker)
                .is_some_and(|peer| peer.checkpoints.offers.iter().any(|offer| offer.next_round == round))
        };
        let (mut kicked, mut absent, mut without) = (Vec::new(), Vec::new(), Vec::new());
        for worker in left.iter().filter(|worker| !has_it(worker)) {
            let list = match () {
                () if core.state.roster.revoked.contains(worker) => &mut kicked,
                () if core.is_here(*worker) => &mut without,
                () => &mut absent,
            };
            list.push(worker);
        }
        let causes = [
            (kicked, "was kicked"),
            (absent, "has not come back"),
            (without, "came back without it (another --checkpoint-dir, or a disk that is not mounted?)"),
        ];
        let causes = causes.into_iter().filter(|(workers, _)| !workers.is_empty());
        let causes: Vec<String> =
            causes.map(|(workers, what)| format!("{} {what}", names(workers.into_iter()))).collect();
        let why = match causes.is_empty() {
            true => "their checkpoints do not form a complete state".to_owned(),
            false => causes.join(", "),
        };
        let text = format!(
            "goes back to {}: the state before {round} was with workers that left: {why}",
            source.name()
        );
        self.absent_holders.is_told = true;
        core.notice(Severity::Error, None, text);
    }

    /// The same as a line of the status, also before enough are here to go on without them.
    pub(crate) fn absent_holders_problem(&self, core: &Core) -> Option<String> {
        if core.state.phase != Phase::Gathering {
            return None;
        }
        let source = core.choose_source();
        let (round, left) = core.left_with_more_than(&source)?;
        let absent = names(core.absent_of(left));
        let at_most = self.absent_holders.since.map_or(String::new(), |since| {
            format!(": for {} s at most", (since + WAIT).saturating_sub(core.now).as_secs())
        });
        (!absent.is_empty()).then(|| {
            format!(
                "the run waits for {absent}, which left with the state before {round}{at_most}; `coordinator kick` ends the wait"
            )
        })
    }

    /// When that ends, if nothing happens before.
    pub(crate) fn absent_holders_end(&self) -> Option<Duration> {
        self.absent_holders.since.map(|since| since + WAIT)
    }
}

impl Core {
    /// Workers that left with more than `source`, and the round that their state precedes.
    fn left_with_more_than(&self, source: &Source) -> Option<(Round, &BTreeSet<WorkerId>)> {
        let (round, left) = self.state.end.left_with.as_ref()?;
        (source.round() < Some(*round)).then_some((*round, left))
    }

    fn is_here(&self, worker: WorkerId) -> bool {
        self.peers.get(&worker).is_some_and(|peer| peer.connection.is_some())
    }

    /// Those of them that are absent and may come back.
    fn absent_of<'a>(&'a self, left: &'a BTreeSet<WorkerId>) -> impl Iterator<Item = &'a WorkerId> {
        left.iter()
            .filter(move |worker| !self.state.roster.revoked.contains(worker) && !self.is_here(**worker))
    }
}

fn names<'a>(workers: impl Iterator<Item = &'a WorkerId>) -> String {
    workers.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
