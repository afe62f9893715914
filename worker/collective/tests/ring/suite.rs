//! Requirements of every implementation.

use std::ops::Range;

use longhaul_collective::{CHUNK_BYTES, Collective, CollectiveError, Reduction, even_ranges};
use longhaul_tests::tools::skipped;

use super::rig::{PATIENT, each};

/// Every test of the suite, for one implementation.
macro_rules! suite {
    ($name:ident, $site:expr, [$($test:ident),+ $(,)?]) => {
        mod $name {
            use super::*;
            $(#[test] fn $test() { suite::$test(&$site); })+
        }
    };
    ($name:ident, $site:expr) => {
        suite!($name, $site, [
            all_reduce_gives_everyone_the_same_and_right_bits,
            reduce_scatter_then_gather_gives_each_range_to_its_member_then_to_all,
            broadcast_hands_bytes_of_any_length_round,
            an_exchange_tells_everyone_the_words_of_all_in_order_of_rank,
            lengths_that_differ_are_an_error_for_all_and_the_end,
            a_mean_without_samples_and_a_broadcast_that_is_too_long_fail_for_all,
        ]);
    };
}

/// An implementation under test.
pub trait Site {
    type Member: Collective;

    /// Returns `size` members, or the reason that this machine cannot.
    fn members(&self, size: usize) -> Result<Vec<Self::Member>, String>;

    /// Whether sums are in the order of `docs/collective.md`.
    const STATED_ORDER: bool;
}

const SIZES: [usize; 5] = [1, 2, 3, 5, 8];

fn lengths(size: usize) -> [usize; 6] {
    // The last is of more than one chunk in each range, unevenly.
    [0, 1, size, 7 * size + 3, 1000, size * CHUNK_BYTES / 4 + 12_345]
}

pub fn all_reduce_gives_everyone_the_same_and_right_bits<S: Site>(site: &S) {
    for_sizes(site, |mut members| {
        let size = members.len();
        for len in lengths(size) {
            for samples in [None, Some((0..size).map(|rank| 3 + 5 * rank as u32).collect::<Vec<_>>())] {
                let inputs: Vec<_> = (0..size).map(|rank| values(rank, len)).collect();
                let results = each(members.iter_mut().collect(), |member| {
                    let mut values = inputs[member.rank()].clone();
                    let total = member.all_reduce(&mut values, reduction(member.rank(), samples.as_deref()));
                    (values, total.unwrap())
                });
                let total = samples.iter().flatten().map(|samples| u64::from(*samples)).sum::<u64>();
                for (values, samples) in &results {
                    assert_eq!(bits(values), bits(&results[0].0), "members differ");
                    assert_eq!(*samples, total);
                }
                compare::<S>(&results[0].0, &inputs, samples.as_deref(), &even_ranges(len, size));
            }
        }
        members
    });
}

pub fn reduce_scatter_then_gather_gives_each_range_to_its_member_then_to_all<S: Site>(site: &S) {
    for_sizes(site, |mut members| {
        let size = members.len();
        // In no order, of unlike lengths, with gaps, one empty.
        let ranges: Vec<_> = (0..size)
            .map(|rank| {
                let at = 1000 * ((rank * 3 + 1) % (size + usize::from(size.is_multiple_of(3))));
                if rank == 1 { at..at } else { at..at + 100 + rank }
            })
            .collect();
        let len = 1000 * (size + 1);
        let inputs: Vec<_> = (0..size).map(|rank| values(rank, len)).collect();
        let samples: Vec<_> = (0..size).map(|rank| if rank == 2 { 0 } else { 7 + rank as u32 }).collect();
        let results = each(members.iter_mut().collect(), |member| {
            let (rank, mut values) = (member.rank(), inputs[member.rank()].clone());
            if samples[rank] == 0 {
                values.fill(f32::NAN);
            }
            member.reduce_scatter(&mut values, &ranges, reduction(rank, Some(&samples))).unwrap();
            let own = values[ranges[rank].clone()].to_vec();
            let mut all = vec![-1.0; len];
            all[ranges[rank].clone()].copy_from_slice(&own);
            member.all_gather(&mut all, &ranges).unwrap();
            all
        });
        for all in &results {
            assert_eq!(bits(all), bits(&results[0]), "members differ");
        }
        compare::<S>(&results[0], &inputs, Some(&samples), &ranges);
        let outside = (0..len).filter(|at| ranges.iter().all(|range| !range.contains(at)));
        assert!(outside.map(|at| results[0][at]).all(|value| value == -1.0));
        members
    });
}

pub fn broadcast_hands_bytes_of_any_length_round<S: Site>(site: &S) {
    for_sizes(site, |mut members| {
        for root in 0..members.len() {
            for len in [0, 1, 1000, 2 * CHUNK_BYTES + 17] {
                let sent: Vec<u8> = (0..len).map(|at| (at * 7 + root) as u8).collect();
                let results = each(members.iter_mut().collect(), |member| {
                    let mut bytes = if member.rank() == root { sent.clone() } else { vec![9; 3] };
                    member.broadcast(root, &mut bytes, 2 * CHUNK_BYTES + 17).unwrap();
                    bytes
                });
                assert!(results.iter().all(|bytes| *bytes == sent));
            }
        }
        each(members.iter_mut().collect(), |member| member.barrier().unwrap());
        members
    });
}

pub fn an_exchange_tells_everyone_the_words_of_all_in_order_of_rank<S: Site>(site: &S) {
    for_sizes(site, |mut members| {
        let word = |rank: usize, call: u8| [rank as u8 * 16 + call; 16];
        for call in 0..3 {
            let expected: Vec<_> = (0..members.len()).map(|rank| word(rank, call)).collect();
            let heard = each(members.iter_mut().collect(), |member| {
                member.exchange(word(member.rank(), call), PATIENT).unwrap()
            });
            assert!(heard.iter().all(|heard| *heard == expected), "{heard:?}");
        }
        members
    });
}

pub fn lengths_that_differ_are_an_error_for_all_and_the_end<S: Site>(site: &S) {
    for size in [2, 3, 5] {
        let Some(mut members) = present(site, size) else { return };
        let errors = each(members.iter_mut().collect(), |member| {
            let mut values = vec![1.0; if member.rank() == 1 { 101 } else { 100 }];
            let error = member.all_reduce(&mut values, Reduction::Sum).unwrap_err();
            let after = member.barrier().unwrap_err();
            assert!(matches!(after, CollectiveError::Broken { .. }), "{after}");
            (member.rank(), error)
        });
        for (rank, error) in errors {
            let CollectiveError::Disagree { peer, ours, theirs } = &error else { panic!("{error}") };
            assert_eq!(peer.rank, usize::from(rank != 1), "{error}");
            assert_ne!(ours, theirs);
        }
    }
}

pub fn a_mean_without_samples_and_a_broadcast_that_is_too_long_fail_for_all<S: Site>(site: &S) {
    let Some(members) = present(site, 2) else { return };
    each(members, |mut member| {
        let error = member.all_reduce(&mut [1.0; 5], Reduction::Mean { samples: 0 }).unwrap_err();
        assert!(matches!(error, CollectiveError::NoSamples), "{error}");
    });
    let Some(members) = present(site, 2) else { return };
    each(members, |mut member| {
        let error = member.broadcast(1, &mut vec![0; 11], 10).unwrap_err();
        assert!(matches!(error, CollectiveError::TooLong { bytes: 11, .. }), "{error}");
    });
}

fn for_sizes<S: Site>(site: &S, work: impl Fn(Vec<S::Member>) -> Vec<S::Member>) {
    for size in SIZES {
        if let Some(members) = present(site, size) {
            drop(work(members));
        }
    }
}

fn present<S: Site>(site: &S, size: usize) -> Option<Vec<S::Member>> {
    site.members(size).map_err(|why| skipped(&format!("with {size} members, {why}"))).ok()
}

fn reduction(rank: usize, samples: Option<&[u32]>) -> Reduction {
    samples.map_or(Reduction::Sum, |samples| Reduction::Mean { samples: samples[rank] })
}

/// With f64, and with the documented order bit for bit.
fn compare<S: Site>(result: &[f32], inputs: &[Vec<f32>], samples: Option<&[u32]>, ranges: &[Range<usize>]) {
    let size = inputs.len();
    let total: u64 = samples.into_iter().flatten().map(|samples| u64::from(*samples)).sum();
    for (owner, range) in ranges.iter().enumerate() {
        for at in range.clone() {
            let share64 = |rank: usize| samples.map_or(1.0, |s| f64::from(s[rank]) / total as f64);
            let terms = (0..size).map(|rank| share64(rank) * f64::from(inputs[rank][at]));
            let exact: f64 = terms.clone().sum();
            let rounding = (size as f64 + 2.0) * 2f64.powi(-24) * terms.map(f64::abs).sum::<f64>();
            assert!(
                (f64::from(result[at]) - exact).abs() <= rounding,
                "value {at}: {} != {exact}",
                result[at]
            );
            if S::STATED_ORDER {
                let contribution = |rank: usize| match samples {
                    None => inputs[rank][at],
                    Some(samples) if samples[rank] == 0 => 0.0,
                    Some(samples) => (samples[rank] as f32 / total as f32) * inputs[rank][at],
                };
                let mut stated = contribution((owner + 1) % size);
                for step in 2..=size {
                    stated += contribution((owner + step) % size);
                }
                assert_eq!(result[at].to_bits(), stated.to_bits(), "value {at} of {size} members");
            }
        }
    }
}

/// Values of both signs and many magnitudes, so that another order of summing shows.
fn values(rank: usize, len: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(rank as u64 + 1);
    let mut next = move || {
        // splitmix64 (Steele et al. 2014)
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let value = |random: u64| {
        let mantissa = (random >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        mantissa * 2f32.powi((random % 12) as i32)
    };
    (0..len).map(|_| value(next())).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
