//! Workers that came in too far behind to take part: the next time, rounds wait for them.
//!
//! A joiner fetches a state while the others train on, and then the results of the rounds since, which members keep for
//! [`RESULTS_KEPT_ROUNDS`](longhaul_proto::round::RESULTS_KEPT_ROUNDS) rounds at least. Where these are large and its link is slow, more happen than are kept, however often it tries.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_common::id::WorkerId;
use serde::{Deserialize, Serialize};

use crate::run::accounting::Accounting;
use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::peer::{Peer, Standing};
use crate::run::state::Phase;

/// Longest wait of a round.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// They wait for twice as long as the state took last time, and this: the model is built before it is fetched.
const MARGIN: Duration = Duration::from_secs(10);
/// After they have waited, they go on for so many times as long, at least.
const BETWEEN: u32 = 10;

/// Joiners that were too far behind, and have not taken part since.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SlowJoiners {
    /// Time that each worker's state took.
    took: BTreeMap<WorkerId, Duration>,
    wait: Option<Wait>,
    /// Rounds do not wait again before.
    not_before: Duration,
}

/// A time in which rounds wait.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Wait {
    began: Duration,
    until: Duration,
}

/// Returns the wait for a worker whose state took this long; `None`: longer than the limit.
fn patience(took: Duration) -> Option<Duration> {
    let wanted = took.saturating_mul(2).saturating_add(MARGIN);
    (wanted <= WAIT_MAX).then_some(wanted)
}

impl SlowJoiners {
    /// A worker takes part.
    pub fn takes_part(&mut self, worker: WorkerId) {
        self.took.remove(&worker);
    }

    fn end_wait(&mut self, now: Duration) {
        if let Some(wait) = self.wait.take() {
            self.not_before = now + now.saturating_sub(wait.began) * BETWEEN;
        }
    }
}

impl Accounting {
    /// A worker joins; `too_late`: it was too far behind when it came in, and the state had taken it so long.
    pub(crate) fn note_slow_joiner(&mut self, core: &mut Core, worker: WorkerId, too_late: Option<Duration>) {
        let Some(took) = too_late else { return self.slow_joiners.takes_part(worker) };
        self.slow_joiners.took.insert(worker, took);
        let seconds = took.as_secs_f64();
        let what = match patience(took) {
            Some(_) => "rounds will wait for it when it fetches the state again",
            None => {
                "rounds do not wait that long. It can join when results are smaller, as after a warm-up that exchanges all values (sync.warmup_share), \
                 or over a faster link"
            }
        };
        let text = format!(
            "was too far behind to join: fetching the state took {seconds:.1} s, and more rounds than are kept have passed since it began; {what}"
        );
        core.notice(Severity::Warning, Some(worker), text);
    }

    /// Whether rounds wait for a worker that fetches the state.
    pub(crate) fn waits_for_slow_joiner(&self, core: &Core) -> bool {
        core.state.phase == Phase::Training
            && self.slow_joiners.wait.is_some_and(|wait| wait.until > core.now)
    }

    /// When to look again whether rounds wait.
    pub(crate) fn slow_joiners_are_looked_at(&self, core: &Core) -> Option<Duration> {
        match self.slow_joiners.wait {
            Some(wait) => Some(wait.until),
            None => self.fetching_slow_joiners(core).next().map(|_| self.slow_joiners.not_before),
        }
    }

    /// Workers that rounds wait for, and the deadline.
    pub(crate) fn awaited_slow_joiners(&self, core: &Core) -> impl Iterator<Item = (WorkerId, Duration)> {
        let wait = self.slow_joiners.wait.filter(|_| self.waits_for_slow_joiner(core));
        wait.into_iter()
            .flat_map(|wait| self.fetching_slow_joiners(core).map(move |(worker, _)| (worker, wait.until)))
    }

    /// Workers of incomplete copies, and the wait for each.
    fn fetching_slow_joiners(&self, core: &Core) -> impl Iterator<Item = (WorkerId, Duration)> {
        let heals = |peer: &Peer| {
            let replica = peer.slot.map(|slot| slot.replica);
            let is_of_it = |other: &&Peer| other.slot.map(|slot| slot.replica) == replica;
            core.peers.values().filter(is_of_it).any(|other| other.standing == Standing::Healing)
        };
        self.slow_joiners.took.iter().filter_map(move |(&worker, &took)| {
            core.peers.get(&worker).filter(|peer| peer.standing != Standing::Member && heals(peer))?;
            Some((worker, patience(took)?))
        })
    }

    /// Has rounds wait occasionally for fetching workers that were too late before; ends the wait once they have the state, or cannot get
    /// it.
    pub(crate) fn look_at_slow_joiners(&mut self, core: &mut Core) {
        let is_over = self.slow_joiners.wait.is_some_and(|wait| wait.until <= core.now);
        if is_over || self.fetching_slow_joiners(core).next().is_none() || core.has_no_round_to_wait() {
            self.slow_joiners.end_wait(core.now);
            if is_over {
                let text = "rounds have waited long enough for workers that fetch the state: training goes on without them";
                core.notice(Severity::Warning, None, text.to_owned());
            }
            return;
        }
        if self.slow_joiners.wait.is_some() || self.slow_joiners.not_before > core.now {
            return;
        }
        let Some(patience) = self.fetching_slow_joiners(core).map(|(_, patience)| patience).max() else {
            return;
        };
        self.slow_joiners.wait = Some(Wait { began: core.now, until: core.now + patience });
        let who: Vec<WorkerId> = self.fetching_slow_joiners(core).map(|(worker, _)| worker).collect();
        let text =
            format!("rounds wait for {who:?} to fetch the state, for {} s at most", patience.as_secs());
        core.notice(Severity::Warning, None, text);
    }
}

impl Core {
    /// Whether waiting is of no use: no round begins anyway, or all workers begin anew.
    fn has_no_round_to_wait(&self) -> bool {
        let is_last = self.state.until().is_none_or(|until| self.computing().next() >= until);
        is_last || self.is_closing() || self.state.requests.pause || self.state.plans.moving.is_some()
    }
}
