//! Number of each site's releases of information about its data, for the privacy budget of a run.

use longhaul_common::config::PrivacyConfig;
use longhaul_common::id::Round;
use serde::{Deserialize, Serialize};

use crate::run::core::Core;

/// Upper bound of the rounds in which a site has contributed: each contribution counts, also one that was late, void, or undone by a
/// return to a checkpoint, as others have received it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Releases {
    /// No contribution exists to this round or a later one since the run last went back.
    frontier: Round,
    /// Contributions besides one to each round before that.
    repeated: u64,
}

impl Releases {
    /// The run begins, or goes back, to the state before `round`.
    pub fn begin_at(&mut self, round: Round) {
        self.repeated += self.frontier.0.saturating_sub(round.0);
        self.frontier = round.next();
    }

    /// Records that a worker has applied `round`, so that it may contribute to the next one.
    pub fn applied(&mut self, round: Round) {
        self.frontier = self.frontier.max(round.next().next());
    }

    /// A generation has ended in an open round, to which the next one contributes anew.
    pub fn settled(&mut self) {
        self.repeated += 1;
    }

    /// Contributions of a site so far, in a run of so many rounds.
    #[must_use]
    pub fn so_far(&self, rounds: u64) -> u64 {
        self.frontier.0.min(rounds) + self.repeated
    }

    /// The same at the end of the run, if nothing else is repeated.
    #[must_use]
    pub fn at_the_end(&self, rounds: u64) -> u64 {
        rounds + self.repeated
    }
}

/// Upper bound for every site of the information released by its contributions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrivacyStatus {
    /// Rounds' worth of contributions, repeated ones among them.
    pub releases: u64,
    /// ε that is spent.
    pub epsilon: f64,
    /// ε that will be spent at the end of the run.
    pub epsilon_at_the_end: f64,
    /// δ of both.
    pub delta: f64,
}

impl Core {
    /// None in a run that is not private.
    pub(crate) fn privacy_status(&self) -> Option<PrivacyStatus> {
        let privacy: &PrivacyConfig = self.config.privacy.as_ref()?;
        let (releases, rounds) = (&self.state.releases, self.state.rounds.schedule.rounds());
        Some(PrivacyStatus {
            releases: releases.so_far(rounds),
            epsilon: privacy.epsilon(releases.so_far(rounds)),
            epsilon_at_the_end: privacy.epsilon(releases.at_the_end(rounds)),
            delta: privacy.delta,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contribution_counts_also_those_that_were_undone() {
        let mut releases = Releases::default();
        assert_eq!(releases.so_far(10), 0);
        releases.begin_at(Round(0));
        assert_eq!(releases.so_far(10), 1, "round 0 may be contributed at any time");
        releases.applied(Round(3));
        releases.applied(Round(2));
        assert_eq!((releases.so_far(10), releases.at_the_end(10)), (5, 10));
        releases.settled();
        assert_eq!((releases.so_far(10), releases.at_the_end(10)), (6, 11));
        // Back to the checkpoint before round 2: rounds 2, 3 and 4 are contributed again.
        releases.begin_at(Round(2));
        assert_eq!((releases.so_far(10), releases.at_the_end(10)), (7, 14));
        releases.applied(Round(9));
        assert_eq!(releases.so_far(10), 14, "no round follows the last one");
    }
}
