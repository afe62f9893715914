//! Members that cannot reach each other, by their own reports (decision 0043).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_common::id::{SiteId, WorkerId};
use longhaul_proto::control::message::{HEARTBEAT_INTERVAL_MS, OUT_OF_REACH_MAX, OUT_OF_REACH_REPEATED_MS};
use serde::{Deserialize, Serialize};

use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::liveness::Liveness;
use crate::run::machine::Run;
use crate::run::peer::Peer;

/// A report expires after this time: three repetitions are missing.
const KEPT: Duration = Duration::from_millis(3 * OUT_OF_REACH_REPEATED_MS);
/// Least time for two heard members to reach each other again.
const PATIENCE_MIN: Duration = Duration::from_secs(2);
/// A regularly heard worker was heard within this time: two heartbeats.
const HEARD_WITHIN: Duration = Duration::from_millis(2 * HEARTBEAT_INTERVAL_MS);
/// First time for which an excluded worker stays excluded: most outages last seconds.
const APART: Duration = Duration::from_secs(2);
/// Longest such time; each one is twice the last. A route that is out for hours then costs the others two or three seconds in five minutes.
const APART_MAX: Duration = Duration::from_secs(300);
/// After this time without an exclusion, the next one counts as the first.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// Reports of unreachable members, and the workers excluded because of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reach {
    said: BTreeMap<WorkerId, Word>,
    /// Time of the last report about each worker.
    doubted: BTreeMap<WorkerId, Duration>,
    apart: BTreeMap<WorkerId, Apart>,
    /// Sites with a lost worker that was out of reach and silent, and the time of the loss.
    missing_at: BTreeMap<SiteId, Duration>,
}

/// The reports of one member.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Word {
    at: Duration,
    /// Unreachable members, and since when.
    of: BTreeMap<WorkerId, Duration>,
}

/// An excluded worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Apart {
    /// The workers that it may not share a generation with.
    from: BTreeSet<WorkerId>,
    until: Duration,
    times: u32,
}

impl Reach {
    /// Records a member's report of unreachable others.
    pub fn note(&mut self, now: Duration, by: WorkerId, of: &[WorkerId]) {
        let before = self.said.remove(&by).filter(|word| word.at + KEPT >= now);
        let since = |worker: &WorkerId| before.as_ref()?.of.get(worker).copied();
        let of: BTreeMap<_, _> = of
            .iter()
            .filter(|worker| **worker != by)
            .take(OUT_OF_REACH_MAX)
            .map(|worker| (*worker, since(worker).unwrap_or(now)))
            .collect();
        self.doubted.extend(of.keys().map(|worker| (*worker, now)));
        for worker in before.iter().flat_map(|word| word.of.keys()).filter(|worker| !of.contains_key(worker))
        {
            let others = self.said.values().filter(|word| word.of.contains_key(worker)).map(|word| word.at);
            match others.max() {
                Some(at) => _ = self.doubted.insert(*worker, at),
                None => _ = self.doubted.remove(worker),
            }
        }
        if !of.is_empty() {
            self.said.insert(by, Word { at: now, of });
        }
    }

    /// Records a member that receives nothing: its reports about others prove nothing.
    pub fn note_deaf(&mut self, now: Duration, by: WorkerId) {
        self.note(now, by, &[]);
        self.doubted.insert(by, now);
    }

    /// Forgets a worker that has left or was replaced by another process.
    pub fn forget(&mut self, worker: WorkerId) {
        self.said.remove(&worker);
        self.doubted.remove(&worker);
        self.said.values_mut().for_each(|word| _ = word.of.remove(&worker));
    }

    /// Records that a worker of this site was out of reach and is taken for lost.
    pub fn miss_at(&mut self, site: SiteId, now: Duration) {
        self.missing_at.retain(|_, at| *at + KEPT >= now);
        self.missing_at.insert(site, now);
    }

    /// Whether that happened just now.
    pub fn is_missing_at(&self, site: SiteId, now: Duration) -> bool {
        self.missing_at.get(&site).is_some_and(|at| *at + KEPT >= now)
    }

    /// Whether any member reports this worker out of reach.
    pub fn is_doubted(&self, worker: WorkerId, now: Duration) -> bool {
        self.doubted.get(&worker).is_some_and(|at| *at + KEPT >= now)
    }

    /// Pairs of reporter and unreachable member; none, where the reports have stopped. Measured up to the last report received, as a stall of this process proves
    /// nothing.
    fn pairs(&self, now: Duration, patience: Duration) -> BTreeSet<(WorkerId, WorkerId)> {
        let words = || self.said.iter().filter(|(_, word)| word.at + KEPT >= now);
        let is_due = |word: &Word| word.of.values().any(|since| *since + patience <= word.at);
        if !words().any(|(_, word)| is_due(word)) {
            return BTreeSet::new();
        }
        words().flat_map(|(by, word)| word.of.keys().map(move |of| (*by, *of))).collect()
    }

    /// Excludes a worker because of these others. Returns for how long.
    fn part(&mut self, now: Duration, worker: WorkerId, from: BTreeSet<WorkerId>) -> Duration {
        self.apart.retain(|_, apart| apart.until + FORGOTTEN_AFTER > now);
        let times = self.apart.get(&worker).map_or(0, |apart| apart.times);
        let pause = APART.saturating_mul(1 << times.min(16)).min(APART_MAX);
        self.apart.insert(worker, Apart { from, until: now + pause, times: times + 1 });
        pause
    }
}

impl Liveness {
    /// Handles a worker's report of others out of reach, or, by its own name, that it does not receive the coordinator. Counts between members alone. Returns whether a
    /// worker has to be checked earlier now.
    pub(crate) fn handle_out_of_reach(
        &mut self,
        core: &mut Core,
        by: WorkerId,
        mut workers: Vec<WorkerId>,
    ) -> bool {
        let is_member = |worker: &WorkerId| core.peers.get(worker).is_some_and(Peer::is_present_member);
        if !is_member(&by) {
            return false;
        }
        if workers.contains(&by) {
            self.reach.note_deaf(core.now, by);
            return self.look_at_doubted(core, &[by]);
        }
        workers.retain(is_member);
        self.reach.note(core.now, by, &workers);
        self.look_at_doubted(core, &workers)
    }

    /// Whether this worker stays out of the run for now, as a present participant was out of its reach.
    pub(crate) fn is_kept_apart(&self, core: &Core, worker: WorkerId) -> bool {
        let Some(apart) = self.reach.apart.get(&worker) else { return false };
        let takes_part = |other: &WorkerId| core.peers.get(other).is_some_and(Peer::is_present_member);
        apart.until > core.now && apart.from.iter().any(takes_part)
    }
}

impl Run {
    /// Excludes one of two members that are heard here and have not reached each other for the longest permitted silence. The run would wait for as long as the outage
    /// otherwise.
    pub(crate) fn part_those_out_of_reach(&mut self) {
        let patience = Duration::from_millis(self.core.config.faults.suspect_after_ms).max(PATIENCE_MIN);
        let mut pairs = Pairs::new(self.liveness.reach.pairs(self.core.now, patience));
        loop {
            // A departure may take others along, or leave a worker as the last copy.
            pairs.retain(|worker| self.core.is_heard(worker));
            let Some(worker) = self.core.to_be_left_out(&pairs) else { return };
            let from = pairs.remove(worker);
            let named: Vec<String> = from.iter().take(4).map(ToString::to_string).collect();
            let more = if from.len() > named.len() { " and others" } else { "" };
            let pause = self.liveness.reach.part(self.core.now, worker, from);
            let text = format!(
                "is left out for {} s: it and {}{more} cannot reach each other, though both reach the coordinator; check for a firewall or a missing route \
                 that blocks UDP between their sites",
                pause.as_secs(),
                named.join(", ")
            );
            self.remove(worker, Severity::Warning, &text);
        }
    }
}

impl Core {
    /// Whether this member was heard recently, directly or through another.
    fn is_heard(&self, worker: WorkerId) -> bool {
        let peer = self.peers.get(&worker).filter(|peer| peer.is_present_member());
        peer.is_some_and(|peer| self.now <= peer.silence.last() + HEARD_WITHIN)
    }

    /// Returns the worker that belongs to most pairs. Of two alike, the one that alone reports the pair, as only that one cannot go on; then the one with fewer others at
    /// its site, and the higher-numbered one.
    fn to_be_left_out(&self, pairs: &Pairs) -> Option<WorkerId> {
        let mut at_site: BTreeMap<SiteId, usize> = BTreeMap::new();
        for peer in self.peers.values().filter(|peer| peer.is_present_member()) {
            *at_site.entry(peer.known.site).or_default() += 1;
        }
        let at_its_site = |worker| Some(at_site.get(&self.peers.get(&worker)?.known.site).copied());
        let may_go = pairs.others.iter().filter(|(worker, _)| !self.is_of_the_last_copy(**worker));
        let first = may_go.max_by_key(|&(&worker, others)| {
            let is_named = pairs.named_by.get(&worker).is_some_and(|by| !by.is_empty());
            (others.len(), !is_named, Reverse(at_its_site(worker)), worker)
        });
        first.map(|(&worker, _)| worker)
    }
}

/// Pairs of members that cannot reach each other, as at least one side reports.
struct Pairs {
    /// Partners of each member.
    others: BTreeMap<WorkerId, BTreeSet<WorkerId>>,
    /// Reporters of each reported member.
    named_by: BTreeMap<WorkerId, BTreeSet<WorkerId>>,
}

impl Pairs {
    /// Builds the pairs from reporter and reported member.
    fn new(said: BTreeSet<(WorkerId, WorkerId)>) -> Self {
        let (mut others, mut named_by) =
            (BTreeMap::<_, BTreeSet<_>>::new(), BTreeMap::<_, BTreeSet<_>>::new());
        for (by, of) in said {
            others.entry(by).or_default().insert(of);
            others.entry(of).or_default().insert(by);
            named_by.entry(of).or_default().insert(by);
        }
        Self { others, named_by }
    }

    /// Keeps the pairs whose members both satisfy this.
    fn retain(&mut self, is_fit: impl Fn(WorkerId) -> bool) {
        let unfit: Vec<WorkerId> = self.others.keys().copied().filter(|worker| !is_fit(*worker)).collect();
        unfit.into_iter().for_each(|worker| _ = self.remove(worker));
    }

    /// Removes a worker's pairs. Returns its partners.
    fn remove(&mut self, worker: WorkerId) -> BTreeSet<WorkerId> {
        let from = self.others.remove(&worker).unwrap_or_default();
        for other in &from {
            self.named_by.get_mut(other).map(|by| by.remove(&worker));
            if let Some(theirs) = self.others.get_mut(other) {
                theirs.remove(&worker);
                if theirs.is_empty() {
                    self.others.remove(other);
                }
            }
        }
        from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn w(number: u32) -> WorkerId {
        WorkerId(number)
    }

    #[test]
    fn a_word_counts_from_when_it_was_first_said_and_until_it_is_not_repeated() {
        let mut reach = Reach::default();
        (0..3).for_each(|second| reach.note(s(second), w(1), &[w(2), w(1)]));
        assert!(
            reach.is_doubted(w(2), s(5)) && !reach.is_doubted(w(2), s(6)) && !reach.is_doubted(w(1), s(2))
        );
        assert_eq!(reach.pairs(s(2), s(2)), [(w(1), w(2))].into());
        assert!(reach.pairs(s(4), s(3)).is_empty(), "of the time after the last word nobody knows");
        reach.note(s(2), w(3), &[w(1)]);
        assert_eq!(reach.pairs(s(2), s(2)), [(w(1), w(2)), (w(3), w(1))].into(), "all, once one is due");
        reach.note(s(3), w(3), &[]);
        reach.note(s(9), w(1), &[w(2)]);
        assert!(reach.pairs(s(9), s(1)).is_empty(), "it had been over");
        reach.note(s(10), w(1), &[]);
        assert!(!reach.is_doubted(w(2), s(10)));
        [1, 3].into_iter().for_each(|by| reach.note(s(11), w(by), &[w(2)]));
        reach.note(s(12), w(1), &[]);
        assert!(reach.is_doubted(w(2), s(14)) && !reach.is_doubted(w(2), s(15)), "by the other one");
    }

    #[test]
    fn who_is_left_out_again_and_again_is_left_out_for_longer() {
        let mut reach = Reach::default();
        let mut now = s(0);
        let pauses = [2, 4, 8, 16, 32, 64, 128, 256, 300, 300];
        for pause in pauses {
            assert_eq!(reach.part(now, w(1), [w(2)].into()), s(pause));
            now += s(pause) + s(3);
        }
        assert_eq!(reach.part(now + FORGOTTEN_AFTER, w(1), [w(2)].into()), s(2));
    }
}
