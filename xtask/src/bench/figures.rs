//! The output of benchmarks: one JSON object per line.

use serde::Deserialize;

use crate::table;

/// One measured value.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Figure {
    /// The benchmark.
    pub bench: String,
    /// The case within it: a row.
    pub case: String,
    /// The measured quantity: a column.
    pub metric: String,
    /// The measurement.
    pub value: f64,
    /// Its unit; empty if there is none or the metric's name contains it.
    #[serde(default)]
    pub unit: String,
}

/// A table for each benchmark, with a row per case and a column per metric, both in order of first appearance.
pub fn render(figures: &[Figure]) -> String {
    let tables: Vec<String> = distinct(figures.iter().map(|figure| figure.bench.as_str()))
        .into_iter()
        .map(|bench| {
            let figures: Vec<&Figure> = figures.iter().filter(|figure| figure.bench == bench).collect();
            table::render(&rows(bench, &figures))
        })
        .collect();
    tables.join("\n")
}

fn rows(bench: &str, figures: &[&Figure]) -> Vec<Vec<String>> {
    let cases = distinct(figures.iter().map(|figure| figure.case.as_str()));
    let columns = distinct(figures.iter().map(|figure| (figure.metric.as_str(), figure.unit.as_str())));
    let heading =
        columns.iter().map(
            |(metric, unit)| {
                if unit.is_empty() { (*metric).to_owned() } else { format!("{metric} [{unit}]") }
            },
        );
    let mut rows = vec![std::iter::once(bench.to_owned()).chain(heading).collect()];
    for case in cases {
        let cells = columns.iter().map(|&(metric, unit)| {
            figures
                .iter()
                .rfind(|figure| figure.case == case && figure.metric == metric && figure.unit == unit)
                .map_or_else(|| "-".to_owned(), |figure| format_value(figure.value))
        });
        rows.push(std::iter::once(case.to_owned()).chain(cells).collect());
    }
    rows
}

fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for item in items {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}

/// Formats whole numbers unchanged, others with about four significant digits.
fn format_value(value: f64) -> String {
    let magnitude = value.abs();
    if value.fract() == 0.0 || magnitude >= 1000.0 {
        format!("{value:.0}")
    } else if magnitude >= 100.0 {
        format!("{value:.1}")
    } else if magnitude >= 1.0 {
        format!("{value:.2}")
    } else if magnitude >= 1e-3 {
        format!("{value:.4}")
    } else {
        format!("{value:.2e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(line: &str) -> Figure {
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn cases_become_rows_and_metrics_become_columns() {
        let figures = [
            figure(r#"{"bench":"codec","case":"2bit","metric":"encode","value":1234.5,"unit":"MB/s"}"#),
            figure(r#"{"bench":"codec","case":"2bit","metric":"error","value":0.00012}"#),
            figure(r#"{"bench":"codec","case":"f32","metric":"encode","value":987.25,"unit":"MB/s"}"#),
        ];
        assert_eq!(
            render(&figures),
            "codec  encode [MB/s]    error\n\
             -----------------------------\n\
             2bit            1234  1.20e-4\n\
             f32            987.2        -\n"
        );
    }

    #[test]
    fn two_benchmarks_make_two_tables() {
        let figures = [
            figure(r#"{"bench":"a","case":"x","metric":"m","value":1,"unit":"s"}"#),
            figure(r#"{"bench":"b","case":"x","metric":"m","value":2,"unit":"s"}"#),
        ];
        assert_eq!(render(&figures), "a  m [s]\n--------\nx      1\n\nb  m [s]\n--------\nx      2\n");
    }
}
