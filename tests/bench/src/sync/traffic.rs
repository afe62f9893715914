//! Bytes per site and step, by the number of sites.

use std::time::Duration;

use anyhow::Result;
use longhaul_common::config::SyncPreset;

use super::method::{self, Method};
use super::session::Session;
use super::small::{self, TINY};
use crate::kit::figures::{Figure, figure};
use crate::runs::training::Training;

/// Name of the benchmark's lines.
pub const BENCH: &str = "sync/traffic";
/// Name of the ratios.
pub const GROWTH: &str = "sync/traffic-growth";
/// Numbers of sites.
pub const SITES: [usize; 3] = [2, 4, 8];
/// Divisible by all rounds.
const STEPS: u64 = 120;
const LIMIT: Duration = Duration::from_secs(240);
/// A link that `auto` could fill. Every preset is measured without its warm-up, `auto` also with it.
const LINK: &str = "rate_mbit=10,delay_ms=10";
/// Nearly a whole number of fragments for each of eight owners: 29.
const FRAGMENTS: &str = "fragment_values = 4096";
/// A run that is mostly warm-up.
const WARM_UP: &str = "auto, mostly warm-up";

/// Returns every preset without its warm-up, and `auto` with it.
pub fn methods() -> Vec<Method> {
    let presets = SyncPreset::ALL.map(|of| {
        let preset = method::preset(of);
        Method { sync: format!("{}\n{}", preset.sync, preset.steady), ..preset }
    });
    let warm_up = Method { name: WARM_UP, ..method::preset(SyncPreset::Auto) };
    presets.into_iter().chain([warm_up]).collect()
}

/// Runs a tiny model to the end.
pub fn measure(session: &mut Session) -> Result<()> {
    for method in methods() {
        let name = method.name;
        if !session.wants(name) {
            continue;
        }
        for sites in SITES {
            session.case(BENCH, &case_name(name, sites), LIMIT, |_| one(&method, sites))?;
        }
        let bytes = |session: &Session, sites| {
            session.book.value(BENCH, &case_name(name, sites), "bytes_per_site_and_step")
        };
        if let Some((two, eight)) = bytes(session, 2).zip(bytes(session, 8)) {
            let ratio = figure("eight_sites_over_two", eight / two, "ratio");
            session.derived(GROWTH, name, &[ratio])?;
        }
    }
    Ok(())
}

/// Name of a method and its number of sites.
pub fn case_name(name: &str, sites: usize) -> String {
    format!("{name}, {sites} sites")
}

fn one(method: &Method, sites: usize) -> Result<Vec<Figure>> {
    let ones = vec![1; sites];
    let sync = format!("{}\n{FRAGMENTS}", method.sync);
    let link = LINK.parse()?;
    let train = method.train(1e-3);
    let training = Training { train: &train, ..Training::new(TINY, &ones, &sync, STEPS, &link) };
    let Some(ended) = small::run(&training, LIMIT)? else {
        return Ok(vec![figure("over_the_limit_of", LIMIT.as_secs_f64(), "s")]);
    };
    let per_step = ended.sent_bytes / sites as f64 / STEPS as f64;
    let bits = per_step * 8.0 / small::parameters(TINY) as f64;
    Ok(vec![
        figure("bytes_per_site_and_step", per_step, "bytes"),
        figure("bits_sent", bits, "bit/parameter/step"),
        figure("on_the_wire", ended.wire_bytes / sites as f64 / STEPS as f64, "bytes"),
    ])
}
