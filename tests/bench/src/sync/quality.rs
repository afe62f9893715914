//! Validation loss of a whole run from a cold start, and its traffic.

use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_emulator::LinkConfig;

use super::method::{self, Method, REFERENCE};
use super::pace::{Look, Pace};
use super::point::Point;
use super::session::Session;
use super::small::{self, Ended};
use super::watch;
use crate::kit::clock::now;
use crate::kit::figures::{Figure, figure};
use crate::runs::gpt::{self, slowest_step};
use crate::runs::training::{DEMO, Training};

/// Name of the benchmark's lines.
pub const BENCH: &str = "sync/quality";
/// Name of the summary over rates and seeds.
pub const FRONTIER: &str = "sync/frontier";
/// Bits per parameter and step of the links for `auto`: those of 100, 10 and 1 Mbit/s for the model of `gpt`.
pub const AUTO_BITS: [f64; 3] = [6.7, 0.67, 0.067];

const SITES: &[usize] = &[1; 4];
/// The case that measures a step without any exchange.
const ALONE: &str = "no exchange";
/// Half a round trip of the model of `gpt`: a packet takes one link, its answer another.
const GPT_DELAY_S: f64 = 0.025;
/// Packet size of these links: an eightieth of a step of the large model at 1 Mbit/s, and a sixth of one of
/// this model on a link with as many bits per parameter.
const PACKET_BYTES: u64 = 1500;
/// Steps for which that model is measured.
const GPT_STEPS: u64 = 24;
/// Where a link carries less than a bit per ten values, the warm-up alone takes half an hour: multiple of the
/// limit.
const SLOW: (f64, u32) = (0.1, 3);
/// Maximum learning rates tried with every seed: a single seed may favour a rate that others do not.
const FINALISTS: usize = 2;
/// Significant difference with one seed. If the rate at an end is better than its neighbour by this much,
/// further ones are tried. If the second best is worse than the best by this much, it is not tried with other
/// seeds.
const CLEAR: f64 = 0.01;
/// Maximum rates, including those.
const RATES_MAX: usize = 6;
/// No round within the measurement.
const NEVER: u64 = 100_000;

/// Length and repetitions.
struct Plan {
    steps: u64,
    seeds: &'static [u64],
    /// Indices of a method's learning rates.
    rates: std::ops::Range<usize>,
    limit: Duration,
}

impl Plan {
    fn of(session: &Session) -> Self {
        if session.quick {
            Self { steps: 300, seeds: &[1], rates: 1..2, limit: Duration::from_secs(400) }
        } else {
            Self { steps: 1500, seeds: &[1, 2], rates: 0..3, limit: Duration::from_secs(1800) }
        }
    }
}

/// Measures every preset over unlimited links, and `auto` over limited ones.
pub fn measure(session: &mut Session) -> Result<()> {
    let plan = Plan::of(session);
    let free = LinkConfig::default();
    let mut names = vec![REFERENCE.to_owned()];
    // All others are reported relative to it.
    for method in method::presets().into_iter().filter(|method| method.name == REFERENCE) {
        tried(session, &plan, &method, REFERENCE, &free)?;
    }
    for method in method::presets() {
        if method.name == "auto" && session.wants("auto") {
            names.extend(auto(session, &plan, &method)?);
        } else if method.name != REFERENCE && session.wants(method.name) {
            tried(session, &plan, &method, method.name, &free)?;
            names.push(method.name.to_owned());
        }
    }
    for name in names {
        if let Some(point) = Point::of(&session.book, &name) {
            session.derived(FRONTIER, &name, &point.figures())?;
        }
    }
    Ok(())
}

/// Measures `auto` over links scaled to this model: relative to a step, they carry as many bits per
/// parameter, and have as long a round trip, as those of the larger model.
fn auto(session: &mut Session, plan: &Plan, method: &Method) -> Result<Vec<String>> {
    session.case(BENCH, ALONE, plan.limit, |_| alone())?;
    let step = |metric| session.book.value(BENCH, ALONE, metric);
    let (Some(step_s), Some(gpt_step_s)) = (step("step_s"), step("gpt_step_s")) else {
        return Ok(Vec::new());
    };
    let delay = Duration::try_from_secs_f64(GPT_DELAY_S * step_s / gpt_step_s)?;
    let mut names = Vec::new();
    for bits in AUTO_BITS {
        let (slow, times) = SLOW;
        let limit = if bits < slow { plan.limit * times } else { plan.limit };
        let rate = bits * small::parameters(DEMO) as f64 / step_s / 8.0;
        let link = LinkConfig {
            rate_bytes_per_s: rate as u64,
            delay,
            burst_bytes: PACKET_BYTES,
            ..LinkConfig::default()
        };
        names.push(auto_name(bits));
        let plan = Plan { limit, rates: plan.rates.clone(), ..*plan };
        tried(session, &plan, method, &auto_name(bits), &link)?;
    }
    Ok(names)
}

/// Returns the name of `auto` on a link.
pub fn auto_name(bits: f64) -> String {
    format!("auto at {bits} bit")
}

/// Returns the seconds per step of four workers in parallel without exchange, and of two with the larger
/// model.
fn alone() -> Result<Vec<Figure>> {
    let sync = format!("preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = {NEVER}");
    let link = LinkConfig::default();
    let train = small::train(1e-3);
    let training = Training { train: &train, ..Training::new(DEMO, &[4], &sync, NEVER, &link) };
    let mut cluster = training.start()?;
    let pace = Pace { round: 1, warm_up: 5, enough_s: 20.0 };
    let (began, mut looks) = (now(), Vec::new());
    watch::until(&mut cluster, Duration::from_secs(120), |status| {
        looks.push(Look {
            at_s: began.elapsed().as_secs_f64(),
            steps: slowest_step(status),
            bytes: 0,
            beside_s: 0.0,
        });
        pace.is_enough(&looks)
    })?;
    let measured = pace.measured(&looks).context("the run made no steps")?;
    drop(cluster);
    Ok(vec![figure("step_s", measured.step_s, "s"), figure("gpt_step_s", gpt::local(GPT_STEPS)?, "s")])
}

/// Tries all learning rates with the first seed, further ones while an end is clearly better than its
/// neighbour; the best ones with the other seeds.
fn tried(session: &mut Session, plan: &Plan, method: &Method, name: &str, link: &LinkConfig) -> Result<()> {
    let mut finished = Vec::new();
    let (mut rates, mut tried) = (method.rates[plan.rates.clone()].to_vec(), Vec::new());
    while let Some(rate) = rates.pop() {
        one(session, plan, method, name, link, rate, plan.seeds[0])?;
        tried.push(rate);
        let loss = session.book.value(BENCH, &case_name(name, rate, plan.seeds[0]), "loss");
        finished.extend(loss.map(|loss| (rate, loss)));
        if rates.is_empty() && tried.len() < RATES_MAX {
            rates.extend(further(&mut finished).filter(|rate| !tried.contains(rate)));
        }
    }
    finished.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    for &seed in &plan.seeds[1..] {
        for rate in finalists(&finished) {
            one(session, plan, method, name, link, rate, seed)?;
        }
    }
    Ok(())
}

/// Returns the best rates, of those with losses, that one seed cannot distinguish.
fn finalists(finished: &[(f64, f64)]) -> impl Iterator<Item = f64> {
    let best = finished.first().map_or(0.0, |(_, loss)| *loss);
    let close = finished.iter().take(FINALISTS).filter(move |(_, loss)| *loss < best * (1.0 + CLEAR));
    close.map(|(rate, _)| *rate)
}

/// Returns the next rate beyond the better end, if that is clearly better than its neighbour.
fn further(finished: &mut [(f64, f64)]) -> Option<f64> {
    finished.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let &[first, second, ..] = &*finished else { return None };
    let &[.., before, last] = &*finished else { return None };
    let (end, beside) = if last.1 < first.1 { (last, before) } else { (first, second) };
    // With the usual number of digits.
    let rate = format!("{:.1e}", end.0 * end.0 / beside.0).parse().ok()?;
    (finished.len() > 2 && end.1 < beside.1 * (1.0 - CLEAR)).then_some(rate)
}

fn one(
    session: &mut Session,
    plan: &Plan,
    method: &Method,
    name: &str,
    link: &LinkConfig,
    learning_rate: f64,
    seed: u64,
) -> Result<()> {
    let case = case_name(name, learning_rate, seed);
    session.case(BENCH, &case, plan.limit, |_| {
        let train = method.train(learning_rate);
        let every = Training::new(DEMO, SITES, &method.sync, plan.steps, link);
        let training = Training { train: &train, seed, ..every };
        let over = figure("over_the_limit_of", plan.limit.as_secs_f64(), "s");
        Ok(small::run(&training, plan.limit)?.map_or_else(|| vec![over], |ended| figures(&ended, plan.steps)))
    })
}

fn figures(ended: &Ended, steps: u64) -> Vec<Figure> {
    let per = small::parameters(DEMO) as f64 * steps as f64 / 8.0;
    let unit = "bit/parameter/step";
    let loss = match ended.loss {
        Some(value) => figure("loss", value, "nats"),
        None => figure("loss_is_no_number", 1.0, ""),
    };
    vec![
        loss,
        figure("bits_sent", ended.sent_bytes / per / SITES.len() as f64, unit),
        figure("bits_on_the_wire", ended.wire_bytes / per / SITES.len() as f64, unit),
        figure("seconds", ended.seconds, "s"),
    ]
}

/// Name of a method, its learning rate and the seed.
pub fn case_name(name: &str, rate: f64, seed: u64) -> String {
    format!("{name}, rate {rate}, seed {seed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_go_on_beyond_an_end_that_is_markedly_better() {
        let of = |losses: [f64; 3]| further(&mut [(2e-3, losses[2]), (5e-4, losses[0]), (1e-3, losses[1])]);
        assert_eq!(of([1.7, 1.5, 1.4]), Some(4e-3));
        assert_eq!(of([1.4, 1.5, 1.6]), Some(2.5e-4));
        assert_eq!(of([1.7, 1.405, 1.4]), None, "as good as the one beside it");
        assert_eq!(of([1.5, 1.4, 1.5]), None, "the best is in the middle");
        assert_eq!(further(&mut [(1e-3, 1.5), (2e-3, 1.4)]), None);
        assert_eq!(further(&mut [(1e-2, 1.9), (5e-2, 1.8), (0.3, 1.7)]), Some(1.8));
    }

    #[test]
    fn one_seed_decides_between_rates_that_are_far_apart() {
        let of = |losses: [(f64, f64); 3]| finalists(&losses).collect::<Vec<_>>();
        assert_eq!(of([(2e-3, 1.400), (1e-3, 1.413), (5e-4, 1.414)]), [2e-3, 1e-3]);
        assert_eq!(of([(2e-3, 1.400), (1e-3, 1.415), (5e-4, 1.416)]), [2e-3]);
        assert_eq!(of([(2e-3, 1.400), (1e-3, 1.401), (5e-4, 1.402)]), [2e-3, 1e-3]);
    }
}
