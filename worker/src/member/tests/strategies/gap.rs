//! The distance between a real run and the reference.

use super::bench::Trace;
use super::reference::Course;

/// A distance relative to the model's distance from its start (of moments: to their norm).
#[derive(Clone, Copy, Debug, Default)]
pub struct Gap {
    /// Over all values.
    pub full: f64,
    /// Without the thousandth of values with the largest error.
    pub trimmed: f64,
}

impl Gap {
    pub fn between(real: &[f32], reference: &[f64], went: f64) -> Self {
        let squares =
            real.iter().zip(reference).map(|(real, reference)| (f64::from(*real) - reference).powi(2));
        let mut squares: Vec<f64> = squares.collect();
        let (all, kept) = (squares.iter().sum::<f64>(), squares.len() - squares.len() / 1000);
        if kept < squares.len() {
            squares.select_nth_unstable_by(kept, f64::total_cmp);
        }
        let norm = |squares: f64| squares.sqrt() / went;
        Self { full: norm(all), trimmed: norm(squares[..kept].iter().sum()) }
    }

    pub fn max(self, other: Self) -> Self {
        Self { full: self.full.max(other.full), trimmed: self.trimmed.max(other.trimmed) }
    }

    /// Returns the widest gap over all rounds and members: of the synchronised parameters after each round, of the members' own parameters with
    /// deltas, and of the final parameters and moments.
    pub fn widest(real: &Trace, reference: &Course) -> Self {
        let mut gap = Self::default();
        let start = &reference.start;
        assert_eq!(real.synchronised.len(), reference.synchronised.len());
        for (real, reference) in real.synchronised.iter().zip(&reference.synchronised) {
            let went = distance(reference, start);
            // The first exchange of a low rank changes nothing, so the distance may be zero.
            gap = gap.max(Self::between(real, reference, if went == 0.0 { 1.0 } else { went }));
        }
        for (real, reference) in real.contributed.iter().zip(&reference.local) {
            for (real, reference) in real.iter().zip(reference).filter(|(_, local)| !local.is_empty()) {
                let real = real.clone().into_whole(reference.len());
                // Values that are not due are zero in both.
                let due = reference.iter().zip(start).filter(|(local, _)| **local != 0.0);
                let (local, start): (Vec<f64>, Vec<f64>) = due.unzip();
                gap = gap.max(Self::between(&real, reference, distance(&local, &start)));
            }
        }
        for (real, [parameters, first, second]) in real.ended.iter().zip(&reference.ended) {
            gap = gap.max(Self::between(&real.parameters, parameters, distance(parameters, start)));
            for (real, moment) in [(&real.first_moments, first), (&real.second_moments, second)] {
                gap = gap.max(Self::between(real, moment, distance(moment, &vec![0.0; moment.len()])));
            }
        }
        gap
    }
}

pub fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}
