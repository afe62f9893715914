//! Whole runs over links that carry what their row says: one configuration, from the first step to the last.
//!
//! `docs/benchmarks/sync.md` has the definitions of all figures.

mod ours;
mod peers;
mod reference;
mod scale;
mod shares;

use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_emulator::LinkConfig;
pub use reference::loss_of as reference_loss;
pub use scale::bits;
use scale::{RATE_SCALE, WHOLE};
use shares::{Ran, Takes};

use crate::book::{Book, Figure};
use crate::method::{self, Method};
use crate::session::{self, Session};
use crate::small;

/// What its lines are called.
pub const BENCH: &str = "sync/whole";
/// Rates of the links, unless told otherwise, in Mbit/s of the model of `gpt`.
pub const RATES_MBIT: [f64; 3] = [100.0, 10.0, 1.0];
/// Steps of the runs, unless told otherwise.
pub const STEPS: [u64; 2] = [1500, 6000];
/// With `--quick`.
const STEPS_QUICK: u64 = 300;

/// One worker each.
const SITES: [usize; 2] = [1, 1];
const SEED: u64 = 1;
/// So many times the time of local runs is what a case may take;
const LIMIT_TIMES: f64 = 5.0;
/// `auto` is to have a figure on every link.
const LIMIT_TIMES_AUTO: f64 = 30.0;
/// About what a step takes, where it is to be said how long a case may take before that is measured.
const STEP_S_ABOUT: f64 = 0.05;

/// What a run took.
struct Measured {
    made: u64,
    seconds: f64,
    steady_step_s: Option<f64>,
    /// Nats a token over all held-out text; none of a run that was stopped, or when it is no number.
    loss: Option<f64>,
    /// By both sites, as workers count it. PyTorch does not tell.
    sent_bytes: Option<f64>,
    /// What arrived at both sites, with all headers.
    wire_bytes: f64,
}

/// A row of the table.
struct Case<'a> {
    method: &'a str,
    rate_mbit: f64,
    steps: u64,
    limit_times: f64,
}

impl Case<'_> {
    fn name(&self) -> String {
        case_name(self.method, self.rate_mbit, self.steps)
    }

    /// Whether a shorter run was over its limit already: a longer one has the same pace, and takes several times as long to say so.
    fn is_hopeless(&self, book: &Book) -> bool {
        if book.case(BENCH, &self.name()).next().is_some() {
            return false;
        }
        let shorter = shorter_over_the_limit(book, self.method, self.rate_mbit, self.steps);
        if let Some(shorter) = shorter {
            session::progress(&format!(
                "{BENCH}: {} is left out: {shorter} steps were over the limit",
                self.name()
            ));
        }
        shorter.is_some()
    }

    /// Before anything is measured.
    fn limit_about(&self) -> Duration {
        Duration::from_secs_f64(self.steps as f64 * STEP_S_ABOUT * self.limit_times)
    }
}

/// A method, its link and the steps of its run.
pub fn case_name(method: &str, rate_mbit: f64, steps: u64) -> String {
    format!("{method}, {rate_mbit} Mbit/s, {steps} steps")
}

/// The steps of a shorter run with this method and link that was over its limit.
pub fn shorter_over_the_limit(book: &Book, method: &str, rate_mbit: f64, steps: u64) -> Option<u64> {
    let is_over = |shorter: &u64| {
        *shorter < steps
            && book.value(BENCH, &case_name(method, rate_mbit, *shorter), "over_the_limit_of").is_some()
    };
    STEPS.into_iter().find(is_over)
}

/// The newest speeds without exchange, which are those before the next case as well.
#[derive(Default)]
struct Local {
    ours: Option<f64>,
    theirs: Option<f64>,
}

/// Every preset and what PyTorch has, over links of so many Mbit/s, in runs of so many steps. What is asked for first is measured first.
pub fn measure(session: &mut Session, rates_mbit: &[f64], steps: Option<&[u64]>) -> Result<()> {
    let steps = match steps {
        Some(steps) => steps,
        None if session.quick => &[STEPS_QUICK],
        None => &STEPS,
    };
    let mut local = Local::default();
    for &steps in steps {
        for method in
            method::presets().into_iter().filter(|method| session.wants(method.name)).collect::<Vec<_>>()
        {
            let limit_times = if method.name == "auto" { LIMIT_TIMES_AUTO } else { LIMIT_TIMES };
            for &rate_mbit in rates_mbit {
                let case = Case { method: method.name, rate_mbit, steps, limit_times };
                if !case.is_hopeless(&session.book) {
                    ours_case(session, &case, &method, &mut local)?;
                }
            }
        }
        for (name, mode, _) in method::PYTORCH {
            let wanted = if session.wants(name) { rates_mbit } else { &[] };
            for &rate_mbit in wanted {
                let case = Case { method: name, rate_mbit, steps, limit_times: LIMIT_TIMES };
                if !case.is_hopeless(&session.book) {
                    peer_case(session, &case, mode, &mut local)?;
                }
            }
        }
    }
    Ok(())
}

fn ours_case(session: &mut Session, case: &Case<'_>, method: &Method, local: &mut Local) -> Result<()> {
    let enough_s = enough_s(session);
    session.case(BENCH, &case.name(), case.limit_about(), |_| {
        let before = local.ours.map_or_else(|| ours::local_step_s(enough_s), Ok)?;
        let link = scale::link(case.rate_mbit, before)?;
        let train = small::train(method.best_rate * RATE_SCALE);
        let training = ours::training(&method.sync, &train, case.steps, &link);
        let measured = ours::run(&training, limit(case, before)?)?;
        let after = ours::local_step_s(enough_s)?;
        local.ours = Some(after);
        Ok(figures(case, &measured, f64::midpoint(before, after), &link))
    })?;
    tell(session, case)
}

fn peer_case(
    session: &mut Session,
    case: &Case<'_>,
    mode: longhaul_bench::pytorch::Mode<'_>,
    local: &mut Local,
) -> Result<()> {
    if session.python().is_none() {
        return Ok(());
    }
    let enough_s = enough_s(session);
    session.case(BENCH, &case.name(), case.limit_about(), |session| {
        let python = session.python().context("python was there a moment ago")?;
        // The link is that of our own runs.
        let ours = ours::local_step_s(enough_s)?;
        let steps = (enough_s / ours).ceil() as usize;
        let before = local.theirs.map_or_else(|| peers::local_step_s(python, steps), Ok)?;
        let link = scale::link(case.rate_mbit, ours)?;
        let measured = peers::run(python, mode, case.steps, &link, limit(case, before)?)?;
        let after = peers::local_step_s(python, steps)?;
        (local.ours, local.theirs) = (None, Some(after));
        Ok(figures(case, &measured, f64::midpoint(before, after), &link))
    })?;
    tell(session, case)
}

/// Seconds for which steps without exchange are measured.
fn enough_s(session: &Session) -> f64 {
    if session.quick { 4.0 } else { 10.0 }
}

fn limit(case: &Case<'_>, local_step_s: f64) -> Result<Duration> {
    Ok(Duration::try_from_secs_f64(case.steps as f64 * local_step_s * case.limit_times)?)
}

/// What is kept of a case.
fn figures(case: &Case<'_>, measured: &Measured, local_step_s: f64, link: &LinkConfig) -> Vec<Figure> {
    let figure = |metric, value, unit| Figure { metric, value, unit };
    let &Measured { made, seconds, steady_step_s, loss, sent_bytes, wire_bytes } = measured;
    let ran = Ran { steps: case.steps, made, seconds, local_step_s };
    let link_bytes = link.rate_bytes_per_s as f64 * seconds;
    let mut figures = Vec::new();
    if ran.is_whole() {
        figures.push(figure("whole_run_share", ran.share(), "ratio"));
        figures.extend(steady_step_s.map(|step_s| figure("steady_share", local_step_s / step_s, "ratio")));
        figures.push(match loss {
            Some(loss) => figure("loss", loss, "nats"),
            None => figure("loss_is_no_number", 1.0, ""),
        });
    } else {
        figures.push(figure("over_the_limit_of", seconds, "s"));
        figures.push(figure("steps_made", made as f64, ""));
        figures.push(figure("whole_run_share_at_most", ran.share_at_most(), "ratio"));
        figures.push(figure("share_so_far", ran.share(), "ratio"));
    }
    let per_site = SITES.len() as f64 * small::parameters(WHOLE) as f64 * made.max(1) as f64 / 8.0;
    let unit = "bit/parameter/step";
    figures.extend(sent_bytes.map(|bytes| figure("bits_sent", bytes / per_site, unit)));
    figures.extend([
        figure("bits_on_the_wire", wire_bytes / per_site, unit),
        figure("link_used", wire_bytes / SITES.len() as f64 / link_bytes, "ratio"),
        figure("link", link.rate_bytes_per_s as f64 * 8e-6, "Mbit/s"),
        figure("seconds", seconds, "s"),
        figure("local_step_s", local_step_s, "s"),
    ]);
    figures
}

/// What follows from a case's loss: measures the runs without a link that it is compared with.
fn tell(session: &mut Session, case: &Case<'_>) -> Result<()> {
    let name = case.name();
    let Some(loss) = session.book.value(BENCH, &name, "loss") else { return Ok(()) };
    if !reference::measure_around(session, loss, case.steps)? {
        return Ok(());
    }
    let derived = compared(&session.book, case.method, case.rate_mbit, case.steps);
    session.derived(BENCH, &name, &derived)
}

/// What follows from a case and the runs without a link that have been measured.
pub fn compared(book: &Book, method: &str, rate_mbit: f64, steps: u64) -> Vec<Figure> {
    let name = case_name(method, rate_mbit, steps);
    let value = |metric| book.value(BENCH, &name, metric);
    let (Some(loss), Some(seconds), Some(step_s)) = (value("loss"), value("seconds"), value("local_step_s"))
    else {
        return Vec::new();
    };
    let over = reference_loss(book, steps).map(|dense| 100.0 * (loss / dense - 1.0));
    let over = over.map(|value| Figure { metric: "over_dense", value, unit: "%" });
    let takes = reference::known(book).takes(loss).map(|takes| {
        let (metric, steps) = match takes {
            Takes::About(steps) => ("time_to_loss_share", steps),
            Takes::Fewer(steps) => ("time_to_loss_share_at_most", steps as f64),
            Takes::More(steps) => ("time_to_loss_share_at_least", steps as f64),
        };
        Figure { metric, value: steps * step_s / seconds, unit: "ratio" }
    });
    over.into_iter().chain(takes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case<'_> = Case { method: "auto", rate_mbit: 10.0, steps: 1500, limit_times: 12.0 };

    fn told(figures: &[Figure], metric: &str) -> Option<f64> {
        figures.iter().find(|figure| figure.metric == metric).map(|figure| figure.value)
    }

    fn measured() -> Measured {
        let bytes = 0.5 * small::parameters(WHOLE) as f64 * 1500.0 / 8.0;
        Measured {
            made: 1500,
            seconds: 150.0,
            steady_step_s: Some(0.0625),
            loss: Some(1.6),
            sent_bytes: Some(2.0 * bytes),
            wire_bytes: 2.4 * bytes,
        }
    }

    #[test]
    fn a_whole_run_has_its_share_its_steady_share_and_its_bits() {
        let link = scale::link(10.0, 0.05).unwrap();
        let figures = figures(&CASE, &measured(), 0.05, &link);
        let close = |metric, expected: f64| (told(&figures, metric).unwrap() - expected).abs() < 1e-3;
        assert!(close("whole_run_share", 0.5) && close("steady_share", 0.8) && close("loss", 1.6));
        assert!(close("bits_sent", 0.5) && close("bits_on_the_wire", 0.6), "{figures:?}");
        // 0.67 bits in 0.05 s, and 0.6 in 0.1 s.
        assert!(close("link_used", 0.6 / 1.34), "{figures:?}");
        assert_eq!(told(&figures, "over_the_limit_of"), None);
    }

    #[test]
    fn a_run_that_was_stopped_has_bounds_and_no_share() {
        let stopped = Measured {
            made: 300,
            seconds: 900.0,
            steady_step_s: None,
            loss: None,
            sent_bytes: None,
            ..measured()
        };
        let figures = figures(&CASE, &stopped, 0.05, &scale::link(10.0, 0.05).unwrap());
        assert_eq!(told(&figures, "over_the_limit_of"), Some(900.0));
        assert_eq!(told(&figures, "steps_made"), Some(300.0));
        assert!((told(&figures, "whole_run_share_at_most").unwrap() - 75.0 / 960.0).abs() < 1e-9);
        assert!((told(&figures, "share_so_far").unwrap() - 15.0 / 900.0).abs() < 1e-9);
        assert!(
            ["whole_run_share", "loss", "bits_sent"].iter().all(|metric| told(&figures, metric).is_none())
        );
    }

    #[test]
    fn a_longer_run_than_one_over_its_limit_is_left_out() {
        let mut book = Book::open(None).unwrap();
        let over = Figure { metric: "over_the_limit_of", value: 375.0, unit: "s" };
        book.add(BENCH, &CASE.name(), &[over]).unwrap();
        let longer = Case { steps: 6000, ..CASE };
        assert!(longer.is_hopeless(&book) && !CASE.is_hopeless(&book), "that one may be measured anew");
        assert!(!Case { rate_mbit: 100.0, ..longer }.is_hopeless(&book));
        assert!(!Case { method: "dense", ..longer }.is_hopeless(&book));
    }

    #[test]
    fn a_case_is_compared_with_runs_without_a_link() {
        let mut book = Book::open(None).unwrap();
        let figure = |metric, value| Figure { metric, value, unit: "" };
        let case = [figure("loss", 1.6), figure("seconds", 150.0), figure("local_step_s", 0.05)];
        book.add(BENCH, &CASE.name(), &case).unwrap();
        assert!(compared(&book, "auto", 10.0, 1500).is_empty(), "there is nothing to compare with");
        book.add(BENCH, "dense without a link, 1500 steps", &[figure("loss", 1.5)]).unwrap();
        let compared = |book: &Book| compared(book, "auto", 10.0, 1500);
        assert_eq!(told(&compared(&book), "time_to_loss_share_at_most"), Some(0.5));
        book.add(BENCH, "dense without a link, 750 steps", &[figure("loss", 1.7)]).unwrap();
        let figures = compared(&book);
        assert!((told(&figures, "over_dense").unwrap() - 100.0 / 15.0).abs() < 1e-9);
        // Half of the way between 750 and 1500 steps.
        let expected = 750.0 * 2f64.sqrt() * 0.05 / 150.0;
        assert!((told(&figures, "time_to_loss_share").unwrap() - expected).abs() < 1e-9);
    }
}
