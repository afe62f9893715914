//! The best checkpoints of a run, as one worker has heard of them.

use std::collections::BTreeSet;

use longhaul_common::config::{BestCheckpoints, Retention, RunConfig};
use longhaul_common::id::Round;
use longhaul_proto::checkpoint::archive::Archived;

/// The best checkpoints that a worker has heard of: an upload may be skipped, and then the archive lacks the newest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownBest {
    now: BestCheckpoints,
    /// All so far, at most one for each evaluation.
    all: BTreeSet<Round>,
}

impl KnownBest {
    /// Takes the coordinator's word.
    pub fn hear(&mut self, best: BestCheckpoints) {
        // The run may have gone back.
        self.all.retain(|round| *round <= best.judged);
        self.all.extend(best.rounds.into_iter().flatten());
        self.now = best;
    }

    /// Returns the last word.
    #[must_use]
    pub fn now(&self) -> BestCheckpoints {
        self.now
    }

    /// Returns the retention of a model in so many parts in an archive with these checkpoints: the newest of the best that is complete there stays until a newer
    /// one is. If there is none, one from before the first word may be among the older ones, and all of those stay.
    pub(super) fn retention(&self, config: &RunConfig, parts: u32, archived: &[Archived]) -> Retention {
        let has_part = |round, rank| {
            archived.iter().any(|of| (of.next_round, of.part.rank, of.part.parts) == (round, rank, parts))
        };
        let is_complete = |round: &&Round| (0..parts).all(|rank| has_part(**round, rank));
        let newest = self.all.iter().rev().find(is_complete).copied();
        let [kept, best] = self.now.rounds;
        let retention = config.retention(BestCheckpoints { rounds: [newest.or(kept), best], ..self.now });
        let all_before = if newest.is_none() { self.all.first().copied() } else { None };
        Retention { all_before, ..retention }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::RunId;
    use longhaul_proto::checkpoint::archive::ModelPart;
    use longhaul_run_toml::{Gpt2, RunToml};

    use super::*;

    fn config() -> RunConfig {
        let run = RunToml::new("best")
            .workers(2)
            .steps(100)
            .gpt2(Gpt2 { layers: 1, width: 16, heads: 2, context: 16 })
            .batch(8)
            .set("data.validation_share", 0.1)
            .lines("train", "evaluate_every_rounds = 10")
            .lines("evaluate", "keep_best = true")
            .lines("checkpoint", "every_rounds = 10\nkeep = 1");
        RunConfig::parse(&run.to_string()).unwrap()
    }

    fn word(kept: u64, best: u64, judged: u64) -> BestCheckpoints {
        BestCheckpoints { rounds: [Some(Round(kept)), Some(Round(best))], judged: Round(judged) }
    }

    /// Checkpoints of a model in two parts, by round and rank.
    fn archived(all: &[(u64, u32)]) -> Vec<Archived> {
        let of = |&(round, rank)| {
            let part = ModelPart { run: RunId([1; 16]), parts: 2, rank };
            Archived { part, next_round: Round(round) }
        };
        all.iter().map(of).collect()
    }

    /// Rounds of the first part that go once the last one is written.
    fn gone(known: &KnownBest, all: &[(u64, u32)]) -> Vec<u64> {
        let mut rounds: Vec<Round> =
            all.iter().filter(|(_, rank)| *rank == 0).map(|(round, _)| Round(*round)).collect();
        rounds.sort_unstable_by(|a, b| b.cmp(a));
        let retention = known.retention(&config(), 2, &archived(all));
        retention.surplus(&rounds, rounds[0]).map(|round| round.0).collect()
    }

    #[test]
    fn the_former_best_stays_until_all_parts_of_a_newer_one_are_there() {
        let mut known = KnownBest::default();
        known.hear(word(20, 20, 20));
        known.hear(word(40, 40, 60));
        // Both parts of 20, and the first of 40: the upload of the other one was skipped.
        let mut all = vec![(20, 0), (20, 1), (30, 0), (30, 1), (40, 0), (60, 0), (60, 1)];
        assert_eq!(gone(&known, &all), [30]);
        all.push((40, 1));
        assert_eq!(gone(&known, &all), [30, 20]);
    }

    #[test]
    fn what_was_best_before_the_first_word_stays_until_a_known_one_is_there() {
        let mut known = KnownBest::default();
        known.hear(word(40, 40, 60));
        known.hear(word(50, 50, 60));
        let mut all = vec![(20, 0), (20, 1), (30, 0), (30, 1), (45, 0), (45, 1), (60, 0), (60, 1)];
        assert_eq!(gone(&known, &all), [45]);
        all.extend([(50, 0), (50, 1)]);
        assert_eq!(gone(&known, &all), [45, 30, 20]);
        // Back at round 45, those after it are others.
        known.hear(word(40, 40, 45));
        assert_eq!(known.all, BTreeSet::from([Round(40)]));
    }
}
