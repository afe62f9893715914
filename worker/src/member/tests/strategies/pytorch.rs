//! Each strategy against its paper's pseudocode in PyTorch: see `worker/tests/fixtures/make_strategies.py`.

use std::ops::Range;
use std::path::Path;

use longhaul_common::config::RunConfig;
use longhaul_common::model::{Initial, ModelSpec};
use safetensors::SafeTensors;

use super::bench::{Start, Trace, train};
use super::gap::{Gap, distance};
use super::toy::{Toy, spec};
use super::{CODED, ROUNDED, TOLD_APART};

/// Every so many parameters are stored.
const STRIDE: usize = 13;

/// The script's keys of `[train]`; a strategy's own follow.
macro_rules! train {
    ($keys:literal) => {
        concat!("warmup_steps = 0\nfinal_learning_rate_share = 1.0\n", $keys)
    };
}

/// A strategy of the script.
struct Case {
    name: &'static str,
    steps: u64,
    train: &'static str,
    sync: &'static str,
    /// The stored steps, or rounds of several steps.
    stored: &'static [usize],
    bound: Gap,
    /// Another coefficient, which must be told apart.
    wrong: fn(&mut RunConfig),
}

/// What error feedback leaves of small values in f32 decides their next sign: a few values in a thousand go another way for a step.
const SIGNS: Gap = Gap { full: 2e-2, trimmed: 1.5e-2 };

/// Four bits make equal magnitudes, of which rounding in f32 selects others.
const COARSE: Gap = Gap { full: 5e-2, trimmed: 3e-3 };

const ADAMW: &str = train!("learning_rate = 3e-3");

const CASES: [Case; 7] = [
    Case {
        name: "dgc",
        steps: 20,
        train: train!("learning_rate = 0.05\noptimiser = \"sgd\"\nweight_decay = 0.0\nepsilon = 1e-8"),
        sync: "preset = \"dgc\"\nselection = \"top-k\"\nkeep = 41",
        stored: &[1, 2, 10, 19],
        bound: CODED,
        wrong: |run| run.sync.momentum = 0.88,
    },
    Case {
        name: "powersgd",
        steps: 14,
        train: ADAMW,
        sync: "preset = \"powersgd\"",
        stored: &[1, 2, 7, 13],
        bound: ROUNDED,
        wrong: |run| run.sync.rank = 3,
    },
    Case {
        name: "onebit_adam",
        steps: 15,
        train: ADAMW,
        sync: "preset = \"onebit-adam\"",
        stored: &[2, 3, 8],
        bound: SIGNS,
        wrong: |run| run.sync.error_decay = 0.8,
    },
    Case {
        name: "demo",
        steps: 14,
        train: ADAMW,
        sync: "preset = \"demo\"\nvalues = \"f32\"",
        stored: &[1, 2, 7, 13],
        bound: CODED,
        wrong: |run| run.sync.error_decay = 0.97,
    },
    Case {
        name: "diloco",
        steps: 15,
        train: ADAMW,
        sync: "preset = \"diloco\"\nevery = 3",
        stored: &[0, 1, 4],
        bound: ROUNDED,
        wrong: |run| run.sync.outer_momentum = 0.88,
    },
    Case {
        name: "sparse_local",
        steps: 24,
        train: ADAMW,
        sync: "preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 4\noverlap = 0\nresult = \"bundle\"",
        stored: &[0, 1, 5],
        bound: CODED,
        wrong: |run| run.sync.error_decay = 0.9,
    },
    Case {
        name: "cocktail",
        steps: 16,
        train: ADAMW,
        sync: "preset = \"cocktail\"\nwarmup_share = 0.0\nresult_values = \"int8\"",
        stored: &[0, 1, 7, 14],
        bound: COARSE,
        wrong: |run| run.sync.error_decay = 0.95,
    },
];

#[test]
fn strategies_follow_their_papers_in_pytorch() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/strategies.safetensors");
    let bytes = std::fs::read(file).unwrap();
    let reference = SafeTensors::deserialize(&bytes).unwrap();
    let mut failed = Vec::new();
    for case in &CASES {
        let toy = Toy { members: 2, steps: case.steps, train: case.train, sync: case.sync, guided: false };
        let mut config = toy.config();
        // One fragment, as the script has it.
        config.sync.fragment_values = 65_536;
        let gap = |config: &RunConfig| widest(case, config, &reference);
        let right = gap(&config);
        (case.wrong)(&mut config);
        let wrong = gap(&config);
        let is_right = right.full < case.bound.full && right.trimmed < case.bound.trimmed;
        if !is_right || wrong.trimmed < TOLD_APART * case.bound.trimmed {
            failed.push((case.name, right, wrong));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// The widest gap over the stored rounds.
fn widest(case: &Case, config: &RunConfig, reference: &SafeTensors<'_>) -> Gap {
    let folder = tempfile::tempdir().unwrap();
    let start = start(&spec(config), config.sync.rank);
    let trace = train::<2>(config, folder.path(), Some(&start));
    // Keys' biases have no gradient but rounding, whose signs some strategies send.
    let keys = key_biases(&spec(config));
    let is_seen = |at: &usize| !keys.contains(at);
    let sample = |values: &[f32]| -> Vec<f32> {
        (0..values.len()).step_by(STRIDE).filter(is_seen).map(|at| values[at]).collect()
    };
    let exact = |values: &[f32]| -> Vec<f64> { values.iter().map(|value| f64::from(*value)).collect() };
    let from = exact(&sample(&start.parameters));
    let gap = |stored: &usize| {
        let tensor = reference.tensor(&format!("{}/{stored}", case.name)).unwrap();
        let words = (0..).step_by(STRIDE).zip(tensor.data().chunks_exact(4)).filter(|(at, _)| is_seen(at));
        let theirs = words.map(|(_, word)| f32::from_le_bytes(word.try_into().unwrap()));
        let theirs = exact(&theirs.collect::<Vec<f32>>());
        let ours = sample(&trace.synchronised[round_of(config, &trace, *stored)]);
        Gap::between(&ours, &theirs, distance(&theirs, &from))
    };
    case.stored.iter().map(gap).fold(Gap::default(), Gap::max)
}

/// The positions of the keys' biases, between those of queries and values.
fn key_biases(spec: &ModelSpec) -> Range<usize> {
    let mut start = 0;
    for parameter in spec.parameters() {
        let third = parameter.count() as usize / 3;
        if parameter.name.ends_with("c_attn.bias") {
            return start + third..start + 2 * third;
        }
        start += parameter.count() as usize;
    }
    panic!("the toy has them");
}

/// With low rank, a step after the warm-up has two rounds.
fn round_of(config: &RunConfig, trace: &Trace, stored: usize) -> usize {
    let warmup = config.round_schedule().warmup_rounds as usize;
    let round = if config.sync.rank > 0 && stored >= warmup { 2 * stored + 1 - warmup } else { stored };
    assert!(round < trace.synchronised.len());
    round
}

/// The script's parameters and factors.
fn start(spec: &ModelSpec, rank: u32) -> Start {
    let mut start = Start::default();
    for (stream, parameter) in (0..).zip(spec.parameters()) {
        let base = if parameter.initial == Initial::Ones { 1.0 } else { 0.0 };
        start.parameters.extend(noise(parameter.count() as usize, stream).map(|value| value * 0.2 + base));
        if let Some([_, columns]) = parameter.low_rank_shape(rank).filter(|_| rank > 0) {
            start.factors.extend(noise((columns * u64::from(rank)) as usize, 500 + stream));
        }
    }
    start
}

/// The script's `noise`.
fn noise(count: usize, stream: i64) -> impl Iterator<Item = f32> {
    (0..count as i64).map(move |i| {
        let mut word = (i * 2_654_435_761 + stream * 40_503) & 0xffff_ffff;
        word ^= word >> 15;
        word = word.wrapping_mul(2_246_822_519) & 0xffff_ffff;
        word ^= word >> 13;
        (word as f64 / 4_294_967_296.0 - 0.5) as f32
    })
}
