//! First arrivals of the fragments that a member owns.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_common::id::{FragmentId, Round};

/// Open owned fragments by round, in the order of their first arrival; those without one come first.
///
/// Read after each event, so reads are free.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    rounds: BTreeMap<Round, BTreeSet<(Option<Duration>, FragmentId)>>,
}

impl Arrivals {
    /// Opens a fragment of a round, without an arrival.
    pub fn open(&mut self, round: Round, fragment: FragmentId) {
        self.rounds.entry(round).or_default().insert((None, fragment));
    }

    /// Records its first arrival.
    pub fn came(&mut self, round: Round, fragment: FragmentId, at: Duration) {
        if let Some(fragments) = self.rounds.get_mut(&round)
            && fragments.remove(&(None, fragment))
        {
            fragments.insert((Some(at), fragment));
        }
    }

    /// Closes it; `first`: its first arrival.
    pub fn close(&mut self, round: Round, fragment: FragmentId, first: Option<Duration>) {
        if let Some(fragments) = self.rounds.get_mut(&round) {
            fragments.remove(&(first, fragment));
            if fragments.is_empty() {
                self.rounds.remove(&round);
            }
        }
    }

    /// Returns the rounds whose open fragments have all arrived, with the time of the last first arrival.
    pub fn complete(&self) -> impl Iterator<Item = (Round, Duration)> + '_ {
        self.rounds.iter().filter_map(|(round, fragments)| {
            fragments.first()?.0?;
            Some((*round, fragments.last()?.0?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;
    const F: fn(u32) -> FragmentId = FragmentId;

    #[test]
    fn a_round_is_complete_since_the_last_of_its_open_fragments_has_come() {
        let mut arrivals = Arrivals::default();
        let complete = |arrivals: &Arrivals| arrivals.complete().collect::<Vec<_>>();
        (0..3).for_each(|fragment| arrivals.open(Round(4), F(fragment)));
        arrivals.open(Round(5), F(3));
        arrivals.came(Round(4), F(2), MS(10));
        arrivals.came(Round(4), F(0), MS(30));
        assert_eq!(complete(&arrivals), []);
        arrivals.came(Round(5), F(3), MS(20));
        assert_eq!(complete(&arrivals), [(Round(5), MS(20))]);
        arrivals.came(Round(4), F(1), MS(40));
        arrivals.came(Round(4), F(1), MS(90));
        assert_eq!(complete(&arrivals), [(Round(4), MS(40)), (Round(5), MS(20))], "the first time counts");
        arrivals.close(Round(4), F(1), Some(MS(40)));
        assert_eq!(complete(&arrivals), [(Round(4), MS(30)), (Round(5), MS(20))]);
        arrivals.open(Round(5), F(1));
        assert_eq!(complete(&arrivals), [(Round(4), MS(30))]);
        for (fragment, at) in [(0, 30), (2, 10)] {
            arrivals.close(Round(4), F(fragment), Some(MS(at)));
        }
        arrivals.close(Round(5), F(1), None);
        assert_eq!(complete(&arrivals), [(Round(5), MS(20))]);
        assert_eq!(arrivals.rounds.len(), 1, "what is closed takes no memory");
    }
}
