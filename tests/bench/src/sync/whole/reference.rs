//! Loss of a machine without a link, by the planned steps of its run: `dense` with the optimiser of the compared method.

use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_emulator::LinkConfig;

use super::BENCH;
use super::scale::{COPIES, RATE_SCALE, WHOLE};
use super::shares::Curve;
use crate::kit::figures::figure;
use crate::runs::training::Training;
use crate::sync::book::Book;
use crate::sync::session::{Sample, Session};
use crate::sync::{method, small};

/// The same two workers, in one place.
const SITES: &[usize] = &[2];
/// Maximum seconds per step, including the exchange within the site: several times those on a busy machine.
const STEP_MAX: Duration = Duration::from_secs(1);

/// Measures missing runs of a reference without a link for comparison with a loss after this many steps.
/// Returns false if no time was left for one, or it failed.
pub fn measure_around(session: &mut Session, reference: &str, loss: f64, steps: u64) -> Result<bool> {
    loop {
        let is_known = |book: &Book, steps| loss_of(book, reference, steps).is_some();
        let next = match is_known(&session.book, steps) {
            true => known(&session.book, reference).wants(loss, steps),
            false => Some(steps),
        };
        let Some(next) = next else { return Ok(true) };
        measure(session, reference, next)?;
        if !is_known(&session.book, next) {
            return Ok(false);
        }
    }
}

/// Returns all measured runs of a reference.
pub fn known(book: &Book, reference: &str) -> Curve {
    let losses = book.bench(BENCH).filter(|line| line.metric == "loss");
    Curve::new(losses.filter_map(|line| Some((parse_case(reference, &line.case)?, line.value))).collect())
}

/// Returns the loss at equal tokens.
pub fn loss_of(book: &Book, reference: &str, steps: u64) -> Option<f64> {
    book.value(BENCH, &case_name(reference, steps), "loss")
}

fn measure(session: &mut Session, reference: &str, steps: u64) -> Result<()> {
    let limit = STEP_MAX * u32::try_from(steps)?;
    session.case(BENCH, &case_name(reference, steps), limit, |session| {
        let method = method::presets().into_iter().find(|method| method.name == reference);
        let method = method.with_context(|| format!("no method is named {reference}"))?;
        let (link, train) = (LinkConfig::default(), method.train(method.best_rate * RATE_SCALE));
        let dense = Training::new(WHOLE, SITES, &method.sync, steps, &link);
        let Sample { seed, text } = session.sample();
        let training =
            Training { train: &train, copies: COPIES, seed: *seed, text: text.as_deref(), ..dense };
        let loss = small::run(&training, limit)?.and_then(|ended| ended.loss);
        let loss = loss.map(|value| figure("loss", value, "nats"));
        let over = figure("over_the_limit_of", limit.as_secs_f64(), "s");
        Ok(vec![loss.unwrap_or(over)])
    })
}

fn case_name(reference: &str, steps: u64) -> String {
    format!("{reference}{WHERE}{steps} steps")
}

const WHERE: &str = " without a link, ";

fn parse_case(reference: &str, case: &str) -> Option<u64> {
    case.strip_prefix(reference)?.strip_prefix(WHERE)?.strip_suffix(" steps")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::whole::shares::Takes;

    #[test]
    fn the_curve_is_made_of_the_runs_without_a_link_alone() {
        let mut book = Book::open(None).unwrap();
        let loss = |value| [figure("loss", value, "nats")];
        book.add(BENCH, &case_name("dense", 1500), &loss(1.5)).unwrap();
        book.add(BENCH, &case_name("dense", 750), &loss(1.75)).unwrap();
        book.add(BENCH, &case_name("dense with muon", 1500), &loss(1.3)).unwrap();
        book.add(BENCH, "dense, 10 Mbit/s, 1500 steps", &loss(1.1)).unwrap();
        assert_eq!(loss_of(&book, "dense", 1500), Some(1.5));
        assert_eq!(known(&book, "dense").takes(1.75), Some(Takes::About(750.0)));
        assert_eq!(known(&book, "dense").takes(1.2), Some(Takes::More(1500)));
        assert_eq!(known(&book, "dense with muon").takes(1.3), Some(Takes::About(1500.0)));
    }
}
