//! Whole runs over limited links: one configuration, from the first step to the last.
//!
//! `docs/benchmarks/sync.md` defines all figures.

mod ours;
mod peers;
mod reference;
mod scale;
mod shares;
#[cfg(test)]
mod tests;

use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_emulator::LinkConfig;

use crate::kit::figures::{Figure, figure};
use crate::kit::progress;
use crate::runs::training::Training;
use crate::sync::book::Book;
use crate::sync::method::{self, Method};
use crate::sync::session::{Sample, Session};
use crate::sync::small;
use scale::{RATE_SCALE, WHOLE};
use shares::{Ran, Takes};

pub use reference::loss_of as reference_loss;
pub use scale::bits;

/// Name of the benchmark's lines.
pub const BENCH: &str = "sync/whole";
/// Default rates of the links, in Mbit/s of the model of `gpt`.
pub const RATES_MBIT: [f64; 3] = [100.0, 10.0, 1.0];
/// Default steps of the runs.
pub const STEPS: [u64; 2] = [1500, 6000];
/// Steps with `--quick`.
const STEPS_QUICK: u64 = 300;

/// One worker each.
const SITES: [usize; 2] = [1, 1];
/// Limit of a case, in multiples of local runs.
const LIMIT_TIMES: f64 = 5.0;
/// The limit of `auto`, which must have a figure on every link.
const LIMIT_TIMES_AUTO: f64 = 30.0;
/// Approximate seconds per step, for a limit before any measurement.
const STEP_S_ABOUT: f64 = 0.05;

/// Result of a run.
struct Measured {
    made: u64,
    seconds: f64,
    steady_step_s: Option<f64>,
    /// Nats per token over all held-out text; `None`: stopped early, or not a number.
    loss: Option<f64>,
    /// Bytes sent by both sites, as counted by workers. PyTorch does not report it.
    sent_bytes: Option<f64>,
    /// Bytes received by both sites, with all headers.
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

    /// Whether a shorter run already exceeded its limit: a longer one has the same pace.
    fn is_hopeless(&self, book: &Book) -> bool {
        if book.case(BENCH, &self.name()).next().is_some() {
            return false;
        }
        let shorter = shorter_over_the_limit(book, self.method, self.rate_mbit, self.steps);
        if let Some(shorter) = shorter {
            progress(format!("{BENCH}: {} is left out: {shorter} steps were over the limit", self.name()));
        }
        shorter.is_some()
    }

    /// Returns the limit before any measurement.
    fn limit_about(&self) -> Duration {
        Duration::from_secs_f64(self.steps as f64 * STEP_S_ABOUT * self.limit_times)
    }
}

/// Name of a method, its link and the steps of its run.
pub fn case_name(method: &str, rate_mbit: f64, steps: u64) -> String {
    format!("{method}, {rate_mbit} Mbit/s, {steps} steps")
}

/// Returns the steps of a shorter run with this method and link that exceeded its limit.
pub fn shorter_over_the_limit(book: &Book, method: &str, rate_mbit: f64, steps: u64) -> Option<u64> {
    let is_over = |shorter: &u64| {
        *shorter < steps
            && book.value(BENCH, &case_name(method, rate_mbit, *shorter), "over_the_limit_of").is_some()
    };
    STEPS.into_iter().find(is_over)
}

/// The latest speeds without exchange, which also apply before the next case.
#[derive(Default)]
struct Local {
    /// With these keys of `[train]`.
    ours: Option<(f64, &'static str)>,
    theirs: Option<f64>,
}

/// Measures the selected methods, of ours and of PyTorch's, over links of these rates, in runs of these steps,
/// in the order given.
pub fn measure(session: &mut Session, rates_mbit: &[f64], steps: Option<&[u64]>) -> Result<()> {
    let steps = match steps {
        Some(steps) => steps,
        None if session.quick => &[STEPS_QUICK],
        None => &STEPS,
    };
    let methods = session.methods();
    let mut local = Local::default();
    for &steps in steps {
        for method in &methods {
            let limit_times = if method.name == "auto" { LIMIT_TIMES_AUTO } else { LIMIT_TIMES };
            for &rate_mbit in rates_mbit {
                let name = method.case_name();
                let case = Case { method: &name, rate_mbit, steps, limit_times };
                if !case.is_hopeless(&session.book) {
                    ours_case(session, &case, method, &mut local)?;
                }
            }
        }
        // The script has the demo's text.
        let has_peers = session.sample().text.is_none();
        for (name, mode, _) in method::PYTORCH {
            let wanted = if has_peers && session.wants(name) { rates_mbit } else { &[] };
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
    session.case(BENCH, &case.name(), case.limit_about(), |session| {
        let own = || ours::local_step_s(enough_s, method.train);
        let known = local.ours.filter(|(_, train)| *train == method.train);
        let before = known.map_or_else(own, |(step_s, _)| Ok(step_s))?;
        let link = scale::link(case.rate_mbit, before)?;
        let train = method.train(method.best_rate * RATE_SCALE);
        let Sample { seed, text } = session.sample();
        let every = ours::training(&method.sync, &train, case.steps, &link);
        let training = Training { seed: *seed, text: text.as_deref(), ..every };
        let measured = ours::run(&training, limit(case, before)?)?;
        let after = own()?;
        local.ours = Some((after, method.train));
        Ok(figures(case, &measured, f64::midpoint(before, after), &link))
    })?;
    tell(session, case)
}

fn peer_case(
    session: &mut Session,
    case: &Case<'_>,
    mode: crate::runs::pytorch::Mode<'_>,
    local: &mut Local,
) -> Result<()> {
    if session.python().is_none() {
        return Ok(());
    }
    let enough_s = enough_s(session);
    session.case(BENCH, &case.name(), case.limit_about(), |session| {
        let seed = session.sample().seed;
        let python = session.python().context("python was there a moment ago")?;
        // The link is that of our own runs.
        let ours = ours::local_step_s(enough_s, "")?;
        let steps = (enough_s / ours).ceil() as usize;
        let before = local.theirs.map_or_else(|| peers::local_step_s(python, steps), Ok)?;
        let link = scale::link(case.rate_mbit, ours)?;
        let limit = limit(case, before)?;
        let measured = peers::run(python, mode, (case.steps, seed), &link, limit)?;
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

/// Returns the stored figures of a case.
fn figures(case: &Case<'_>, measured: &Measured, local_step_s: f64, link: &LinkConfig) -> Vec<Figure> {
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

/// Derives figures from a case's loss: measures the reference runs without a link.
fn tell(session: &mut Session, case: &Case<'_>) -> Result<()> {
    let name = case.name();
    let Some(loss) = session.book.value(BENCH, &name, "loss") else { return Ok(()) };
    let reference = method::reference(case.method);
    if !reference::measure_around(session, reference, loss, case.steps)? {
        return Ok(());
    }
    let derived = compared(&session.book, case.method, case.rate_mbit, case.steps);
    session.derived(BENCH, &name, &derived)
}

/// Returns the figures derived from a case and measured runs without a link.
pub fn compared(book: &Book, method: &str, rate_mbit: f64, steps: u64) -> Vec<Figure> {
    let name = case_name(method, rate_mbit, steps);
    let value = |metric| book.value(BENCH, &name, metric);
    let (Some(loss), Some(seconds), Some(step_s)) = (value("loss"), value("seconds"), value("local_step_s"))
    else {
        return Vec::new();
    };
    let reference = method::reference(method);
    let over = |metric, reference| {
        let dense = reference_loss(book, reference, steps)?;
        Some(figure(metric, 100.0 * (loss / dense - 1.0), "%"))
    };
    let over_adamw =
        if reference == method::REFERENCE { None } else { over("over_adamw", method::REFERENCE) };
    let over = over("over_dense", reference).into_iter().chain(over_adamw);
    let takes = reference::known(book, reference).takes(loss).map(|takes| {
        let (metric, steps) = match takes {
            Takes::About(steps) => ("time_to_loss_share", steps),
            Takes::Fewer(steps) => ("time_to_loss_share_at_most", steps as f64),
            Takes::More(steps) => ("time_to_loss_share_at_least", steps as f64),
        };
        figure(metric, steps * step_s / seconds, "ratio")
    });
    over.chain(takes).collect()
}
