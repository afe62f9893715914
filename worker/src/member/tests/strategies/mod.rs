//! Tests of each strategy against an independent computation in f64, round by round: real device threads and connected synchronisers train a
//! small model; the reference computes the same run from the papers and the documentation.
//!
//! Each case also verifies its own sensitivity: references with one mistake must differ.

mod bench;
mod gap;
mod pytorch;
mod reference;
mod toy;

use longhaul_common::config::{InnerRule, LateRule, MuonScale, RunConfig, ValueFormat};

use self::Wrong::{Key, Rule};
use self::gap::Gap;
use self::reference::{Mistake, Reference};
use self::toy::Toy;

/// Rounding errors of f32, with all values sent in f32.
const ROUNDED: Gap = Gap { full: 2e-5, trimmed: 2e-5 };

/// With selected or low-bit values, a value within f32 rounding of the midpoint between two levels, or of the next magnitude to be sent, may fall
/// on the other side. Its error is then a level's width or its own magnitude. This affects a few values per run, different ones on other processors,
/// and must not affect many.
const CODED: Gap = Gap { full: 2e-2, trimmed: 5e-4 };

/// Rounding errors of f32 in an iteration that makes matrices orthogonal.
const ITERATED: Gap = Gap { full: 2e-3, trimmed: 2e-3 };

/// Factor by which a wrong reference must exceed the permitted gap, in many values.
const TOLD_APART: f64 = 10.0;

/// The mistake of a reference.
enum Wrong {
    /// Another value of a configuration key.
    Key(fn(&mut RunConfig)),
    Rule(Mistake),
}

fn check(toy: Toy, bound: Gap, wrong: &[Wrong]) {
    let folder = tempfile::tempdir().unwrap();
    let config = toy.config();
    let real = match toy.members {
        2 => bench::train::<2>(&config, folder.path(), None),
        3 => bench::train::<3>(&config, folder.path(), None),
        other => panic!("a run of {other} members"),
    };
    let gap = |config: &RunConfig, mistake| {
        let guide = if toy.guided { real.synchronised.clone() } else { Vec::new() };
        let reference = Reference::new(config, folder.path(), &real.kept, guide, mistake);
        Gap::widest(&real, &reference.run())
    };
    let right = gap(&config, None);
    assert!(right.full < bound.full && right.trimmed < bound.trimmed, "{right:?}");
    for (at, wrong) in wrong.iter().enumerate() {
        let (mut changed, mut mistake) = (config.clone(), None);
        match wrong {
            Key(change) => change(&mut changed),
            Rule(rule) => mistake = Some(*rule),
        }
        let gap = gap(&changed, mistake);
        assert!(gap.trimmed > TOLD_APART * bound.trimmed, "wrong reference {at} is not told apart: {gap:?}");
    }
}

const DENSE: Toy = Toy { members: 3, steps: 8, train: "", sync: "preset = \"dense\"", guided: false };

#[test]
fn dense_follows_the_reference() {
    check(
        DENSE,
        ROUNDED,
        &[
            Rule(Mistake::NoWeights),
            Key(|run| run.train.beta1 = 0.8),
            Key(|run| run.train.weight_decay = 0.0),
            Key(|run| run.train.gradient_clip *= 1.1),
        ],
    );
}

#[test]
fn dense_with_look_ahead_follows_the_reference() {
    let sync = "preset = \"dense\"\noverlap = 1\nlook_ahead = true";
    let wrong = [Key(|run| run.sync.look_ahead = false), Key(|run| run.sync.overlap = 0)];
    check(Toy { sync, ..DENSE }, ROUNDED, &wrong);
}

/// Its steps are plain gradient descent, which needs a higher learning rate than AdamW.
#[test]
fn dgc_follows_the_reference() {
    let train = "learning_rate = 0.05\noptimiser = \"sgd\"\nwarmup_steps = 8\nepsilon = 1e-8";
    let sync = "preset = \"dgc\"";
    check(
        Toy { steps: 20, train, sync, ..DENSE },
        CODED,
        &[
            Key(|run| run.sync.momentum = 0.8),
            Key(|run| run.sync.error_decay = 0.0),
            Rule(Mistake::NoMasking),
            Key(|run| run.train.gradient_clip *= 1.1),
        ],
    );
}

#[test]
fn powersgd_follows_the_reference() {
    let wrong = [Rule(Mistake::NoLowRankResidual), Rule(Mistake::NoWeights), Key(|run| run.sync.rank = 3)];
    check(Toy { steps: 12, sync: "preset = \"powersgd\"", ..DENSE }, ROUNDED, &wrong);
}

#[test]
fn onebit_adam_follows_the_reference() {
    let wrong = [
        Rule(Mistake::NoOwnerResidual),
        Rule(Mistake::NoFloor),
        Key(|run| run.sync.error_decay = 0.0),
        Key(|run| run.train.beta1 = 0.8),
    ];
    check(Toy { steps: 15, sync: "preset = \"onebit-adam\"", guided: true, ..DENSE }, CODED, &wrong);
}

#[test]
fn demo_follows_the_reference() {
    let wrong = [Key(|run| run.sync.error_decay = 0.9), Key(|run| run.sync.keep = 31)];
    check(Toy { steps: 12, sync: "preset = \"demo\"", guided: true, ..DENSE }, CODED, &wrong);
}

#[test]
fn diloco_follows_the_reference() {
    let sync = "preset = \"diloco\"\nevery = 3";
    let wrong = [
        Key(|run| run.sync.outer_momentum = 0.8),
        Key(|run| run.sync.outer_learning_rate = 0.65),
        Rule(Mistake::NoWeights),
    ];
    check(Toy { steps: 11, sync, ..DENSE }, ROUNDED, &wrong);
}

/// The last of eight rounds has one step, fewer than the overlap.
#[test]
fn streaming_diloco_follows_the_reference() {
    let sync = "preset = \"streaming-diloco\"\nevery = 3\ngroups = 3\nfragment_values = 8192";
    let wrong = [
        Key(|run| run.sync.mix = 0.4),
        Key(|run| run.sync.overlap = 1),
        Key(|run| run.sync.late = LateRule::Keep),
        Key(|run| run.sync.values = ValueFormat::Int4),
        Key(|run| run.sync.outer_momentum = 0.8),
        Key(|run| run.sync.groups = 2),
    ];
    check(Toy { steps: 22, sync, ..DENSE }, CODED, &wrong);
}

#[test]
fn streaming_diloco_in_normal_floats_follows_the_reference() {
    let sync =
        "preset = \"streaming-diloco\"\nevery = 3\ngroups = 3\nfragment_values = 8192\nvalues = \"nf4\"";
    let wrong = [Key(|run| run.sync.values = ValueFormat::Int4)];
    check(Toy { steps: 13, sync, ..DENSE }, CODED, &wrong);
}

#[test]
fn sparse_local_follows_the_reference() {
    let sync =
        "preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 4\nwarmup_rounds = 2\nresult = \"bundle\"";
    let wrong = [
        Key(|run| run.sync.error_decay = 1.0),
        Key(|run| run.sync.overlap = 1),
        Key(|run| run.sync.keep = 63),
        Key(|run| run.sync.late = LateRule::Mix),
    ];
    check(Toy { steps: 21, sync, ..DENSE }, CODED, &wrong);
}

#[test]
fn sparse_local_both_ways_follows_the_reference_between_two_members() {
    let sync = "preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 4\nresult = \"mean\"\nresult_keep = 128\nresult_values = \"2bit\"";
    let wrong = [Rule(Mistake::NoOwnerResidual), Key(|run| run.sync.error_decay = 1.0)];
    check(Toy { members: 2, steps: 17, sync, ..DENSE }, CODED, &wrong);
}

#[test]
fn sparse_local_with_unions_follows_the_reference() {
    let sync = "preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 3\nwarmup_rounds = 2";
    let wrong = [Rule(Mistake::NoOwnerResidual), Rule(Mistake::FlushesUnions)];
    check(Toy { steps: 18, sync, ..DENSE }, CODED, &wrong);
}

/// Its changes are small beside the parameters, as in fine-tuning.
#[test]
fn visible_changes_follow_the_reference() {
    let train = "learning_rate = 3e-5\nwarmup_steps = 2";
    let sync = "preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 2\noverlap = 1\ngroups = 2\nselection = \"visible\"\nvalues = \"bf16\"\nerror_decay = 1.0";
    let wrong = [
        Rule(Mistake::SeesAll),
        Key(|run| run.sync.error_decay = 0.0),
        Key(|run| run.sync.outer_learning_rate = 2.0),
    ];
    check(Toy { steps: 17, train, sync, ..DENSE }, CODED, &wrong);
}

/// Values cross in f32: two bits would turn the rounding of the iteration, which grows small singular values 500 times, into other levels.
#[test]
fn muloco_follows_the_reference() {
    let train = "learning_rate = 3e-3\nwarmup_steps = 2\nmuon.learning_rate = 6e-3\nmuon.precision = \"f32\"";
    let sync = "preset = \"muloco\"\nevery = 3\nvalues = \"f32\"";
    let wrong = [
        Rule(Mistake::NoWeights),
        Key(|run| run.sync.inner = InnerRule::Adamw),
        Key(|run| run.sync.overlap = 0),
        Key(|run| run.train.muon.as_mut().unwrap().momentum = 0.9),
        Key(|run| run.train.muon.as_mut().unwrap().nesterov = false),
        Key(|run| run.train.muon.as_mut().unwrap().scale = MuonScale::Original),
    ];
    check(Toy { steps: 11, train, sync, ..DENSE }, ITERATED, &wrong);
}

#[test]
fn cocktail_follows_the_reference() {
    let sync = "preset = \"cocktail\"\nchunk = 1024\nrandom_keep = 102\nkeep = 204\nresult_keep = 41";
    let wrong = [
        Rule(Mistake::NoOwnerResidual),
        Key(|run| run.sync.error_decay = 0.9),
        Key(|run| run.sync.overlap = 0),
        Key(|run| run.sync.result_keep = 40),
        Key(|run| run.sync.late = LateRule::Keep),
    ];
    check(Toy { steps: 16, sync, ..DENSE }, CODED, &wrong);
}

#[test]
fn auto_follows_the_reference() {
    let sync = "preset = \"auto\"\nadapt = false\nwarmup_rounds = 6\nfragment_values = 8192";
    let wrong = [
        Rule(Mistake::NoFloor),
        Rule(Mistake::KeepsGradients),
        Rule(Mistake::NoOwnerResidual),
        Key(|run| run.sync.overlap = 0),
        Key(|run| run.train.gradient_clip *= 1.1),
    ];
    check(Toy { steps: 24, sync, guided: true, ..DENSE }, CODED, &wrong);
}
