//! Columns between device and frame: nothing is lost, and no vector of a whole weight appears.

use longhaul_common::config::{RunConfig, SyncConfig};
use longhaul_common::id::RunId;
use longhaul_common::plan::FragmentLayout;
use longhaul_proto::codec::WeightColumns;
use longhaul_run_toml::RunToml;

use super::*;
use crate::encode::compressor::{CompressError, Compressor, Job, Local};
use crate::encode::pool::CodecPool;

/// A matrix of six columns of four values [in, out], with three values before it and five behind it.
const VALUES: usize = 32;
/// Two fragments, which cut the matrix.
const LAYOUT: FragmentLayout = FragmentLayout { values: VALUES as u64, fragment_values: 16 };

fn config(sync: &str) -> RunConfig {
    let columns =
        "preset = \"dense\"\nselection = \"columns\"\nresult = \"bundle\"\nwithin_site = \"direct\"";
    let run = RunToml::new("small").workers(2).steps(100).set("train.sparse_backward.keep", 0.1);
    RunConfig::parse(&run.lines("sync", columns).lines("sync", sync).to_string()).unwrap()
}

fn layouts() -> Layouts {
    Layouts::new(LAYOUT, None, config("").round_schedule())
}

fn compressor(sync: &SyncConfig) -> Compressor {
    Compressor::new(RunId([0; 16]), sync, layouts(), 0, CodecPool::of(1)).unwrap()
}

/// Numbers in these columns that differ by step.
fn gradient(step: usize, columns: &[u32]) -> ColumnGradient {
    let value = |at: usize| ((at * 7 + step * 5) % 23) as f32 / 4.0 - 2.5;
    let column = |column: &u32| (*column, (0..4).map(|row| value(*column as usize * 4 + row)).collect());
    let weight = WeightColumns {
        place: 3..27,
        columns: 6,
        rows: 4,
        by_column: false,
        values: columns.iter().map(column).collect(),
    };
    let rest = vec![(0, (0..3).map(value).collect()), (27, (27..32).map(value).collect())];
    ColumnGradient { len: VALUES, rest, weights: vec![weight] }
}

fn contributed(columns: &ColumnContributions, round: u64) -> Vec<f32> {
    LAYOUT.fragments().flat_map(|fragment| columns.of(Round(round), fragment).unwrap().to_dense()).collect()
}

fn sum(one: &[f32], other: &[f32]) -> Vec<f32> {
    one.iter().zip(other).map(|(one, other)| one + other).collect()
}

#[test]
fn what_was_in_no_result_is_part_of_the_next_contribution_that_has_samples() {
    let mut columns = ColumnContributions::default();
    let contribute = |columns: &mut ColumnContributions, round: u64, of: &[u32], weight| {
        columns.contribute(Round(round), &gradient(round as usize, of), &layouts(), weight, 0.0).unwrap();
        contributed(columns, round)
    };
    let first = contribute(&mut columns, 0, &[1, 4], 3);
    LAYOUT.fragments().for_each(|fragment| columns.carry_over(Round(0), fragment));
    let nothing = gradient(1, &[]);
    columns.contribute(Round(1), &nothing, &layouts(), 0, 0.0).unwrap();
    assert_eq!(columns.carried().len(), 2, "a member without samples keeps it");
    let own = contribute(&mut ColumnContributions::default(), 2, &[0, 4], 3);
    assert_eq!(contribute(&mut columns, 2, &[0, 4], 3), sum(&first, &own));
    assert!(columns.carried().is_empty());
    columns.release(Round(1));
    assert!(columns.of(Round(1), FragmentId(0)).is_none() && columns.of(Round(2), FragmentId(0)).is_some());
}

/// A quarter of the owner's limit is sent of a long carry.
#[test]
fn a_long_carry_is_sent_in_portions() {
    let mut columns = ColumnContributions::default();
    columns.contribute(Round(0), &gradient(0, &[1]), &layouts(), 1, 0.0).unwrap();
    let all = columns.of(Round(0), FragmentId(0)).unwrap().clone().scaled(100.0);
    columns.carry(FragmentId(0), all.clone(), 1.0);
    columns.contribute(Round(1), &gradient(0, &[1]), &layouts(), 1, 8.0).unwrap();
    let own = all.to_dense().iter().map(|value| value / 100.0).collect::<Vec<_>>();
    let sent = columns.of(Round(1), FragmentId(0)).unwrap().to_dense();
    let left = columns.carried()[&FragmentId(0)].to_dense();
    for at in 0..16 {
        // A quarter of eight times its own; the rest waits.
        assert!((sent[at] - 3.0 * own[at]).abs() < 1e-4, "{} for {}", sent[at], own[at]);
        assert!((left[at] - 98.0 * own[at]).abs() < 1e-2, "{} for {}", left[at], own[at]);
    }
}

/// The mean of two members, one of them by frame, through error feedback in few bits.
#[test]
fn what_a_site_sends_and_keeps_is_the_mean_of_its_members() {
    let config = config("values = \"int4\"");
    let mut compressor = compressor(&config.sync);
    let (mut came_in, mut sent) = (vec![0.0_f64; 16], vec![0.0_f64; 16]);
    for round in 0..12_u64 {
        let mut members = [ColumnContributions::default(), ColumnContributions::default()];
        let chosen: [&[u32]; 2] = if round % 2 == 0 { [&[0, 1], &[1, 5]] } else { [&[2], &[3, 4]] };
        for (member, of) in members.iter_mut().zip(chosen) {
            member.contribute(Round(round), &gradient(round as usize, of), &layouts(), 1, 0.0).unwrap();
        }
        let [own, other] = &members;
        let frame = other.frame_of(Round(round), FragmentId(0)).unwrap().unwrap();
        let received = of_frame(&frame, 16).unwrap();
        assert_eq!(Some(&received), other.of(Round(round), FragmentId(0)));
        let own = own.of(Round(round), FragmentId(0)).unwrap().clone();
        for (weight, update) in [(0.75, &own), (0.25, &received)] {
            update.for_each(|at, value| came_in[at] += weight * f64::from(value));
        }
        let locals = vec![(3, Local::Columns(own)), (1, Local::Columns(received))];
        let body = compressor
            .compress(Round(round), &[Job { fragment: FragmentId(0), locals, base: None }])
            .remove(0)
            .unwrap();
        of_frame(&body, 16).unwrap().for_each(|at, value| sent[at] += f64::from(value));
    }
    compressor.columns()[&FragmentId(0)].for_each(|at, value| sent[at] += f64::from(value));
    for (came_in, sent) in came_in.iter().zip(&sent) {
        assert!((came_in - sent).abs() < 1e-4, "{sent} of {came_in}");
    }
}

#[test]
fn a_retracted_compression_leaves_the_columns_as_they_were() {
    let config = config("values = \"int4\"");
    let mut compressor = compressor(&config.sync);
    let compress = |compressor: &mut Compressor, round: u64| {
        let update = gradient(round as usize, &[0, 3]).cut(0..16).unwrap();
        let locals = vec![(1, Local::Columns(update))];
        compressor
            .compress(Round(round), &[Job { fragment: FragmentId(0), locals, base: None }])
            .remove(0)
            .unwrap()
    };
    compress(&mut compressor, 0);
    let before = compressor.columns().clone();
    assert!(!before.is_empty());
    let body = compress(&mut compressor, 1);
    assert_ne!(compressor.columns(), &before);
    compressor.retract(Round(1), FragmentId(0));
    assert_eq!(compressor.columns(), &before);
    assert_eq!(compress(&mut compressor, 1), body);
    assert!(compressor.take_columns(FragmentId(0)).is_some());
    assert!(compressor.columns().is_empty());
}

#[test]
fn updates_of_other_matrices_are_not_added_up() {
    let config = config("");
    let mut compressor = compressor(&config.sync);
    let (own, other) = (gradient(0, &[1]).cut(0..16).unwrap(), gradient(0, &[1]).cut(1..17).unwrap());
    let locals = vec![(1, Local::Columns(own)), (1, Local::Columns(other))];
    let refused =
        compressor.compress(Round(0), &[Job { fragment: FragmentId(0), locals, base: None }]).remove(0);
    assert!(matches!(refused, Err(CompressError::Kinds)), "{refused:?}");
}
