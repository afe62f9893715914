//! A residual as it was before each reduction that may turn out to be void.

use std::collections::BTreeMap;

use longhaul_common::id::Round;

/// Of one fragment.
///
/// An owner reduces its fragment round by round, also while other fragments of earlier rounds are open, up to `ROUNDS_AHEAD_MAX` of them. A generation that ends makes all of
/// those void at once that no survivor holds the results of.
#[derive(Clone, Debug, Default)]
pub struct Backups {
    before: BTreeMap<Round, Vec<f32>>,
}

impl Backups {
    /// A round is reduced, perhaps again: what it and later rounds left in the residual is void. Rounds before `settled` never will be.
    pub fn reduce(&mut self, round: Round, settled: Round, residual: &mut Vec<f32>) {
        if let Some(before) = self.take_from(round) {
            *residual = before;
        }
        // One buffer goes round in a steady run.
        let mut spare = Vec::new();
        while self.before.first_key_value().is_some_and(|(of, _)| *of < settled) {
            spare = self.before.pop_first().map(|(_, values)| values).unwrap_or_default();
        }
        spare.clone_from(residual);
        self.before.insert(round, spare);
    }

    /// As it was before this round and all later ones; None where none of them was reduced.
    #[must_use]
    pub fn before(&self, round: Round) -> Option<&Vec<f32>> {
        self.before.range(round..).next().map(|(_, values)| values)
    }

    /// The same; those rounds are forgotten.
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
        assert_eq!(backups.before(Round(2)), Some(&vec![1.0]), "round 3 found what round 1 had left");
        assert_eq!(backups.before(Round(6)), None);
        backups.reduce(Round(1), Round(0), &mut residual);
        assert_eq!(residual, [0.0], "all three are void");
        assert_eq!(backups.before.len(), 1);
    }

    #[test]
    fn a_steady_run_keeps_one() {
        let (mut backups, mut residual) = (Backups::default(), vec![0.0]);
        for round in 0..9 {
            backups.reduce(Round(round), Round(round), &mut residual);
            residual[0] += 1.0;
            assert_eq!(backups.before.len(), 1);
            assert_eq!(backups.before(Round(round)), Some(&vec![round as f32]));
        }
    }
}
