//! Tests of the selection against the paper's formulas.

use longhaul_common::config::SelectionMode;

use super::*;

const SEED: u64 = 5;

fn config(beta: f64) -> SelectiveBackwardConfig {
    SelectiveBackwardConfig {
        beta,
        history: 1024,
        mode: SelectionMode::Fresh,
        stale_epochs: None,
        importance: false,
        full_epochs: 0,
    }
}

/// Candidates after `epoch` epochs.
fn candidates(positions: std::ops::Range<u64>, epoch: u64) -> Vec<Candidate> {
    positions
        .map(|position| Candidate { position, visit: Visit { sample: position % 4096, epoch } })
        .collect()
}

/// Numbers spread evenly over [0, 1): multiples of the golden ratio.
fn spread(position: u64) -> f32 {
    (position as f64 * 0.618_033_988_749_894_9).fract() as f32
}

/// The weights of all samples in steps of 16 with these losses.
fn weights(selector: &mut Selector, steps: u64, loss: impl Fn(u64) -> f32) -> Vec<f32> {
    let step = |step: u64| {
        let candidates = candidates(step * 16..(step + 1) * 16, 1);
        let wanting = selector.wanting(&candidates);
        let losses: Vec<f32> = candidates.iter().map(|candidate| loss(candidate.position)).collect();
        selector.choose(&candidates, &wanting, &losses)
    };
    (0..steps).flat_map(step).collect()
}

fn share(weights: &[f32]) -> f64 {
    weights.iter().filter(|weight| **weight > 0.0).count() as f64 / weights.len() as f64
}

#[test]
fn of_losses_that_are_evenly_spread_one_in_beta_and_one_is_selected() {
    for beta in [0.5, 1.0, 2.0, 3.0] {
        let mut selector = Selector::new(&config(beta), SEED, 4096);
        let found = weights(&mut selector, 2048, spread);
        // Skips the first history, with little to compare with.
        let share = share(&found[1024..]);
        assert!((share - 1.0 / (beta + 1.0)).abs() < 0.02, "{beta}: {share}");
        assert!(found.iter().all(|weight| [0.0, 1.0].contains(weight)));
    }
}

/// Losses above, among and below all others, which fill the history.
#[test]
fn the_largest_losses_are_selected_and_the_smallest_are_not() {
    let mut selector = Selector::new(&config(2.0), SEED, 4096);
    weights(&mut selector, 64, spread);
    let judge = |loss: f32| share(&weights(&mut selector.clone(), 1, |_| loss));
    assert_eq!([-1.0, 2.0, f32::INFINITY, f32::NAN].map(judge), [0.0, 1.0, 1.0, 1.0]);
}

#[test]
fn a_run_with_the_same_seed_selects_the_same_and_chance_goes_by_position_not_by_who_asks() {
    let run = |seed| weights(&mut Selector::new(&config(1.0), seed, 4096), 256, spread);
    assert_eq!(run(SEED), run(SEED));
    assert_ne!(run(SEED), run(SEED + 1));
    // Two workers that share the steps and their losses select the same samples as one.
    let mut one = Selector::new(&config(1.0), SEED, 4096);
    weights(&mut one, 128, spread);
    let all = candidates(5000..5016, 1);
    let losses: Vec<f32> = all.iter().map(|candidate| spread(candidate.position)).collect();
    let choose = |from: usize, to: usize| {
        let part = &all[from..to];
        one.clone().choose(part, &one.wanting(part), &losses[from..to])
    };
    assert_eq!(choose(0, 16), [choose(0, 7), choose(7, 16)].concat());
}

#[test]
fn all_samples_of_the_first_epochs_are_selected_and_their_losses_are_what_is_compared_with() {
    let mut selector = Selector::new(&SelectiveBackwardConfig { full_epochs: 1, ..config(3.0) }, SEED, 4096);
    for start in (0..512).step_by(16) {
        let first = candidates(start..start + 16, 0);
        let wanting = selector.wanting(&first);
        assert!(wanting.iter().all(|wants| *wants == 0.0), "no forward pass is needed for them");
        assert_eq!(selector.choose(&first, &wanting, &[]), [1.0; 16]);
        let losses: Vec<f32> = first.iter().map(|candidate| spread(candidate.position)).collect();
        selector.learn(&first, &losses);
    }
    assert_eq!(selector.state().history.len(), 512);
    let second = candidates(4096..4112, 1);
    let wanting = selector.wanting(&second);
    assert_eq!(wanting, [1.0; 16]);
    assert_eq!(selector.choose(&second, &wanting, &[-1.0; 16]), [0.0; 16]);
}

/// Too few losses for a comparison.
#[test]
fn nothing_is_left_out_before_there_is_something_to_compare_with() {
    let mut selector = Selector::new(&config(3.0), SEED, 4096);
    let found = weights(&mut selector, 3, |position| -(position as f32));
    assert_eq!((share(&found[..32]), share(&found[32..])), (1.0, 0.0));
}

#[test]
fn stale_losses_spare_the_forward_pass_for_as_many_epochs_as_is_said() {
    let stale = SelectiveBackwardConfig { mode: SelectionMode::Stale, stale_epochs: Some(2), ..config(1.0) };
    let mut selector = Selector::new(&stale, SEED, 4096);
    let at = |epoch| candidates(0..16, epoch);
    let losses: Vec<f32> = (0..16).map(spread).collect();
    selector.learn(&at(0), &losses);
    for (epoch, wants) in [(1, 0.0), (2, 0.0), (3, 1.0)] {
        assert_eq!(selector.wanting(&at(epoch)), [wants; 16], "{epoch}");
    }
    // Stored losses decide.
    (0..64).for_each(|loss| selector.history.push(if loss % 2 == 0 { -1.0 } else { 2.0 }));
    let chosen = selector.clone().choose(&at(1), &[0.0; 16], &[]);
    let expected: Vec<f32> =
        (0..16).map(|position| f32::from(u8::from(chance_at(SEED, position) < 0.5))).collect();
    assert_eq!(chosen, expected);
    // A forward pass renews them.
    let _ = selector.choose(&at(3), &[1.0; 16], &losses);
    assert_eq!(selector.wanting(&at(5)), [0.0; 16]);
}

#[test]
fn what_a_checkpoint_holds_goes_on_as_if_nothing_had_happened() {
    let stale = SelectiveBackwardConfig { mode: SelectionMode::Stale, ..config(1.0) };
    let mut selector = Selector::new(&stale, SEED, 4096);
    weights(&mut selector, 100, spread);
    let some = candidates(0..16, 1);
    selector.learn(&some, &[1.5; 16]);
    let mut resumed = Selector::new(&stale, SEED, 4096);
    resumed.load(&selector.state());
    assert_eq!((resumed.counted_before(99), resumed.state()), (16, selector.state()));
    assert_eq!(weights(&mut resumed, 50, spread), weights(&mut selector, 50, spread));
    selector.contributed();
    assert_eq!(selector.counted_before(99), 0);
}

#[test]
fn with_importance_a_step_counts_for_all_that_it_was_given() {
    let plain = Selector::new(&config(1.0), SEED, 16);
    let important = Selector::new(&SelectiveBackwardConfig { importance: true, ..config(1.0) }, SEED, 16);
    assert_eq!([plain.counted(8, 0), plain.counted(8, 3)], [0, 3]);
    assert_eq!([important.counted(8, 0), important.counted(8, 3)], [8, 8]);
}

/// The expectation of the contribution over all sets of samples: each set with its probability, and the gradient of its weighted mean. Gradients are numbers here;
/// `engine::scoring` tests that those of a model follow its losses linearly.
#[test]
fn with_importance_the_expectation_is_the_mean_over_all_samples() {
    const COUNT: usize = 6;
    let gradients: [f64; COUNT] = [0.25, -3.0, 1.5, 7.0, -0.125, 2.0];
    for beta in [0.5, 1.0, 3.0] {
        let selector = Selector::new(&SelectiveBackwardConfig { importance: true, ..config(beta) }, SEED, 16);
        let probabilities: [f64; COUNT] = std::array::from_fn(|at| selector.probability(at as f64 / 5.0));
        let mut expectation = 0.0;
        for set in 0_u32..1 << COUNT {
            let is_in = |at: usize| set & (1 << at) != 0;
            let of = |at: usize| if is_in(at) { probabilities[at] } else { 1.0 - probabilities[at] };
            let chance: f64 = (0..COUNT).map(of).product();
            let weight = |at: usize| if is_in(at) { selector.weight(probabilities[at]) } else { 0.0 };
            let mut weights: Vec<f32> = (0..COUNT).map(weight).collect();
            selector.normalise(&mut weights);
            let sum: f64 =
                weights.iter().zip(&gradients).map(|(weight, gradient)| f64::from(*weight) * gradient).sum();
            // Like the engine: a mean over the selected.
            expectation += chance * sum / f64::from(set.count_ones().max(1));
        }
        let dense = gradients.iter().sum::<f64>() / COUNT as f64;
        assert!((expectation - dense).abs() < 1e-6, "{beta}: {expectation} is not {dense}");
    }
}
