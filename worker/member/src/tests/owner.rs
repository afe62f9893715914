//! An owner's treatment of good and bad contributions, against references in f64.

use bytes::Bytes;
use longhaul_common::config::{ResultForm, RobustRule, SyncConfig, SyncPreset, ValueFormat};
use longhaul_common::id::SiteId;
use longhaul_common::plan::FragmentLayout;
use longhaul_common::schedule::{Changes, RoundSchedule};
use longhaul_proto::control::message::RefusalReason;
use longhaul_proto::round::{Content, Contribution, FragmentResult};

use super::super::layouts::Layouts;
use super::*;
use crate::reduce::mean::set_result;
use crate::reduce::reducer::{Reducer, Reduction};

const LEN: usize = 64;
const F0: FragmentId = FragmentId(0);
const LAYOUT: FragmentLayout = FragmentLayout { values: LEN as u64, fragment_values: LEN as u32 };
const SCHEDULE: RoundSchedule = RoundSchedule {
    warmup_rounds: 0,
    warmup_every: 1,
    every: 1,
    overlap: 1,
    groups: 1,
    exchanges: 1,
    steps: 1000,
    changes: Changes::NONE,
};

/// An owner that publishes means in f32.
fn owner(change: impl FnOnce(&mut SyncConfig)) -> Reducer {
    let mut sync = SyncConfig { chunk: 64, warmup_keep: 64, ..SyncConfig::of(SyncPreset::Diloco) };
    (sync.result_keep, sync.keep) = (64, 64);
    change(&mut sync);
    Reducer::new(&sync, Layouts::new(LAYOUT, None, SCHEDULE)).unwrap()
}

fn encoded(values: &[f32]) -> Bytes {
    let spec = CodecSpec::new(Selection::All, ValueFormat::F32);
    let mut body = Vec::new();
    Encoder::new(spec).unwrap().encode(0, values, &mut body).unwrap();
    body.into()
}

/// An honest site's contribution: between −1 and 1, different for each site and round.
fn values(site: u32, round: u64) -> Vec<f32> {
    let value = |i: usize| ((i * 37 + round as usize * 11 + site as usize * 29) % 101) as f32 / 50.0 - 1.0;
    (0..LEN).map(value).collect()
}

fn contribution(site: u32, weight: u32, body: Bytes) -> Contribution {
    Contribution { site: SiteId(site), weight, body }
}

fn honest(sites: u32, round: u64) -> Vec<Contribution> {
    (0..sites).map(|site| contribution(site, 1 + site, encoded(&values(site, round)))).collect()
}

fn decoded(result: &FragmentResult) -> Vec<f64> {
    let mut values = vec![0.0; LEN];
    assert_eq!(set_result(result, &mut Decoder::new(), &mut values), 0);
    values.into_iter().map(f64::from).collect()
}

fn assert_near(got: &[f64], expected: &[f64]) {
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() < 1e-6, "value {index}: {got} is not {expected}");
    }
}

fn weighted_mean(updates: &[(f64, Vec<f64>)]) -> Vec<f64> {
    let total: f64 = updates.iter().map(|(weight, _)| weight).sum();
    (0..LEN).map(|i| updates.iter().map(|(weight, values)| weight * values[i]).sum::<f64>() / total).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

#[test]
fn each_cause_is_told_and_neither_a_mean_nor_a_bundle_names_who_is_refused() {
    let short = encoded(&vec![1.0; LEN - 1]);
    let mut nan = encoded(&vec![1.0; LEN]).to_vec();
    let at = nan.len() - 4;
    nan[at..].copy_from_slice(&f32::NAN.to_le_bytes());
    let beyond = encoded(&vec![1e30; LEN]);
    let far: Vec<f32> = values(1, 9).iter().map(|value| 100.0 * value).collect();
    for (body, expected) in [
        (Bytes::from_static(b"no update"), RefusalReason::Undecodable),
        (Bytes::new(), RefusalReason::Undecodable),
        (short, RefusalReason::WrongLength),
        (nan.into(), RefusalReason::NotFinite),
        (beyond, RefusalReason::NotFinite),
        (encoded(&far), RefusalReason::Norm { times: 100.0, of: 27 }),
    ] {
        for form in [ResultForm::Mean, ResultForm::Bundle] {
            let mut owner = owner(|sync| sync.result = form);
            for round in 0..9 {
                assert_eq!(owner.reduce(Round(round), F0, honest(3, round)).unwrap().refused, []);
            }
            let mut contributions = honest(3, 9);
            contributions[1].body = body.clone();
            let Reduction { result, refused } = owner.reduce(Round(9), F0, contributions).unwrap();
            assert_eq!(result.contributors, [(SiteId(0), 1), (SiteId(2), 3)]);
            let rest = [(1.0, wide(&values(0, 9))), (3.0, wide(&values(2, 9)))];
            assert_near(&decoded(&result), &weighted_mean(&rest));
            let [refusal] = refused[..] else { panic!("{refused:?}") };
            assert_eq!((refusal.site, refusal.round, refusal.fragment), (SiteId(1), Round(9), F0));
            match (refusal.reason, expected) {
                (RefusalReason::Norm { times, of }, RefusalReason::Norm { times: about, of: known }) => {
                    assert!((times / about - 1.0).abs() < 0.1 && of == known, "{times} of {of}");
                }
                (reason, expected) => assert_eq!(reason, expected),
            }
        }
    }
}

#[test]
fn when_all_are_refused_nobody_is_named_and_a_void_reduction_leaves_nothing_behind() {
    let mut owner = owner(|sync| (sync.result_keep, sync.error_decay) = (8, 1.0));
    owner.reduce(Round(0), F0, honest(2, 0)).unwrap();
    let before = owner.residuals().clone();
    owner.reduce(Round(1), F0, honest(2, 1)).unwrap();
    assert_ne!(owner.residuals(), &before);
    let bad = (0..2).map(|site| contribution(site, 1, Bytes::from_static(b"no update"))).collect();
    let Reduction { result, refused } = owner.reduce(Round(1), F0, bad).unwrap();
    assert_eq!((result, refused.len()), (FragmentResult::nothing(), 2));
    assert_eq!(owner.residuals(), &before, "the first reduction of round 1 was void");
}

#[test]
fn clipping_scales_the_long_ones_down_to_the_median_and_every_site_counts_once() {
    let mut owner = owner(|sync| sync.robust = RobustRule::Clip);
    let factors = [0.5, 1.0, 2.0, 15.0];
    let scaled = |site: u32| -> Vec<f32> {
        values(site, 0).iter().map(|value| factors[site as usize] * value).collect()
    };
    let contributions = (0..4).map(|site| contribution(site, 1 << site, encoded(&scaled(site)))).collect();
    let result = owner.reduce(Round(0), F0, contributions).unwrap().result;
    let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
    // The second of four norms in ascending order.
    let radius = norm(&wide(&scaled(1)));
    let clipped = |site| {
        let values = wide(&scaled(site));
        let scale = (radius / norm(&values)).min(1.0);
        (1.0, values.into_iter().map(|value| scale * value).collect())
    };
    assert_near(&decoded(&result), &weighted_mean(&[0, 1, 2, 3].map(clipped)));
    assert_eq!(result.contributors.len(), 4);
}

/// The coordinate-wise trimmed mean of f64, from its definition.
fn trimmed(updates: &[Vec<f64>], trim: usize) -> Vec<f64> {
    let of_coordinate = |i: usize| {
        let mut values: Vec<f64> = updates.iter().map(|update| update[i]).collect();
        values.sort_by(f64::total_cmp);
        let kept = &values[trim..values.len() - trim];
        kept.iter().sum::<f64>() / kept.len() as f64
    };
    (0..LEN).map(of_coordinate).collect()
}

#[test]
fn trimming_leaves_out_both_ends_of_each_coordinate_and_as_many_as_it_can_of_few_sites() {
    for (trim, sites, trimmed_at_each_end) in
        [(1, 5, 1), (2, 5, 2), (2, 4, 1), (3, 3, 1), (1, 2, 0), (1, 1, 0)]
    {
        let mut owner = owner(|sync| (sync.robust, sync.trim) = (RobustRule::Trim, trim));
        let result = owner.reduce(Round(0), F0, honest(sites, 0)).unwrap().result;
        let updates: Vec<_> = (0..sites).map(|site| wide(&values(site, 0))).collect();
        assert_near(&decoded(&result), &trimmed(&updates, trimmed_at_each_end));
        assert_eq!(result.contributors.len(), sites as usize);
    }
}

#[test]
fn a_hostile_one_of_five_moves_a_trimmed_mean_no_further_than_the_honest_ones_are() {
    let hostile: [fn(usize) -> f32; 3] =
        [|_| 1e6, |index| if index % 2 == 0 { -1e6 } else { 1e6 }, |index| -(index as f32)];
    for value in hostile {
        let bad: Vec<f32> = (0..LEN).map(value).collect();
        let means = [RobustRule::Trim, RobustRule::None].map(|robust| {
            let mut owner = owner(|sync| (sync.robust, sync.norm_limit) = (robust, 0.0));
            let mut contributions = honest(5, 0);
            // It also claims more samples than all others together.
            contributions[2] = contribution(2, u32::MAX, encoded(&bad));
            decoded(&owner.reduce(Round(0), F0, contributions).unwrap().result)
        });
        let is_within = |mean: &[f64]| {
            (0..LEN).all(|i| {
                let honest = [0, 1, 3, 4].map(|site| f64::from(values(site, 0)[i]));
                let (low, high) =
                    honest.iter().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
                (low - 1e-6..=high + 1e-6).contains(&mean[i])
            })
        };
        assert!(is_within(&means[0]));
        assert!(!is_within(&means[1]), "the plain mean follows it");
    }
}

#[test]
fn a_bad_owners_result_makes_no_parameter_infinite() {
    let [good, huge] = [encoded(&[2.0; LEN]), encoded(&[f32::MAX; LEN])];
    let contributors = vec![(SiteId(0), 1), (SiteId(1), 1), (SiteId(2), 1)];
    for content in [
        Content::Bundle(vec![huge.clone(), good, huge.clone()]),
        Content::Bundle(vec![Bytes::new(); 3]),
        Content::Mean(huge),
        Content::Mean(Bytes::from_static(b"no update")),
    ] {
        let is_mixed = matches!(&content, Content::Bundle(parts) if !parts[0].is_empty());
        let result = FragmentResult { contributors: contributors.clone(), content };
        let mut values = vec![0.0; LEN];
        assert!(set_result(&result, &mut Decoder::new(), &mut values) > 0);
        assert_eq!(values, vec![if is_mixed { 2.0 } else { 0.0 }; LEN]);
    }
}
