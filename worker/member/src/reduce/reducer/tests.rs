//! Tests of owners' reductions.

use longhaul_common::config::{SyncConfig, SyncPreset, ValueFormat};
use longhaul_common::id::SiteId;
use longhaul_common::plan::FragmentLayout;
use longhaul_common::schedule::{Changes, RoundSchedule};
use longhaul_proto::codec::{Selection, TopK};
use longhaul_proto::round::Content;

use super::*;

const LAYOUT: FragmentLayout = FragmentLayout { values: 64, fragment_values: 64 };
const SCHEDULE: RoundSchedule = RoundSchedule {
    warmup_rounds: 0,
    warmup_every: 1,
    every: 1,
    overlap: 1,
    groups: 1,
    exchanges: 1,
    steps: 100,
    changes: Changes::NONE,
};
const F0: FragmentId = FragmentId(0);

fn reducer() -> Reducer {
    let sync = SyncConfig {
        chunk: 64,
        result: ResultForm::Mean,
        result_keep: 8,
        result_values: ValueFormat::Int8,
        warmup_keep: 64,
        ..SyncConfig::of(SyncPreset::SparseLocal)
    };
    Reducer::new(&sync, Layouts::new(LAYOUT, None, SCHEDULE)).unwrap()
}

/// Two sites with weights 1 and 3, in full precision.
fn contributions(round: u64) -> (Vec<Contribution>, Vec<f64>) {
    let mut encoder = Encoder::new(CodecSpec::new(Selection::All, ValueFormat::F32)).unwrap();
    let mut mean = vec![0.0; 64];
    let contributions = [(0u32, 1u32), (1, 3)].map(|(site, weight)| {
        let values: Vec<f32> =
            (0..64).map(|i| ((i * 37 + round as u32 * 11 + site * 5) % 23) as f32 / 7.0 - 1.5).collect();
        mean.iter_mut().zip(&values).for_each(|(m, v)| *m += f64::from(weight) / 4.0 * f64::from(*v));
        let mut body = Vec::new();
        encoder.encode(0, &values, &mut body).unwrap();
        Contribution { site: SiteId(site), weight, body: body.into() }
    });
    (contributions.into(), mean)
}

fn decoded(result: &FragmentResult) -> Vec<f64> {
    let Content::Mean(body) = &result.content else { panic!("not a mean") };
    let mut values = vec![0.0; 64];
    Decoder::new().decode_add(body, 64, 1.0, &mut values).unwrap();
    values.into_iter().map(f64::from).collect()
}

#[test]
fn all_that_is_published_and_the_owners_residual_make_up_all_means() {
    let mut reducer = reducer();
    let (mut published, mut means) = (vec![0.0; 64], vec![0.0; 64]);
    for round in 0..50 {
        let (contributions, mean) = contributions(round);
        let Reduction { result, refused } = reducer.reduce(Round(round), F0, contributions).unwrap();
        assert_eq!(refused, []);
        assert_eq!(result.sites().collect::<Vec<_>>(), [SiteId(0), SiteId(1)]);
        published.iter_mut().zip(decoded(&result)).for_each(|(sum, value)| *sum += value);
        means.iter_mut().zip(mean).for_each(|(sum, value)| *sum += value);
    }
    let residual = &reducer.residuals()[&F0];
    assert!(residual.iter().any(|rest| rest.abs() > 0.1), "eight of 64 are sent in a round");
    for ((published, mean), rest) in published.iter().zip(&means).zip(residual) {
        assert!((published + f64::from(*rest) - mean).abs() < 1e-4, "{published} + {rest} is not {mean}");
    }
}

/// Sites send values of their own: a result has all of them, rounded, and nothing else from the residual.
#[test]
fn a_union_has_what_anybody_sent_as_far_as_there_is_room_and_the_rest_waits() {
    let contribution = |site: u32, values: &[(usize, f32)]| {
        let mut all = vec![0.0; 64];
        values.iter().for_each(|(at, value)| all[*at] = *value);
        let mut body = Vec::new();
        let spec = CodecSpec::new(Selection::TopK(TopK { chunk: 64, keep: 4 }), ValueFormat::F32);
        Encoder::new(spec).unwrap().encode(0, &all, &mut body).unwrap();
        Contribution { site: SiteId(site), weight: 1, body: body.into() }
    };
    for (room, values) in [(64, ValueFormat::F32), (64, ValueFormat::Int4), (5, ValueFormat::Int4)] {
        let sync = SyncConfig {
            result: ResultForm::Union,
            result_keep: room,
            result_values: values,
            chunk: 64,
            warmup_keep: 64,
            ..SyncConfig::of(SyncPreset::SparseLocal)
        };
        let mut reducer = Reducer::new(&sync, Layouts::new(LAYOUT, None, SCHEDULE)).unwrap();
        let (mut published, mut means) = (vec![0.0; 64], vec![0.0; 64]);
        for round in 0..20_usize {
            let of = |site: usize| {
                let at = |i: usize| (i * 17 + site * 9 + round * 5) % 64;
                (0..4).map(|i| (at(i), (at(i) % 7) as f32 + 0.3)).collect::<Vec<_>>()
            };
            let sent = [of(0), of(1)];
            sent.iter().flatten().for_each(|(at, value)| means[*at] += f64::from(*value) / 2.0);
            let both = [0, 1].map(|site| contribution(site as u32, &sent[site]));
            let result = reducer.reduce(Round(round as u64), F0, both.into()).unwrap().result;
            let values = decoded(&result);
            let positions = |at: &usize| values[*at] != 0.0;
            let union: Vec<usize> =
                (0..64).filter(|at| sent.iter().flatten().any(|(p, _)| p == at)).collect();
            assert!((0..64).filter(positions).all(|at| union.contains(&at)), "round {round}");
            let room = (room as usize).min(union.len());
            assert!((0..64).filter(positions).count() <= room);
            assert!(room < 64 || (0..64).filter(positions).count() == union.len());
            published.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        let residual = &reducer.residuals()[&F0];
        assert_eq!(residual.iter().all(|rest| *rest == 0.0), values == ValueFormat::F32);
        for ((published, mean), rest) in published.iter().zip(&means).zip(residual) {
            assert!((published + f64::from(*rest) - mean).abs() < 1e-4, "{published} + {rest} is not {mean}");
        }
    }
}

#[test]
fn values_are_spread_to_their_positions() {
    let mut values = vec![1.0, 2.0, 3.0];
    spread(&mut values, &[0, 3, 4], 6);
    assert_eq!(values, [1.0, 0.0, 0.0, 2.0, 3.0, 0.0]);
}

#[test]
fn means_of_low_rank_factors_in_few_bits_leave_nothing_behind() {
    let schedule = RoundSchedule { exchanges: 2, ..SCHEDULE };
    let sync = SyncConfig {
        values: ValueFormat::Bf16,
        result_values: ValueFormat::Bf16,
        ..SyncConfig::of(SyncPreset::Powersgd)
    };
    let mut reducer = Reducer::new(&sync, Layouts::new(LAYOUT, Some([64, 7]), schedule)).unwrap();
    for (round, len) in [(0, 64), (1, 7), (2, 64)] {
        let mut body = Vec::new();
        let values = vec![0.1; len];
        let spec = CodecSpec::new(Selection::All, ValueFormat::F32);
        Encoder::new(spec).unwrap().encode(0, &values, &mut body).unwrap();
        let contribution = Contribution { site: SiteId(0), weight: 1, body: body.into() };
        reducer.reduce(Round(round), F0, vec![contribution]).unwrap();
    }
    assert!(reducer.residuals().is_empty());
}

#[test]
fn what_a_void_reduction_left_behind_does_not_count() {
    let (mut twice, mut once) = (reducer(), reducer());
    for reducer in [&mut twice, &mut once] {
        reducer.reduce(Round(0), F0, contributions(0).0).unwrap();
    }
    let mut alone = contributions(1).0;
    alone.pop();
    twice.reduce(Round(1), F0, alone).unwrap();
    let [again, only] = [&mut twice, &mut once].map(|r| r.reduce(Round(1), F0, contributions(1).0).unwrap());
    assert_eq!((again, twice.residuals()), (only, once.residuals()));

    let before = once.kept.before[&F0].before(Round(1)).unwrap().clone();
    assert_eq!(twice.take_residual(F0, Round(1)), Some(before), "round 1 is void at the next owner");
    let after = once.residuals()[&F0].clone();
    assert_eq!(once.take_residual(F0, Round(2)), Some(after));
    assert_eq!(once.take_residual(F0, Round(2)), None);
}

/// A slow device writes the checkpoint before a round whose results already exist: a restart from there makes them again.
#[test]
fn a_checkpoint_has_the_residuals_from_before_its_round_though_that_was_reduced() {
    let mut reducer = reducer();
    reducer.reduce(Round(0), F0, contributions(0).0).unwrap();
    let before = reducer.residuals().clone();
    assert_eq!(reducer.residuals_at(Round(1)), before);
    reducer.reduce(Round(1), F0, contributions(1).0).unwrap();
    assert_ne!(reducer.residuals(), &before);
    assert_eq!(reducer.residuals_at(Round(1)), before);
    assert_eq!(&reducer.residuals_at(Round(2)), reducer.residuals());
}

/// Every sixteenth value is sampled.
#[test]
fn what_waits_is_the_residual_over_the_mean_of_the_round() {
    let mut reducer = reducer();
    assert_eq!(reducer.waiting_in(Round(0)).exchanges(), None);
    for round in 0..5 {
        let (contributions, mean) = contributions(round);
        reducer.reduce(Round(round), F0, contributions).unwrap();
        let norm = |values: Vec<f64>| values.iter().step_by(16).map(|v| v * v).sum::<f64>().sqrt();
        let residual = reducer.residuals()[&F0].iter().map(|v| f64::from(*v)).collect();
        let expected = norm(residual) / norm(mean);
        let seen = reducer.waiting_in(Round(round)).exchanges().unwrap();
        assert!((seen - expected).abs() < 1e-4 * expected, "{seen} is not {expected}");
        assert!(expected > 0.1);
    }
    assert_eq!(reducer.waiting_in(Round(3)).exchanges(), None, "of the last round of a fragment alone");
    reducer.reduce(Round(4), F0, Vec::new()).unwrap();
    assert_eq!(reducer.waiting_in(Round(4)).exchanges(), None, "nothing is published");
    reducer.reduce(Round(5), F0, contributions(5).0).unwrap();
    reducer.take_residual(F0, Round(6));
    assert_eq!(reducer.waiting_in(Round(5)).exchanges(), None, "the residual is elsewhere");
}
