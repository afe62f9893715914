//! Output of figures: one JSON object per line.

use serde_json::{Map, Value, json};

use super::figures::{Figure, Line};

/// Prints the figures of one benchmark.
#[derive(Clone)]
pub struct Recorder {
    bench: String,
    /// Decimals of rounded values; `None`: not rounded.
    decimals: Option<i32>,
    /// Further keys of each line.
    more: Map<String, Value>,
}

impl Recorder {
    /// Creates the recorder of the benchmark with this name.
    pub fn new(bench: impl Into<String>) -> Self {
        Self { bench: bench.into(), decimals: None, more: Map::new() }
    }

    /// Rounds values to this many decimals.
    pub fn rounded_to(self, decimals: i32) -> Self {
        Self { decimals: Some(decimals), ..self }
    }

    /// Adds a key to each line.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.more.insert(key.to_owned(), value.into());
        self
    }

    /// Prints one figure. Counts stay integers.
    pub fn print(&self, case: &str, metric: &str, value: impl Into<Value>, unit: &str) {
        print(&self.line(case, metric, value.into(), unit));
    }

    /// Prints the figures of a case.
    pub fn print_all(&self, case: &str, figures: impl IntoIterator<Item = Figure>) {
        for Figure { metric, value, unit } in figures {
            self.print(case, metric, value, unit);
        }
    }

    /// Prints the figures of a case that were reached.
    #[cfg(feature = "torch")]
    pub fn print_known(&self, case: &str, figures: &[(&'static str, Option<f64>, &'static str)]) {
        let known =
            |&(metric, value, unit): &(_, Option<f64>, _)| Some(Figure { metric, value: value?, unit });
        self.print_all(case, figures.iter().filter_map(known));
    }

    fn line(&self, case: &str, metric: &str, value: Value, unit: &str) -> Value {
        let value = match (self.decimals, value.as_f64()) {
            (Some(decimals), Some(value)) => json!(rounded(value, decimals)),
            _ => value,
        };
        let mut line =
            json!({ "bench": self.bench, "case": case, "metric": metric, "value": value, "unit": unit });
        if let Value::Object(keys) = &mut line {
            keys.extend(self.more.clone());
        }
        line
    }
}

fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    (value * scale).round() / scale
}

impl Line {
    /// Prints the line in its stored form.
    pub fn print(&self) {
        print(&json!(self));
    }
}

#[allow(clippy::print_stdout, reason = "the figures are the program's output")]
fn print(line: &Value) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_readers_expect_and_the_benchmarks_own_keys() {
        let recorder = Recorder::new("train").with("steps", 30);
        let expected = json!({
            "bench": "train", "case": "gpt", "metric": "step_s", "value": 0.25, "unit": "s", "steps": 30,
        });
        assert_eq!(recorder.line("gpt", "step_s", json!(0.25), "s"), expected);
        assert_eq!(recorder.line("gpt", "files", json!(7), "")["value"].to_string(), "7");
    }

    #[test]
    fn values_are_rounded_where_the_benchmark_says_so() {
        let line = Recorder::new("wan").rounded_to(3).line("ours", "step_s", json!(0.123_46), "s");
        assert_eq!(line["value"], json!(0.123));
    }
}
