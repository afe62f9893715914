//! Seeds of the runs that are drawn.

use std::ops::Range;

/// Those of `LONGHAUL_SEEDS`, to replay some or to look at more.
pub fn seeds() -> Option<Range<u64>> {
    let text = std::env::var("LONGHAUL_SEEDS").ok()?;
    let (from, to) = text.split_once("..").expect("LONGHAUL_SEEDS is FROM..TO");
    Some(from.parse().expect("a seed")..to.parse().expect("a seed"))
}
