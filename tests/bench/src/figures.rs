//! Figures: a line of JSON each, on standard output, and how several measurements become one.

use serde_json::{Map, Value, json};

/// Prints a figure: `{"bench", "case", "metric", "value", "unit"}`.
pub fn print(bench: &str, case: &str, metric: &str, value: impl Into<Value>, unit: &str) {
    print_with(bench, case, metric, (value, unit), Map::new());
}

/// Prints a figure, its value with its unit, with more that belongs to it.
#[allow(clippy::print_stdout, reason = "the benchmark's result")]
pub fn print_with(
    bench: &str,
    case: &str,
    metric: &str,
    (value, unit): (impl Into<Value>, &str),
    more: Map<String, Value>,
) {
    let mut line = more;
    for (key, value) in
        [("bench", json!(bench)), ("case", json!(case)), ("metric", json!(metric)), ("unit", json!(unit))]
    {
        line.insert(key.to_owned(), value);
    }
    line.insert("value".to_owned(), value.into());
    println!("{}", Value::Object(line));
}

/// What belongs to a figure besides its value.
#[must_use]
pub fn more<const N: usize>(pairs: [(&str, Value); N]) -> Map<String, Value> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// With three decimals.
#[must_use]
pub fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The upper median; NaN of none.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The same, and the least.
#[must_use]
pub fn median_and_least(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let values: Vec<f64> = values.into_iter().collect();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (median(values), least)
}

/// Whether a flag is on the command line: of benchmarks that have no other arguments than that.
#[must_use]
pub fn is_given(flag: &str) -> bool {
    std::env::args().skip(1).any(|argument| argument == flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_measurements_become_a_median_and_the_least() {
        assert_eq!(median_and_least([3.0, 1.0, 2.0]), (2.0, 1.0));
        assert_eq!(median(vec![4.0, 1.0]), 4.0);
        assert!(median(Vec::new()).is_nan());
        assert_eq!(rounded(0.123_46), 0.123);
    }
}
