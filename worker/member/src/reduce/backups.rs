//! Copies of a residual from before each reduction that may become void.

use std::collections::BTreeMap;

use longhaul_common::id::Round;

/// Copies for one fragment.
///
/// An owner reduces its fragment up to `ROUNDS_AHEAD_MAX` rounds ahead of other open fragments. The end of a generation makes all rounds void whose results
/// no survivor holds.
#[derive(Clone, Debug, Default)]
pub struct Backups {
    before: BTreeMap<Round, Vec<f32>>,
}

impl Backups {
    /// Notes that a round is reduced, perhaps again: its and later rounds' changes of the residual are void. Rounds before `settled` are final.
    /// Returns the residual from before this round; `residual` is then of the same length, with arbitrary values.
    pub fn reduce(&mut self, round: Round, settled: Round, residual: &mut Vec<f32>) -> &[f32] {
        if let Some(before) = self.take_from(round) {
            *residual = before;
        }
        // A steady run reuses one buffer.
        let mut spare = Vec::new();
        while self.before.first_key_value().is_some_and(|(of, _)| *of < settled) {
            spare = self.before.pop_first().map(|(_, values)| values).unwrap_or_default();
        }
        spare.resize(residual.len(), 0.0);
        std::mem::swap(&mut spare, residual);
        self.before.entry(round).or_insert(spare)
    }

    /// Returns the residual from before this and all later rounds; `None` if none of them was reduced.
    #[must_use]
    pub fn before(&self, round: Round) -> Option<&Vec<f32>> {
        self.before.range(round..).next().map(|(_, values)| values)
    }

    /// Returns the same, and forgets those rounds.
    pub fn take_from(&mut self, round: Round) -> Option<Vec<f32>> {
        self.before.split_off(&round).into_values().next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_were_reduced_ahead_are_undone_together() {
        let (mut backups, mut residual) = (Backups::default(), vec![0.0]);
        for round in [1, 3, 5] {
            backups.reduce(Round(round), Round(0), &mut residual);
            residual[0] = round as f32;
        }
        assert_eq!(backups.before(Round(2)), Some(&vec![1.0]), "round 3 found round 1's residual");
        assert_eq!(backups.before(Round(6)), None);
        assert_eq!(backups.reduce(Round(1), Round(0), &mut residual), [0.0], "all three are void");
        assert_eq!(backups.before.len(), 1);
    }

    #[test]
    fn a_steady_run_keeps_one() {
        let (mut backups, mut residual) = (Backups::default(), vec![0.0]);
        for round in 0..9 {
            let before = backups.reduce(Round(round), Round(round), &mut residual)[0];
            residual[0] = before + 1.0;
            assert_eq!(backups.before.len(), 1);
            assert_eq!(backups.before(Round(round)), Some(&vec![round as f32]));
        }
    }
}
