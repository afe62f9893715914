//! Conversion of a whole run's duration to shares of local speed.

use crate::sync::pace::Look;

/// A run that ended, or was stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ran {
    /// Steps requested.
    pub steps: u64,
    /// Steps made.
    pub made: u64,
    /// Seconds from the first step to the last one made.
    pub seconds: f64,
    /// Seconds per step without exchange, for comparison.
    pub local_step_s: f64,
}

impl Ran {
    /// Whether it made all of its steps.
    pub fn is_whole(&self) -> bool {
        self.made >= self.steps
    }

    /// Returns the time of as many steps without exchange, over the time taken.
    pub fn share(&self) -> f64 {
        self.made as f64 * self.local_step_s / self.seconds
    }

    /// Returns an upper bound of the share of the whole run, as if the rest ran at local speed.
    pub fn share_at_most(&self) -> f64 {
        let left = self.steps.saturating_sub(self.made) as f64;
        self.steps as f64 * self.local_step_s / (self.seconds + left * self.local_step_s)
    }
}

/// Start of the steady pace in a run: warm-ups, and the early phase of `auto`, are over by then.
const STEADY_FROM: (u64, u64) = (2, 3);

/// Returns the seconds per step over the last third; `None`: the run did not reach its end.
pub fn steady_step_s(looks: &[Look], steps: u64) -> Option<f64> {
    let from = looks.iter().find(|look| look.steps * STEADY_FROM.1 >= steps * STEADY_FROM.0)?;
    let to = looks.iter().find(|look| look.steps >= steps)?;
    let made = to.steps.checked_sub(from.steps).filter(|made| *made > 0)?;
    Some((to.at_s - from.at_s) / made as f64)
}

/// Final losses of runs without a link, by planned steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve(Vec<(u64, f64)>);

/// Steps without a link to reach a loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Takes {
    About(f64),
    /// The shortest run is better.
    Fewer(u64),
    /// The longest run is worse.
    More(u64),
}

/// Maximum steps measured, relative to a run: a loss below that of as many steps is rare.
const LONGER: (u64, u64) = (5, 4);
/// Divisor for the minimum steps measured.
const SHORTEST_PART: u64 = 16;

impl Curve {
    /// Creates a curve from runs in any order. A longer run with a higher loss counts as equal: one seed is
    /// not more precise.
    pub fn new(mut points: Vec<(u64, f64)>) -> Self {
        points.sort_by_key(|(steps, _)| *steps);
        let mut least = f64::INFINITY;
        for (_, loss) in &mut points {
            least = least.min(*loss);
            *loss = least;
        }
        Self(points)
    }

    /// Returns the steps of the next run to measure, to locate the loss of a run of `steps` steps; `None`:
    /// enough is known, or the search ends.
    pub fn wants(&self, loss: f64, steps: u64) -> Option<u64> {
        let (Some(&(shortest, most)), Some(&(longest, least))) = (self.0.first(), self.0.last()) else {
            return Some(steps);
        };
        let longer = steps * LONGER.0 / LONGER.1;
        match loss {
            _ if loss > most => Some(shortest / 2).filter(|next| next * SHORTEST_PART >= steps && *next > 0),
            _ if loss < least => Some(longer).filter(|longer| *longer > longest),
            _ => None,
        }
    }

    /// Interpolates between two runs in the logarithm of the steps; `None` without runs.
    pub fn takes(&self, loss: f64) -> Option<Takes> {
        let (&(shortest, most), &(longest, least)) = (self.0.first()?, self.0.last()?);
        if loss > most {
            return Some(Takes::Fewer(shortest));
        }
        if loss < least {
            return Some(Takes::More(longest));
        }
        let after = self.0.iter().position(|(_, reached)| *reached <= loss)?;
        let (steps, reached) = self.0[after];
        let Some(&(before, worse)) = after.checked_sub(1).and_then(|before| self.0.get(before)) else {
            return Some(Takes::About(steps as f64));
        };
        let way = (worse - loss) / (worse - reached);
        Some(Takes::About(before as f64 * (steps as f64 / before as f64).powf(way)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_three_times_the_local_time_has_a_third_of_local_speed() {
        let ran = Ran { steps: 100, made: 100, seconds: 150.0, local_step_s: 0.5 };
        assert!(ran.is_whole());
        assert!((ran.share() - 1.0 / 3.0).abs() < 1e-12 && ran.share_at_most() == ran.share());
    }

    #[test]
    fn a_run_that_was_stopped_has_a_bound_and_the_share_so_far() {
        // 30 of 100 steps in 300 s; the other 70 take 35 s at least.
        let ran = Ran { steps: 100, made: 30, seconds: 300.0, local_step_s: 0.5 };
        assert!(!ran.is_whole());
        assert!((ran.share() - 15.0 / 300.0).abs() < 1e-12);
        assert!((ran.share_at_most() - 50.0 / 335.0).abs() < 1e-12);
        let stuck = Ran { made: 0, ..ran };
        assert_eq!(stuck.share(), 0.0);
        assert!((stuck.share_at_most() - 50.0 / 350.0).abs() < 1e-12);
    }

    #[test]
    fn the_steady_pace_is_that_of_the_last_third() {
        // Ten seconds per step for ten steps, then one.
        let at_s = |steps: u64| (steps.min(10) * 10 + steps.saturating_sub(10)) as f64;
        let looks: Vec<_> =
            (1..=90).map(|steps| Look { at_s: at_s(steps), steps, bytes: 0, beside_s: 0.0 }).collect();
        assert_eq!(steady_step_s(&looks, 90), Some(1.0));
        assert_eq!(steady_step_s(&looks, 91), None, "it was not over");
        // 7 of 12 are not two thirds, 8 are: 20 s for each of the last four.
        let look = |steps, at_s| Look { at_s, steps, bytes: 0, beside_s: 0.0 };
        let few = [look(7, 0.0), look(8, 10.0), look(12, 90.0)];
        assert_eq!(steady_step_s(&few, 12), Some(20.0));
        assert_eq!(steady_step_s(&few[2..], 12), None, "one look says nothing");
    }

    fn curve() -> Curve {
        Curve::new(vec![(400, 1.0), (100, 2.0), (200, 1.5)])
    }

    #[test]
    fn steps_to_a_loss_lie_between_those_of_the_runs_around_it() {
        let about = |loss| match curve().takes(loss) {
            Some(Takes::About(steps)) => steps,
            other => panic!("{other:?}"),
        };
        assert_eq!([2.0, 1.5, 1.0].map(about), [100.0, 200.0, 400.0]);
        // Half of the way in loss is half of the way in the logarithm.
        assert!((about(1.75) - 100.0 * 2f64.sqrt()).abs() < 1e-9);
        assert!((about(1.25) - 200.0 * 2f64.sqrt()).abs() < 1e-9);
    }

    #[test]
    fn a_loss_beyond_either_end_is_told_as_a_bound() {
        assert_eq!(curve().takes(2.1), Some(Takes::Fewer(100)));
        assert_eq!(curve().takes(0.9), Some(Takes::More(400)));
        assert_eq!(Curve::default().takes(1.0), None);
    }

    #[test]
    fn a_longer_run_that_is_worse_changes_nothing() {
        let curve = Curve::new(vec![(100, 2.0), (200, 1.5), (400, 1.6)]);
        assert_eq!(curve.takes(1.5), Some(Takes::About(200.0)));
        assert_eq!(curve.takes(1.4), Some(Takes::More(400)));
    }

    #[test]
    fn only_runs_around_the_loss_are_measured() {
        let wants = |points: &[(u64, f64)], loss| Curve::new(points.to_vec()).wants(loss, 1600);
        assert_eq!(wants(&[], 1.5), Some(1600));
        assert_eq!(wants(&[(1600, 1.4)], 1.5), Some(800));
        assert_eq!(wants(&[(1600, 1.4), (800, 1.45)], 1.5), Some(400));
        assert_eq!(wants(&[(1600, 1.4), (800, 1.6)], 1.5), None);
        assert_eq!(wants(&[(1600, 1.4), (100, 1.6)], 1.7), None, "a sixteenth is the shortest");
        assert_eq!(wants(&[(1600, 1.4)], 1.3), Some(2000));
        assert_eq!(wants(&[(1600, 1.4), (2000, 1.35)], 1.3), None, "nothing is longer");
        assert_eq!(wants(&[(1600, 1.4)], 1.4), None, "the very loss");
    }
}
