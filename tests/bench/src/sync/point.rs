//! Results of the runs of `quality`, over rates and seeds.

use super::book::Book;
use super::method::REFERENCE;
use super::quality::{BENCH, case_name};
use crate::kit::figures::{Figure, figure};
use crate::kit::stats::mean;

fn parse_case(case: &str) -> Option<(&str, f64, u64)> {
    let (rest, seed) = case.rsplit_once(", seed ")?;
    let (name, rate) = rest.rsplit_once(", rate ")?;
    Some((name, rate.parse().ok()?, seed.parse().ok()?))
}

/// Result of a method at its best learning rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub rate: f64,
    /// Mean over the seeds.
    pub loss: f64,
    /// Loss relative to dense at its own best rate, minus one: the mean over the common seeds.
    pub over_dense: Option<f64>,
    /// Bits sent by a site, per parameter and step.
    pub bits_sent: f64,
    pub seeds: usize,
}

impl Point {
    /// Evaluates the runs of a method; `None` if none is finished.
    pub fn of(book: &Book, name: &str) -> Option<Self> {
        let (rate, runs) = best(book, name)?;
        let reference = best(book, REFERENCE).map(|(_, runs)| runs).unwrap_or_default();
        let ratios: Vec<f64> = runs
            .iter()
            .filter_map(|(seed, loss)| {
                let (_, dense) = reference.iter().find(|(other, _)| other == seed)?;
                Some(loss / dense - 1.0)
            })
            .collect();
        let losses: Vec<f64> = runs.iter().map(|(_, loss)| *loss).collect();
        let bits =
            runs.iter().filter_map(|(seed, _)| book.value(BENCH, &case_name(name, rate, *seed), "bits_sent"));
        Some(Self {
            rate,
            loss: mean(&losses)?,
            over_dense: mean(&ratios),
            bits_sent: mean(&bits.collect::<Vec<_>>())?,
            seeds: losses.len(),
        })
    }

    pub fn figures(&self) -> Vec<Figure> {
        let mut figures = vec![
            figure("loss", self.loss, "nats"),
            figure("bits_sent", self.bits_sent, "bit/parameter/step"),
            figure("learning_rate", self.rate, ""),
            figure("seeds", self.seeds as f64, ""),
        ];
        let over = self.over_dense.map(|over| over * 100.0);
        figures.extend(over.map(|value| figure("over_dense", value, "%")));
        figures
    }
}

/// Returns the rate with the lowest mean loss, among those tried with the most seeds, and its losses by seed.
fn best(book: &Book, name: &str) -> Option<(f64, Vec<(u64, f64)>)> {
    let mut rates: Vec<(f64, Vec<(u64, f64)>)> = Vec::new();
    for line in book.bench(BENCH).filter(|line| line.metric == "loss") {
        let Some((_, rate, seed)) = parse_case(&line.case).filter(|(method, ..)| *method == name) else {
            continue;
        };
        match rates.iter_mut().find(|(known, _)| *known == rate) {
            Some((_, runs)) => runs.push((seed, line.value)),
            None => rates.push((rate, vec![(seed, line.value)])),
        }
    }
    let most = rates.iter().map(|(_, runs)| runs.len()).max()?;
    let loss = |(_, runs): &(f64, Vec<(u64, f64)>)| runs.iter().map(|(_, loss)| loss).sum::<f64>();
    rates.into_iter().filter(|(_, runs)| runs.len() == most).min_by(|a, b| loss(a).total_cmp(&loss(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_taken_at_the_best_rate_of_either_side_and_over_the_seeds_that_both_have() {
        let mut book = Book::open(None).unwrap();
        let mut add = |name: &str, rate, seed, loss| {
            let figures = [("loss", loss), ("bits_sent", rate)];
            let figures = figures.map(|(metric, value)| Figure { metric, value, unit: "" });
            book.add(BENCH, &case_name(name, rate, seed), &figures).unwrap();
        };
        add("dense", 0.01, 1, 2.0);
        add("dense", 0.02, 1, 1.6);
        add("dense", 0.01, 2, 1.4);
        add("dense", 0.02, 2, 1.5);
        add("auto at 0.067 bit", 0.01, 1, 1.68);
        add("auto at 0.067 bit", 0.01, 2, 1.65);
        add("auto at 0.067 bit", 0.02, 1, 1.9);
        let point = Point::of(&book, "auto at 0.067 bit").unwrap();
        assert_eq!((point.rate, point.bits_sent, point.seeds), (0.01, 0.01, 2));
        // 1.68 / 1.6 = 1.05, 1.65 / 1.5 = 1.1
        assert!((point.over_dense.unwrap() - 0.075).abs() < 1e-9);
        assert_eq!(Point::of(&book, "demo"), None);
    }
}
