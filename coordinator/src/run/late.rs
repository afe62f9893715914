//! Whose shares wait in a residual, because the results were published without them.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::id::{Round, SiteId, WorkerId};
use serde::{Deserialize, Serialize};

/// Rounds that are remembered for a worker which is late for ever; older ones then pass for counted.
const ROUNDS_LATE_MAX: usize = 4096;

/// A share of one worker in one round.
pub type Share = (Round, WorkerId);

/// What is late.
///
/// A contribution that came too late goes into the next one, so it counts as soon as a later result names the worker's
/// site. If the worker departs before that, it is lost: whether it was late, in a residual, or dead for some rounds
/// before anybody noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    waiting: BTreeMap<WorkerId, BTreeSet<Round>>,
    /// Departed workers, with the first round that was decided without them. Earlier rounds' reports may yet come.
    departures: Vec<(WorkerId, Round)>,
}

impl Late {
    /// A round is applied everywhere. `workers` were to take part in it; the result names `sites`. Returns shares that
    /// turn out to be lost.
    pub fn applied(&mut self, round: Round, workers: &[(WorkerId, SiteId)], sites: &[SiteId]) -> Vec<Share> {
        for (worker, site) in workers {
            if self.departures.iter().any(|&(departed, from)| departed == *worker && from <= round) {
                continue;
            }
            if sites.contains(site) {
                self.waiting.remove(worker);
            } else {
                let rounds = self.waiting.entry(*worker).or_default();
                rounds.insert(round);
                if rounds.len() > ROUNDS_LATE_MAX {
                    rounds.pop_first();
                }
            }
        }
        let due: Vec<_> = self.departures.extract_if(.., |&mut (_, from)| from <= round.next()).collect();
        due.into_iter().flat_map(|(worker, from)| self.give_up(worker, from)).collect()
    }

    /// A worker departed; from round `from` on its shares are decided otherwise. Rounds before `through` are applied
    /// everywhere. Returns shares that are lost; others may follow from [`Self::applied`].
    pub fn departed(&mut self, worker: WorkerId, from: Round, through: Round) -> Vec<Share> {
        if from <= through {
            return self.give_up(worker, from);
        }
        self.departures.push((worker, from));
        Vec::new()
    }

    /// The worker's contribution to the open round is in its result, and with it whatever was late.
    pub fn counted(&mut self, worker: WorkerId) {
        self.waiting.remove(&worker);
    }

    /// The run goes back to the state before `round`, and only `keepers` still have their residuals. Returns what is
    /// lost.
    pub fn cut_back(&mut self, round: Round, keepers: &BTreeSet<WorkerId>) -> Vec<Share> {
        self.departures.clear();
        self.waiting.values_mut().for_each(|rounds| rounds.retain(|&late| late < round));
        let (kept, lost) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(worker, _)| keepers.contains(worker));
        self.waiting = kept;
        lost.into_iter()
            .flat_map(|(worker, rounds)| rounds.into_iter().map(move |late| (late, worker)))
            .collect()
    }

    fn give_up(&mut self, worker: WorkerId, from: Round) -> Vec<Share> {
        let Some(rounds) = self.waiting.get_mut(&worker) else { return Vec::new() };
        // It may have come back and be late again.
        let later = rounds.split_off(&from);
        let lost = std::mem::replace(rounds, later);
        if rounds.is_empty() {
            self.waiting.remove(&worker);
        }
        lost.into_iter().map(|round| (round, worker)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W1: (WorkerId, SiteId) = (WorkerId(1), SiteId(0));
    const W2: (WorkerId, SiteId) = (WorkerId(2), SiteId(1));

    fn round(late: &mut Late, round: u64, sites: &[u32]) -> Vec<Share> {
        late.applied(Round(round), &[W1, W2], &sites.iter().map(|&site| SiteId(site)).collect::<Vec<_>>())
    }

    #[test]
    fn a_late_share_counts_with_the_next_contribution_that_is_in_time() {
        let mut late = Late::default();
        round(&mut late, 0, &[0]);
        round(&mut late, 1, &[0, 1]);
        assert_eq!(late.departed(W2.0, Round(2), Round(2)), []);
    }

    #[test]
    fn rounds_that_went_on_without_a_dead_worker_are_lost() {
        let mut late = Late::default();
        round(&mut late, 0, &[0, 1]);
        round(&mut late, 1, &[0]);
        round(&mut late, 2, &[0]);
        assert_eq!(late.departed(W2.0, Round(3), Round(3)), [(Round(1), W2.0), (Round(2), W2.0)]);
    }

    #[test]
    fn reports_that_come_after_the_departure_still_decide_the_rounds_before_it() {
        let mut late = Late::default();
        round(&mut late, 0, &[0]);
        assert_eq!(late.departed(W2.0, Round(3), Round(1)), []);
        assert_eq!(round(&mut late, 1, &[0, 1]), []);
        assert_eq!(round(&mut late, 2, &[0]), [(Round(2), W2.0)]);
        assert_eq!(round(&mut late, 3, &[0]), []);
    }

    #[test]
    fn going_back_loses_the_residuals_that_nobody_kept() {
        let mut late = Late::default();
        round(&mut late, 0, &[]);
        round(&mut late, 5, &[]);
        assert_eq!(late.cut_back(Round(3), &BTreeSet::from([W1.0])), [(Round(0), W2.0)]);
        assert_eq!(late.departed(W1.0, Round(3), Round(3)), [(Round(0), W1.0)]);
    }
}
