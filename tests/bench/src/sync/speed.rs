//! Share of local speed, by method and link.

use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_common::config::SyncPreset;
use longhaul_emulator::LinkConfig;

use super::method::{self, Method};
use super::pace::{Look, Measured, Pace};
use super::session::Session;
use super::{small, watch};
use crate::kit::clock::now;
use crate::kit::cpu;
use crate::kit::figures::{Figure, figure};
use crate::kit::memory;
use crate::runs::gpt::{self, GPT, slowest_step};
use crate::runs::pytorch;
use crate::runs::training::Training;

/// Name of the benchmark's lines.
pub const BENCH: &str = "sync/speed";
/// Name of the lines with more workers per site.
pub const SITES_BENCH: &str = "sync/sites";
/// The synchronised parameters, which a worker without exchange has, too.
const VALUE_BYTES: f64 = 4.0;
/// The thread that computes steps, contributes to rounds and takes over their results.
const DEVICE: &str = "device";
/// One worker each, or several.
const SITES: f64 = 2.0;
/// More than any case makes.
const STEPS_MAX: u64 = 100_000;

/// A case that does not make two rounds in this time is a hundred times slower than local training.
const LIMIT_S: u64 = 120;
/// Additional limit per step of three rounds.
const STEP_S: u64 = 3;
/// Additional limit per required warm-up round, over the slowest link.
const WARMUP_ROUND_S: u64 = 120;

/// Durations of cases.
struct Lengths {
    limit: Duration,
    enough_s: f64,
    local_steps: u64,
}

impl Lengths {
    /// Returns the durations for a method with this many steps per round, and warm-up rounds.
    fn of(session: &Session, round: u64, warmup_rounds: u64) -> Self {
        let limit = Duration::from_secs(LIMIT_S + STEP_S * round + WARMUP_ROUND_S * warmup_rounds);
        let (enough_s, local_steps) = if session.quick { (15.0, 12) } else { (45.0, 24) };
        Self { limit, enough_s, local_steps }
    }
}

/// Measures every method over every link. Local runs precede and follow each case, as the machine's speed
/// drifts.
pub fn measure(session: &mut Session, rates_mbit: &[f64]) -> Result<()> {
    for &rate in rates_mbit {
        let link = link(rate)?;
        let mut local = Local::default();
        for method in session.methods() {
            let case = case_name(&method.case_name(), rate);
            let lengths = Lengths::of(session, method.round, method.warmup_rounds);
            let repeats = if session.quick { 1 } else { method.repeats };
            session.case(BENCH, &case, lengths.limit * repeats, |_| {
                let local_run = || gpt::local_of(2, lengths.local_steps, method.train);
                local.beside(repeats, method.train, local_run, || ours(&method, &[1, 1], &link, &lengths))
            })?;
        }
        let only = session.only().clone();
        pytorch(session, &link, rate, |name| only.wants(name))?;
    }
    Ok(())
}

/// Measures methods whose steps wait for their exchange, on two sites of several workers.
pub fn sites_of(
    session: &mut Session,
    workers: usize,
    methods: &[SyncPreset],
    rates_mbit: &[f64],
) -> Result<()> {
    let methods = methods.iter().map(|preset| method::preset(*preset));
    let wanted: Vec<_> = methods.filter(|method| session.wants(method.name)).collect();
    let mut local = Local::default();
    for &rate in rates_mbit {
        let link = link(rate)?;
        for method in &wanted {
            let case = case_name(&format!("{}, sites of {workers}", method.name), rate);
            let lengths = Lengths::of(session, method.round, method.warmup_rounds);
            let repeats = if session.quick { 1 } else { 3 };
            session.case(SITES_BENCH, &case, lengths.limit * repeats, |_| {
                let local_run = || gpt::local_of(2 * workers, lengths.local_steps, method.train);
                local
                    .beside(repeats, method.train, local_run, || ours(method, &[workers; 2], &link, &lengths))
            })?;
        }
    }
    Ok(())
}

/// Measures the selected PyTorch methods over a link.
pub fn pytorch(
    session: &mut Session,
    link: &LinkConfig,
    rate: f64,
    wanted: impl Fn(&str) -> bool,
) -> Result<()> {
    let mut local = Local::default();
    for (name, mode, round) in method::PYTORCH {
        if wanted(name) {
            pytorch_case(session, &case_name(name, rate), link, mode, round, &mut local)?;
        }
    }
    Ok(())
}

/// Default rates of the links, in Mbit/s.
pub const RATES_MBIT: [f64; 4] = [1.0, 10.0, 100.0, 1000.0];

/// Formats a case's name.
pub fn case_name(method: &str, rate_mbit: f64) -> String {
    format!("{method}, {rate_mbit} Mbit/s")
}

/// Parses a name of [`case_name`].
pub fn parse_case(case: &str) -> Option<(&str, f64)> {
    let (method, rate) = case.rsplit_once(", ")?;
    Some((method, rate.strip_suffix(" Mbit/s")?.parse().ok()?))
}

/// Each direction: 50 ms round trip, one packet in a thousand lost.
pub fn link(rate_mbit: f64) -> Result<LinkConfig> {
    Ok(format!("rate_mbit={rate_mbit},delay_ms=25,loss_percent=0.1").parse()?)
}

/// The latest local speed with its keys of `[train]`, which also applies before the next case with the same.
#[derive(Default)]
struct Local(Option<(gpt::Local, &'static str)>);

impl Local {
    /// Measures a case between two local runs; of several repetitions, returns the one with the median share.
    fn beside(
        &mut self,
        repeats: u32,
        train: &'static str,
        mut local: impl FnMut() -> Result<gpt::Local>,
        mut case: impl FnMut() -> Result<Outcome>,
    ) -> Result<Vec<Figure>> {
        let mut measured = Vec::new();
        for _ in 0..repeats {
            let before = match self.0 {
                Some((known, of)) if of == train => known,
                _ => local()?,
            };
            let outcome = case()?;
            let after = local()?;
            self.0 = Some((after, train));
            let local_s = f64::midpoint(before.step_s, after.step_s);
            let local_bytes = f64::midpoint(before.bytes, after.bytes);
            match outcome {
                Outcome::Over(limit) => {
                    return Ok(vec![figure("over_the_limit_of", limit.as_secs_f64(), "s")]);
                }
                Outcome::Measured(pace, bytes) => {
                    measured.push(Compared { pace, local_s, more_bytes: bytes - local_bytes });
                }
            }
        }
        Ok(figures(measured))
    }
}

/// A case, with the local step times before and after it.
#[derive(Clone, Copy)]
struct Compared {
    pace: Measured,
    local_s: f64,
    /// Memory of a worker beyond that of one without exchange.
    more_bytes: f64,
}

impl Compared {
    fn share(&self) -> f64 {
        self.local_s / self.pace.step_s
    }
}

/// Returns the figures of the median share, and the range of the others.
fn figures(mut measured: Vec<Compared>) -> Vec<Figure> {
    measured.sort_by(|a, b| a.share().total_cmp(&b.share()));
    let Some(median) = measured.get(measured.len() / 2) else { return Vec::new() };
    let bits = median.pace.bytes_per_step * 8.0 / SITES / small::parameters(GPT) as f64;
    let mut figures = vec![
        figure("step_s", median.pace.step_s, "s"),
        figure("local_step_s", median.local_s, "s"),
        figure("share_of_local_speed", median.share(), "ratio"),
        figure("rounds", median.pace.rounds as f64, ""),
    ];
    if let [first, .., last] = &*measured {
        figures.push(figure("share_least", first.share(), "ratio"));
        figures.push(figure("share_most", last.share(), "ratio"));
    }
    // PyTorch does not report it.
    if bits > 0.0 {
        figures.push(figure("bits_sent", bits, "bit/parameter/step/site"));
    }
    if median.pace.beside_s_per_step > 0.0 {
        let ns = median.pace.beside_s_per_step * 1e9 / small::parameters(GPT) as f64;
        figures.push(figure("ns_per_parameter", ns, "ns/parameter/step"));
    }
    if median.more_bytes > 0.0 {
        let bytes = VALUE_BYTES + median.more_bytes / small::parameters(GPT) as f64;
        figures.push(figure("bytes_per_parameter", bytes, "bytes/parameter"));
    }
    figures
}

/// Outcome of a case.
enum Outcome {
    /// With a worker's memory at the end; 0: unknown.
    Measured(Measured, f64),
    /// Fewer than two rounds were completed.
    Over(Duration),
}

fn ours(method: &Method, sites: &[usize; 2], link: &LinkConfig, lengths: &Lengths) -> Result<Outcome> {
    let sync = format!("{}\n{}", method.sync, method.steady);
    let every = Training::new(GPT, sites, &sync, STEPS_MAX, link);
    let train = format!("{}\n{}", every.train, method.train);
    let mut cluster = Training { train: &train, ..every }.start()?;
    let pace = Pace { round: method.round, warm_up: method.warm_up, enough_s: lengths.enough_s };
    let (began, mut looks) = (now(), Vec::new());
    let processes: Vec<u32> =
        (0..sites.iter().sum()).filter_map(|at| Some(cluster.worker(at)?.id())).collect();
    watch::until(&mut cluster, lengths.limit, |status| {
        let bytes = status["wan_bytes"].as_u64().unwrap_or(0);
        let (at_s, steps) = (began.elapsed().as_secs_f64(), slowest_step(status));
        let look = Look { at_s, steps, bytes, beside_s: beside_s(&processes) };
        if look.steps > 0 {
            looks.push(look);
        }
        pace.is_enough(&looks)
    })?;
    let bytes = processes.iter().map(|worker| memory::bytes(worker, "RssAnon")).sum::<Result<f64>>()?;
    let bytes = bytes / processes.len() as f64;
    let measured = |pace| Outcome::Measured(pace, bytes);
    Ok(pace.measured(&looks).map_or(Outcome::Over(lengths.limit), measured))
}

/// Returns a worker's CPU seconds beside those of the thread that computes, on average: mostly synchronisation and its transport. Not a number where a worker is gone.
fn beside_s(processes: &[u32]) -> f64 {
    let all = processes.iter().map(|of| cpu::seconds(of, Some(DEVICE)).unwrap_or(f64::NAN));
    all.sum::<f64>() / processes.len() as f64
}

fn pytorch_case(
    session: &mut Session,
    case: &str,
    link: &LinkConfig,
    mode: pytorch::Mode<'_>,
    round: u64,
    local: &mut Local,
) -> Result<()> {
    if session.python().is_none() {
        return Ok(());
    }
    let lengths = Lengths::of(session, round, 0);
    session.case(BENCH, case, lengths.limit, |session| {
        let python = session.python().context("python was there a moment ago")?;
        // DDP needs a few steps to settle, DiLoCo one round.
        let warm_up = if round > 1 { 1 } else { pytorch::WARM_UP_STEPS as u64 };
        let pace = Pace { round, warm_up, enough_s: lengths.enough_s };
        local.beside(
            1,
            "",
            || Ok(gpt::Local { step_s: python.local(&[], lengths.local_steps as usize)?, bytes: 0.0 }),
            || {
                let links = pytorch::links(link)?;
                let enough = |times: &[f64]| pace.is_enough(&looks(times));
                let times = python.across(&links, &[], mode, lengths.limit, enough)?;
                let times = times.context("no root or no TUN device for PyTorch over the link")?;
                let measured = |pace| Outcome::Measured(pace, 0.0);
                Ok(pace.measured(&looks(&times)).map_or(Outcome::Over(lengths.limit), measured))
            },
        )
    })
}

/// From the times of single steps.
pub fn looks(times: &[f64]) -> Vec<Look> {
    let add = |(at_s, steps): &mut (f64, u64), time: &f64| {
        (*at_s, *steps) = (*at_s + time, *steps + 1);
        Some(Look { at_s: *at_s, steps: *steps, bytes: 0, beside_s: 0.0 })
    };
    times.iter().scan((0.0, 0), add).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_has_its_method_and_its_link_in_its_name() {
        for (method, rate) in [("dense", 0.5), ("PyTorch DiLoCo H=20", 1000.0)] {
            assert_eq!(parse_case(&case_name(method, rate)), Some((method, rate)));
        }
    }

    #[test]
    fn of_three_runs_the_one_with_the_median_share_counts() {
        let run = |step_s, local_s| Compared {
            pace: Measured { step_s, rounds: 2, bytes_per_step: 0.0, beside_s_per_step: 0.0 },
            local_s,
            more_bytes: 0.0,
        };
        let told = |measured: Vec<Compared>| {
            figures(measured).iter().map(|f| (f.metric, f.value)).collect::<Vec<_>>()
        };
        let of_three = told(vec![run(2.0, 1.0), run(1.25, 1.0), run(1.0, 1.0)]);
        assert!(
            of_three.contains(&("share_of_local_speed", 0.8)) && of_three.contains(&("step_s", 1.25)),
            "{of_three:?}"
        );
        assert!(
            of_three.contains(&("share_least", 0.5)) && of_three.contains(&("share_most", 1.0)),
            "{of_three:?}"
        );
        let one = told(vec![run(2.0, 1.0)]);
        assert!(
            one.contains(&("share_of_local_speed", 0.5))
                && !one.iter().any(|(metric, _)| *metric == "share_least"),
            "{one:?}"
        );
    }
}
