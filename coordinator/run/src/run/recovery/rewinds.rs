//! Which checkpoints are of rounds that were made anew since.

use std::collections::BTreeMap;

use longhaul_common::id::{Generation, Round};
use longhaul_proto::control::message::CheckpointOffer;
use serde::{Deserialize, Serialize};

/// Steps remembered for each part of the model; beyond, the two oldest merge into one that forbids whatever either forbids.
const STEPS_MAX: usize = 256;

/// Rounds that the run went back to as its generations began. A checkpoint is of an abandoned past if it contains a round that a later generation began
/// anew: its members were cut off, or had left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewinds {
    /// Of each part of the model, by its rank and how many there are: generations, and the first round that was made anew from when they began, both ascending.
    of_parts: BTreeMap<(u32, u32), Vec<(Generation, Round)>>,
}

impl Rewinds {
    /// A generation begins in which the part of this rank, of so many, makes all rounds from `open` on, whatever was made of them before.
    pub fn note(&mut self, part: (u32, u32), generation: Generation, open: Round) {
        note(self.of_parts.entry(part).or_default(), generation, open);
    }

    /// The same for all parts that there are, and those that there were.
    pub fn note_all(&mut self, parts: u32, generation: Generation, open: Round) {
        for rank in 0..parts {
            self.of_parts.entry((rank, parts)).or_default();
        }
        self.of_parts.values_mut().for_each(|steps| note(steps, generation, open));
    }

    /// Whether the run, after the checkpoint was written, went back behind it.
    #[must_use]
    pub fn have_undone(&self, offer: &CheckpointOffer) -> bool {
        let steps = self.of_parts.get(&(offer.rank, offer.parts)).map(Vec::as_slice).unwrap_or_default();
        steps.iter().any(|&(generation, open)| generation > offer.generation && open < offer.next_round)
    }
}

fn note(steps: &mut Vec<(Generation, Round)>, generation: Generation, open: Round) {
    // Replaces earlier entries that do not reach as far back.
    while steps.last().is_some_and(|&(_, earlier)| earlier >= open) {
        steps.pop();
    }
    steps.push((generation, open));
    if steps.len() > STEPS_MAX {
        let (_, oldest) = steps.remove(0);
        steps[0].1 = oldest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(generation: u64, next_round: u64) -> CheckpointOffer {
        CheckpointOffer {
            next_round: Round(next_round),
            state_hash: [1; 32],
            private: true,
            rank: 0,
            parts: 1,
            generation: Generation(generation),
        }
    }

    /// However much is forgotten, the answer equals that of a full list, or forbids more of the oldest.
    #[test]
    fn what_is_undone_is_what_some_later_generation_began_before() {
        let mut random = xorshift(7);
        for length in [5, 60, 2 * STEPS_MAX as u64] {
            let (mut rewinds, mut all) = (Rewinds::default(), Vec::new());
            for generation in 1..=length {
                // Rounds go on, and back at times.
                let open = (generation * 3).saturating_sub(random() % 12);
                rewinds.note((0, 1), Generation(generation), Round(open));
                all.push((generation, open));
            }
            let steps = &rewinds.of_parts[&(0, 1)];
            assert!(steps.len() <= STEPS_MAX && steps.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1));
            let oldest = steps[0].0.0;
            for _ in 0..4000 {
                let (generation, next) = (random() % (length + 2), random() % (3 * length + 4));
                let undone = rewinds.have_undone(&offer(generation, next));
                let expected = all.iter().any(|&(later, open)| later > generation && open < next);
                let is_known = generation >= oldest || length <= STEPS_MAX as u64;
                assert!(undone == expected || !is_known && undone, "{generation} {next} {steps:?}");
            }
        }
    }

    #[test]
    fn parts_that_were_are_forbidden_when_all_go_back_and_are_told_apart_otherwise() {
        let mut rewinds = Rewinds::default();
        rewinds.note((0, 1), Generation(1), Round(0));
        let of_second = |generation| CheckpointOffer { rank: 1, parts: 2, ..offer(generation, 6) };
        rewinds.note((1, 2), Generation(2), Round(5));
        assert!(rewinds.have_undone(&of_second(1)) && !rewinds.have_undone(&of_second(2)));
        assert!(!rewinds.have_undone(&offer(1, 6)));
        rewinds.note_all(2, Generation(3), Round(4));
        assert!(rewinds.have_undone(&of_second(2)) && rewinds.have_undone(&offer(1, 6)));
        assert!(!rewinds.have_undone(&of_second(3)));
    }

    /// xorshift64, seeded.
    fn xorshift(mut state: u64) -> impl FnMut() -> u64 {
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        }
    }
}
