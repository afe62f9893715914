//! Worlds of tests, with delays drawn from a seed.

use longhaul_common::config::RunConfig;
use longhaul_common::id::WorkerId;

use super::World;
use crate::pace::Pace;

const STEPS: u64 = 80;

/// What members exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Deltas after two local steps, sparse, with error feedback.
    Deltas,
    /// Gradients of each step.
    Gradients,
}

fn config(workers: u32, exchange: Exchange, overlap: u64, fragment_values: u32) -> RunConfig {
    let exchange = match exchange {
        Exchange::Deltas => "preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 2\nkeep = 4",
        Exchange::Gradients => "preset = \"dense\"",
    };
    let text = format!(
        "[run]\nname = \"sim\"\nworkers = {workers}\nsteps = {STEPS}\n\
         [model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\nheads = 1\ncontext = 8\n\
         [data]\npath = \"none\"\nsequence_length = 8\n[train]\nbatch = {}\n\
         [checkpoint]\nevery_rounds = 8\n\
         [sync]\n{exchange}\noverlap = {overlap}\nwithin_site = \"direct\"\nchunk = 16\nfragment_values = {fragment_values}\n\
         deadline_floor_ms = 100\ndeadline_ceiling_ms = 1000\n\
         [parallel]\nplan = \"fixed\"\n[faults]\nsilent_after_ms = 2000\nreconnect_grace_ms = 3000\n",
        workers * 3
    );
    RunConfig::parse(&text).unwrap_or_else(|error| panic!("{error}"))
}

impl World {
    /// A run of so many workers, each of which is a site.
    #[must_use]
    pub fn new(seed: u64, workers: u32) -> Self {
        Self::with_sites(seed, workers, workers)
    }

    /// The same with something else to exchange.
    #[must_use]
    pub fn exchanging(exchange: Exchange, seed: u64, workers: u32) -> Self {
        Self::drawn(exchange, seed, workers, workers)
    }

    /// A run of so many workers on so many sites. The members of a site send what they have by themselves.
    #[must_use]
    pub fn with_sites(seed: u64, workers: u32, sites: u32) -> Self {
        Self::drawn(Exchange::Deltas, seed, workers, sites)
    }

    fn drawn(exchange: Exchange, seed: u64, workers: u32, sites: u32) -> Self {
        // One fragment, or several with owners of their own.
        let fragment_values = if seed % 4 < 2 { 1 << 20 } else { 256 };
        let config = config(workers, exchange, seed % 2, fragment_values);
        let places =
            (1..=workers).map(|worker| (WorkerId(worker), format!("site-{}", worker % sites))).collect();
        Self::made_of(config, places, Pace::Drawn, seed).unwrap_or_else(|error| panic!("{error:#}"))
    }
}
