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
    /// Notes that a round is reduced, perhaps again: its and later rounds' changes of the residual are void. Rounds before `settled` are final, and their buffers go to
    /// `spare`, which a new copy takes one from. Returns the residual from before this round; `residual` is then of the same length, with arbitrary values.
    pub fn reduce(
        &mut self,
        round: Round,
        settled: Round,
        residual: &mut Vec<f32>,
        spare: &mut Vec<Vec<f32>>,
    ) -> &[f32] {
        if let Some(before) = self.take_from(round) {
            *residual = before;
        }
        self.forget_before(settled, spare);
        let mut buffer = spare.pop().unwrap_or_default();
        buffer.resize(residual.len(), 0.0);
        std::mem::swap(&mut buffer, residual);
        self.before.entry(round).or_insert(buffer)
    }

    /// Moves the buffers of rounds before this one to `spare`.
    pub fn forget_before(&mut self, round: Round, spare: &mut Vec<Vec<f32>>) {
        let kept = self.before.split_off(&round);
        spare.extend(std::mem::replace(&mut self.before, kept).into_values());
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
        let (mut backups, mut residual, mut spare) = (Backups::default(), vec![0.0], Vec::new());
        for round in [1, 3, 5] {
            backups.reduce(Round(round), Round(0), &mut residual, &mut spare);
            residual[0] = round as f32;
        }
        assert_eq!(backups.before(Round(2)), Some(&vec![1.0]), "round 3 found round 1's residual");
        assert_eq!(backups.before(Round(6)), None);
        let before = backups.reduce(Round(1), Round(0), &mut residual, &mut spare);
        assert_eq!(before, [0.0], "all three are void");
        assert_eq!(backups.before.len(), 1);
    }

    #[test]
    fn a_steady_run_keeps_one() {
        let (mut backups, mut residual, mut spare) = (Backups::default(), vec![0.0], Vec::new());
        for round in 0..9 {
            let before = backups.reduce(Round(round), Round(round), &mut residual, &mut spare)[0];
            residual[0] = before + 1.0;
            assert_eq!((backups.before.len(), spare.len()), (1, 0));
            assert_eq!(backups.before(Round(round)), Some(&vec![round as f32]));
        }
    }

    #[test]
    fn fragments_whose_rounds_are_over_leave_their_buffers_to_others() {
        let mut spare = Vec::new();
        let mut all = [(); 4].map(|()| (Backups::default(), vec![0.0; 8]));
        for round in 0..12 {
            let (backups, residual) = &mut all[round as usize % 4];
            backups.reduce(Round(round), Round(round), residual, &mut spare);
            let kept: usize = all.iter().map(|(backups, _)| backups.before.len()).sum();
            assert_eq!(kept, 1);
            for (backups, _) in &mut all {
                backups.forget_before(Round(round + 1), &mut spare);
            }
            assert_eq!(spare.len(), 1);
        }
    }
}
