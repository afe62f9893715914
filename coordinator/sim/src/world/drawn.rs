//! Worlds of tests, with delays drawn from a seed.

use std::time::Duration;

use longhaul_common::config::{EvaluateConfig, ResultForm, RunConfig};
use longhaul_common::id::WorkerId;
use longhaul_common::model::tiny::tiny_mlp;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::{Due, World};
use crate::atoms::Atoms;
use crate::pace::Pace;

const STEPS: u64 = 80;

/// What members exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Deltas after two local steps, sparse, with error feedback.
    Deltas,
    /// Gradients of each step.
    Gradients,
    /// Deltas after each step, behind a warm-up in which each worker computes the whole batch.
    RedundantWarmup,
}

fn config(workers: u32, exchange: Exchange, overlap: u64, fragment_values: u32) -> RunConfig {
    let exchange = match exchange {
        Exchange::Deltas => "preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 2\nkeep = 4",
        Exchange::Gradients => "preset = \"dense\"",
        Exchange::RedundantWarmup => {
            "preset = \"auto\"\nwarmup_redundant = \"always\"\nwarmup_share = 0.0\nwarmup_rounds = 30"
        }
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

/// Rounds of tests that are about the round protocol: few, with any number of fragments, groups that take turns, and forms of results.
fn config_of_rounds(workers: u32, seed: u64) -> RunConfig {
    let mut rng = ChaCha8Rng::seed_from_u64(!seed);
    let exchange = if seed.is_multiple_of(4) { Exchange::Gradients } else { Exchange::Deltas };
    let mut config = config(workers, exchange, rng.random_range(0..2), 1 << 20);
    config.run.steps = rng.random_range(6..16);
    let sync = &mut config.sync;
    sync.deadline_ceiling_ms = 300;
    let fragments = rng.random_range(1..6);
    let chunks = (tiny_mlp().parameter_count() as u32).div_ceil(fragments).div_ceil(sync.chunk);
    sync.fragment_values = chunks * sync.chunk;
    if exchange == Exchange::Deltas {
        (sync.every, sync.groups) = (1, rng.random_range(1..4));
        if rng.random_bool(0.5) {
            (sync.result, sync.result_keep) = (ResultForm::Mean, sync.keep);
        }
    }
    config.check().unwrap_or_else(|error| panic!("{error}"));
    config
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

    /// Six to fifteen rounds of so many workers on so many sites, with options drawn from the seed: of every fourth they exchange gradients. `late`: when further workers come, and to which site.
    #[must_use]
    pub fn of_rounds(seed: u64, workers: u32, sites: u32, late: &[(Duration, u32)]) -> Self {
        let later = (workers + 1..).map(WorkerId).zip(late);
        let first = (1..=workers).map(|worker| (WorkerId(worker), worker % sites));
        let all = first.chain(later.clone().map(|(worker, (_, site))| (worker, *site)));
        let places = all.map(|(worker, site)| (worker, format!("site-{site}"))).collect();
        let mut world = Self::tested(config_of_rounds(workers, seed), places, seed);
        // In every other of those with gradients all send fragments before the end of a step, else some.
        for node in world.nodes.values_mut() {
            node.streams = seed.is_multiple_of(8) || node.worker.0 % 3 > 0;
        }
        for (worker, (at, _)) in later {
            if let Some(node) = world.nodes.get_mut(&worker) {
                (node.is_dismissed, node.suffered.was_away) = (true, true);
            }
            world.push(*at, Due::Return(worker));
        }
        world
    }

    /// A run of so many sites that keeps its best checkpoint, and ends after three evaluations without an improvement, of one every four rounds.
    #[must_use]
    pub fn evaluating(seed: u64, workers: u32) -> Self {
        let mut config = config(workers, Exchange::Deltas, seed % 2, 1 << 20);
        config.train.evaluate_every_rounds = 4;
        config.evaluate = EvaluateConfig { keep_best: true, patience: Some(3), ..EvaluateConfig::default() };
        config.check().unwrap_or_else(|error| panic!("{error}"));
        // The simulated model is one of images; the protocol takes no notice.
        config.evaluate.tasks.arc = vec!["arc.jsonl".to_owned()];
        let places = (1..=workers).map(|worker| (WorkerId(worker), format!("site-{worker}"))).collect();
        Self::tested(config, places, seed)
    }

    fn drawn(exchange: Exchange, seed: u64, workers: u32, sites: u32) -> Self {
        // One fragment, or several with owners of their own.
        let fragment_values = if seed % 4 < 2 { 1 << 20 } else { 256 };
        // Bits that follow links take time after a contribution.
        let overlap = if exchange == Exchange::RedundantWarmup { 1 } else { seed % 2 };
        let config = config(workers, exchange, overlap, fragment_values);
        let places =
            (1..=workers).map(|worker| (WorkerId(worker), format!("site-{}", worker % sites))).collect();
        Self::tested(config, places, seed)
    }

    fn tested(config: RunConfig, places: Vec<(WorkerId, String)>, seed: u64) -> Self {
        let mut world =
            Self::made_of(config, places, Pace::Drawn, seed).unwrap_or_else(|error| panic!("{error:#}"));
        world.watch.atoms = Some(Atoms::new(world.fragments(), world.config.round_schedule()));
        world
    }

    /// Fragments of the model.
    pub(super) fn fragments(&self) -> u32 {
        self.config.sync.layout(tiny_mlp().parameter_count()).count()
    }
}
