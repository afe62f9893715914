//! Results as unions: the mean at all positions sent by any site.

use std::cmp::Ordering;

/// Restricts a mean to sent positions, up to the download's limit per chunk.
///
/// With p = residual + mean at those positions, p is sent. Elsewhere the residual waits until a site sends the position again, or the download has room for
/// it: if sent at once, each result would hold all positions ever rounded.
#[derive(Debug)]
pub struct Union {
    chunk: usize,
    keep: usize,
    /// Values left out of the present result, by position.
    waiting: Vec<f32>,
    candidates: Vec<u32>,
}

impl Union {
    /// Keeps at most `keep` of each `chunk`.
    pub fn new(chunk: u32, keep: u32) -> Self {
        Self { chunk: chunk as usize, keep: keep as usize, waiting: Vec::new(), candidates: Vec::new() }
    }

    /// Takes all values from `mean` and `residual`, of equal length, that are not to be sent now.
    pub fn hold_back(&mut self, mean: &mut [f32], residual: &mut [f32]) {
        self.waiting.clear();
        self.waiting.resize(mean.len(), 0.0);
        let chunks = mean.chunks_mut(self.chunk).zip(residual.chunks_mut(self.chunk));
        for ((mean, residual), waiting) in chunks.zip(self.waiting.chunks_mut(self.chunk)) {
            self.candidates.clear();
            self.candidates.extend((0..mean.len() as u32).filter(|&at| mean[at as usize] != 0.0));
            let surplus = cut(&mut self.candidates, self.keep, |at| residual[at] + mean[at]);
            for &at in surplus {
                waiting[at as usize] = residual[at as usize] + mean[at as usize];
                (mean[at as usize], residual[at as usize]) = (0.0, 0.0);
            }
            let unsent = mean.iter().zip(residual).zip(waiting).filter(|((mean, _), _)| **mean == 0.0);
            for ((_, residual), waiting) in unsent {
                *waiting += std::mem::take(residual);
            }
        }
    }

    /// Puts the held-back values into `residual`.
    pub fn give_back(&self, residual: &mut [f32]) {
        residual.iter_mut().zip(&self.waiting).for_each(|(residual, waiting)| *residual += waiting);
    }
}

/// Returns the candidates beyond the `keep` with the largest magnitudes; of equal ones, the lower positions are kept.
fn cut(candidates: &mut [u32], keep: usize, value: impl Fn(usize) -> f32) -> &[u32] {
    if candidates.len() <= keep {
        return &[];
    }
    let by_magnitude = |a: &u32, b: &u32| -> Ordering {
        let [x, y] = [a, b].map(|at| value(*at as usize).abs());
        y.total_cmp(&x).then(a.cmp(b))
    };
    candidates.select_nth_unstable_by(keep, by_magnitude);
    &candidates[keep..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_sent_waits_and_of_the_rest_the_largest_go_first() {
        let mut union = Union::new(4, 2);
        let mut mean = vec![1.0, 0.0, -3.0, 2.0, 0.0, 5.0, 0.0, 0.0, 1.0];
        let mut residual = vec![0.0, 9.0, 1.0, 0.5, 0.25, -1.0, 0.0, 7.0, 1.0];
        let [mean_before, residual_before] = [mean.clone(), residual.clone()];
        union.hold_back(&mut mean, &mut residual);
        // 2.5 at 3 and -2 at 2 in the first chunk; all sent values of the others.
        assert_eq!(mean, [0.0, 0.0, -3.0, 2.0, 0.0, 5.0, 0.0, 0.0, 1.0]);
        assert_eq!(residual, [0.0, 0.0, 1.0, 0.5, 0.0, -1.0, 0.0, 0.0, 1.0]);
        union.give_back(&mut residual);
        for at in 0..9 {
            assert_eq!(
                mean[at] + residual[at],
                mean_before[at] + residual_before[at],
                "nothing is lost at {at}"
            );
        }
    }

    #[test]
    fn of_equal_magnitudes_the_lower_positions_are_sent() {
        let mut union = Union::new(8, 3);
        let (mut mean, mut residual) = (vec![1.0, -1.0, 1.0, -1.0, 1.0], vec![0.0; 5]);
        union.hold_back(&mut mean, &mut residual);
        assert_eq!(mean, [1.0, -1.0, 1.0, 0.0, 0.0]);
    }
}
