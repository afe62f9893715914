//! Bytes per site and step, by the number of sites.

use std::time::Duration;

use anyhow::Result;

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
/// A link that `auto` could fill. Most of the steps are its warm-up, so it is also measured without, except
/// for two rounds in which it learns its second moment.
const LINK: &str = "rate_mbit=10,delay_ms=10";
/// Nearly a whole number of fragments for each of eight owners: 29.
const FRAGMENTS: &str = "fragment_values = 4096";
/// `sparse-local` with a recompressed mean.
const TWO_WAY: &str = "preset = \"sparse-local\"\nwarmup_share = 0.0\nresult = \"mean\"\nresult_keep = 128\nresult_values = \"int4\"";

/// Names, and keys of `[sync]`.
pub const METHODS: [(&str, &str); 5] = [
    ("dense", "preset = \"dense\""),
    ("sparse-local", "preset = \"sparse-local\"\nwarmup_share = 0.0"),
    ("sparse-local two-way", TWO_WAY),
    ("auto", "preset = \"auto\""),
    (
        "auto without its warm-up",
        "preset = \"auto\"\nwarmup_share = 0.0\nwarmup_rounds = 2\nearly_share = 0.0",
    ),
];

/// Runs a tiny model to the end.
pub fn measure(session: &mut Session) -> Result<()> {
    for (name, sync) in METHODS {
        if !session.wants(name) {
            continue;
        }
        for sites in SITES {
            session.case(BENCH, &case_name(name, sites), LIMIT, |_| one(sync, sites))?;
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

fn one(sync: &str, sites: usize) -> Result<Vec<Figure>> {
    let ones = vec![1; sites];
    let sync = format!("{sync}\n{FRAGMENTS}");
    let link = LINK.parse()?;
    let train = small::train(1e-3);
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
