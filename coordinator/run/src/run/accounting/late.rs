//! Shares that wait in a residual, because the results were published without them.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::id::{Round, WorkerId};
use serde::{Deserialize, Serialize};

/// Late rounds that are remembered of one worker, so that a worker which is late for ever fills no memory; older ones pass
/// for counted.
const ROUNDS_LATE_MAX: usize = 1024;

/// A share of one worker in one round.
pub type LateShare = (Round, WorkerId);

/// Late shares.
///
/// A late contribution goes into the next one, so it counts as soon as a later result names the worker's site. If the
/// worker departs before that, the share is lost: late, in a residual, or of a worker that was dead for some rounds
/// before its loss was noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    /// Late rounds by worker, each with the round whose result took it in, if any. These stay for a return to an earlier
    /// checkpoint.
    late: BTreeMap<WorkerId, BTreeMap<Round, Option<Round>>>,
    /// Departed workers, with the first round that was decided without them. Earlier rounds' reports may yet come.
    departures: Vec<(WorkerId, Round)>,
}

impl Late {
    /// Records that a round is applied everywhere, with its `workers` and whether its result has their contributions. Returns
    /// shares that turn out to be lost.
    pub fn applied(&mut self, round: Round, workers: &[(WorkerId, bool)]) -> Vec<LateShare> {
        for (worker, is_in_it) in workers {
            if self.departures.iter().any(|&(departed, from)| departed == *worker && from <= round) {
                continue;
            }
            if *is_in_it {
                self.counted(*worker, round);
            } else {
                let rounds = self.late.entry(*worker).or_default();
                rounds.insert(round, None);
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
    pub fn departed(&mut self, worker: WorkerId, from: Round, through: Round) -> Vec<LateShare> {
        self.departures.retain(|&(departed, later)| departed != worker || later < from);
        if from <= through {
            return self.give_up(worker, from);
        }
        self.departures.push((worker, from));
        Vec::new()
    }

    /// Shares that no result has yet, nor is known to have lost.
    pub fn waiting(&self) -> impl Iterator<Item = LateShare> {
        self.late.iter().flat_map(|(worker, rounds)| {
            let waiting = rounds.iter().filter(|(_, taken_in)| taken_in.is_none());
            waiting.map(|(round, _)| (*round, *worker))
        })
    }

    /// Workers that departed in a round after this one.
    pub fn departed_after(&self, round: Round) -> BTreeSet<WorkerId> {
        self.departures.iter().filter(|(_, from)| *from > round).map(|(worker, _)| *worker).collect()
    }

    /// The worker's contribution to `round` is in its result, and with it whatever was late.
    pub fn counted(&mut self, worker: WorkerId, round: Round) {
        for taken_in in self.late.get_mut(&worker).into_iter().flat_map(BTreeMap::values_mut) {
            *taken_in = taken_in.or(Some(round));
        }
    }

    /// Goes back to the state before `round`, where only `keepers` still have their residuals. Returns the lost shares.
    pub fn cut_back(&mut self, round: Round, keepers: &BTreeSet<WorkerId>) -> Vec<LateShare> {
        self.departures.clear();
        let mut lost = Vec::new();
        for (worker, rounds) in &mut self.late {
            rounds.retain(|&late, _| late < round);
            rounds.values_mut().for_each(|taken_in| *taken_in = taken_in.filter(|&into| into < round));
            if !keepers.contains(worker) {
                lost.extend(take_waiting(rounds, round).map(|late| (late, *worker)));
            }
        }
        lost
    }

    fn give_up(&mut self, worker: WorkerId, from: Round) -> Vec<LateShare> {
        let Some(rounds) = self.late.get_mut(&worker) else { return Vec::new() };
        take_waiting(rounds, from).map(|late| (late, worker)).collect()
    }
}

/// Takes the waiting rounds before `before`. Later ones belong to a worker that came back and is late again.
fn take_waiting(rounds: &mut BTreeMap<Round, Option<Round>>, before: Round) -> impl Iterator<Item = Round> {
    rounds
        .extract_if(..before, |_, taken_in| taken_in.is_none())
        .map(|(late, _)| late)
        .collect::<Vec<_>>()
        .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    const W1: WorkerId = WorkerId(1);
    const W2: WorkerId = WorkerId(2);

    fn round(late: &mut Late, round: u64, sites: &[u32]) -> Vec<LateShare> {
        late.applied(Round(round), &[(W1, sites.contains(&0)), (W2, sites.contains(&1))])
    }

    #[test]
    fn a_late_share_counts_with_the_next_contribution_that_is_in_time() {
        let mut late = Late::default();
        round(&mut late, 0, &[0]);
        round(&mut late, 1, &[0, 1]);
        assert_eq!(late.departed(W2, Round(2), Round(2)), []);
    }

    #[test]
    fn rounds_that_went_on_without_a_dead_worker_are_lost() {
        let mut late = Late::default();
        round(&mut late, 0, &[0, 1]);
        round(&mut late, 1, &[0]);
        round(&mut late, 2, &[0]);
        assert_eq!(late.departed(W2, Round(3), Round(3)), [(Round(1), W2), (Round(2), W2)]);
    }

    #[test]
    fn reports_that_come_after_the_departure_still_decide_the_rounds_before_it() {
        let mut late = Late::default();
        round(&mut late, 0, &[0]);
        assert_eq!(late.departed(W2, Round(3), Round(1)), []);
        assert_eq!(round(&mut late, 1, &[0, 1]), []);
        assert_eq!(round(&mut late, 2, &[0]), [(Round(2), W2)]);
        assert_eq!(round(&mut late, 3, &[0]), []);
    }

    /// Its site may be named in a round that is made anew, for another worker's contribution.
    #[test]
    fn who_departed_in_a_round_after_one_that_is_made_anew_departed_before_it() {
        let mut late = Late::default();
        round(&mut late, 0, &[0]);
        assert_eq!(late.departed(W2, Round(2), Round(1)), []);
        assert_eq!((late.departed_after(Round(1)), late.departed_after(Round(2))), ([W2].into(), [].into()));
        assert_eq!(late.departed(W2, Round(1), Round(1)), [(Round(0), W2)]);
        assert_eq!(round(&mut late, 1, &[0, 1]), []);
        assert!(late.departed_after(Round(0)).is_empty());
    }

    #[test]
    fn going_back_loses_the_residuals_that_nobody_kept() {
        let mut late = Late::default();
        round(&mut late, 0, &[]);
        round(&mut late, 5, &[]);
        assert_eq!(late.cut_back(Round(3), &BTreeSet::from([W1])), [(Round(0), W2)]);
        assert_eq!(late.departed(W1, Round(3), Round(3)), [(Round(0), W1)]);
    }

    #[test]
    fn what_a_later_result_took_in_is_late_again_before_that_result() {
        let mut late = Late::default();
        round(&mut late, 2, &[0]);
        round(&mut late, 5, &[0, 1]);
        assert_eq!(late.clone().cut_back(Round(6), &BTreeSet::new()), []);
        assert_eq!(late.cut_back(Round(4), &BTreeSet::new()), [(Round(2), W2)]);
    }
}
