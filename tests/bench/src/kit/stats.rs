//! Statistics of measured values, and alternating variants.

use std::ops::Range;

use anyhow::Result;

/// Minimum, median and maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub least: f64,
    pub median: f64,
    pub most: f64,
}

impl Spread {
    /// Returns `None` without values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let (&least, &most) = (sorted.first()?, sorted.last()?);
        Some(Self { least, median: *sorted.get(sorted.len() / 2)?, most })
    }
}

/// Returns the median: of an even number, the upper one; NaN without values.
pub fn median(values: &[f64]) -> f64 {
    Spread::of(values).map_or(f64::NAN, |spread| spread.median)
}

/// Returns `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Measures variants in alternating turns, as a machine's speed drifts. Turns below zero are warm-up and are
/// dropped.
pub fn in_turns<W, T>(
    ways: &[W],
    turns: Range<i64>,
    mut measure: impl FnMut(&W, i64) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut measured: Vec<Vec<T>> = ways.iter().map(|_| Vec::new()).collect();
    for turn in turns {
        for (way, of_way) in ways.iter().zip(&mut measured) {
            let value = measure(way, turn)?;
            if turn >= 0 {
                of_way.push(value);
            }
        }
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_upper_middle() {
        let spread = |least, median, most| Some(Spread { least, median, most });
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), spread(1.0, 2.0, 3.0));
        assert_eq!(Spread::of(&[4.0, 1.0, 3.0, 2.0]), spread(1.0, 3.0, 4.0));
        assert!(Spread::of(&[]).is_none() && median(&[]).is_nan() && mean(&[]).is_none());
        assert_eq!(mean(&[1.0, 2.0]), Some(1.5));
    }

    #[test]
    fn ways_take_turns_and_those_that_warm_up_do_not_count() {
        let mut order = Vec::new();
        let measured = in_turns(&["a", "b"], -1..2, |way, turn| {
            order.push(format!("{way}{turn}"));
            Ok(turn)
        });
        assert_eq!(measured.unwrap(), [[0, 1], [0, 1]]);
        assert_eq!(order, ["a-1", "b-1", "a0", "b0", "a1", "b1"]);
    }
}
