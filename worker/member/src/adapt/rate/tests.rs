use rand::{Rng, SeedableRng};

use super::*;

const BOUNDS: RateBounds = RateBounds { target_utilisation: 0.97, bits_min: 0.01, bits_max: 32.0 };

/// A link on which one bit per value takes `slope` seconds, with steps of a second.
struct Link {
    slope: f64,
    round_trip: f64,
    window: f64,
}

impl Link {
    fn round(&self, controller: &mut RateController) -> (f64, Option<f64>) {
        let bits = controller.bits();
        let taken = 1.2 * self.round_trip + bits * self.slope;
        let changed = controller.observe(RoundTiming {
            bits,
            own_bits: bits,
            share: 1.0,
            taken: Duration::from_secs_f64(taken),
            window: Duration::from_secs_f64(self.window),
            round_trip: Duration::from_secs_f64(self.round_trip),
        });
        (taken / self.window, changed)
    }
}

fn settled(link: &Link, controller: &mut RateController) -> f64 {
    for _ in 0..60 {
        link.round(controller);
    }
    link.round(controller).0
}

#[test]
fn it_fills_the_window_of_any_link_and_no_more() {
    for slope in [0.001, 0.01, 0.1, 1.0, 10.0] {
        for round_trip in [0.001, 0.05, 0.2] {
            let link = Link { slope, round_trip, window: 1.0 };
            let mut controller = RateController::new(BOUNDS, 2.0);
            let used = settled(&link, &mut controller);
            let at_bound = controller.bits() == BOUNDS.bits_max;
            assert!(used <= 1.0, "{slope} s/bit, {round_trip} s: a round takes {used} of its window");
            assert!(used > 0.75 || at_bound, "{slope} s/bit, {round_trip} s: {used} of the window is used");
        }
    }
}

#[test]
fn on_a_steady_link_it_settles_and_stays() {
    let link = Link { slope: 0.1, round_trip: 0.05, window: 1.0 };
    let mut controller = RateController::new(BOUNDS, 0.1);
    settled(&link, &mut controller);
    assert!((0..100).all(|_| link.round(&mut controller).1.is_none()));
}

/// Every ten rounds the link has a fifth of its rate for ten rounds. Two rounds are late at each fall, because a single one may be an accident.
#[test]
fn a_rate_that_swings_fivefold_costs_two_late_rounds_at_each_fall() {
    let mut controller = RateController::new(BOUNDS, 1.0);
    let (mut late, mut falls, mut turns) = (0, 0, 0);
    let (mut bits, mut direction) = (controller.bits(), 0.0);
    for round in 0..400 {
        let slow = round / 10 % 2 == 1;
        falls += usize::from(slow && round % 10 == 0);
        let link = Link { slope: if slow { 0.5 } else { 0.1 }, round_trip: 0.05, window: 1.0 };
        let (used, changed) = link.round(&mut controller);
        late += usize::from(used > 1.0);
        if let Some(changed) = changed {
            let towards = (changed - bits).signum();
            turns += usize::from(towards == -direction);
            (bits, direction) = (changed, towards);
        }
    }
    assert!(late <= 2 * falls, "{late} late rounds of 400, with {falls} falls");
    // Down at each fall, up at each rise, and no oscillation between.
    assert!(turns <= 2 * falls, "{turns} turns, with {falls} falls");
}

/// On a busy machine, a round takes up to a third more or less than the last.
#[test]
fn on_a_noisy_link_few_rounds_are_late() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(5);
    let mut controller = RateController::new(BOUNDS, 1.0);
    let mut link = Link { slope: 0.1, round_trip: 0.05, window: 1.0 };
    let (mut late, mut used) = (0, 0.0);
    for round in 0..1100 {
        link.slope = 0.1 * (1.0 + (rng.random::<f64>() + rng.random::<f64>() - 1.0) / 3.0);
        let (taken, _) = link.round(&mut controller);
        if round >= 100 {
            late += usize::from(taken > 1.0);
            used += taken / 1000.0;
        }
    }
    assert!(late < 50, "{late} late rounds of 1000");
    assert!(used > 0.7, "{used} of the time is used");
}

/// Members whose steps end later make rounds long; fewer bits would not make them shorter.
#[test]
fn waiting_for_others_takes_no_bits_away() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(6);
    let mut controller = RateController::new(BOUNDS, 1.0);
    let link = Link { slope: 0.02, round_trip: 0.3, window: 1.0 };
    let mut bits = Vec::new();
    for _ in 0..1000 {
        let taken = 1.2 * link.round_trip + controller.bits() * link.slope + 0.6 * rng.random::<f64>();
        controller.observe(RoundTiming {
            bits: controller.bits(),
            own_bits: controller.bits(),
            share: 1.0,
            taken: Duration::from_secs_f64(taken),
            window: Duration::from_secs_f64(link.window),
            round_trip: Duration::from_secs_f64(link.round_trip),
        });
        bits.push(controller.bits());
    }
    // A quarter of the window carries 12 bits.
    let few = bits[100..].iter().filter(|bits| **bits < 6.0).count();
    assert!(few < 50, "in {few} rounds of 900, bits were below half of the link's capacity");
}

/// Round trips take a step, and each bit of all values five. Members that see only their own bits would mistake the others' traffic for waiting.
#[test]
fn members_that_share_a_slow_link_do_not_drive_each_other_up() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    let mut members = [RateController::new(BOUNDS, 2.0); 4];
    let (mut waited, mut sent) = (0.0, 0.0);
    for round in 0..600 {
        let bits = members.iter().map(RateController::bits).sum::<f64>() / 4.0;
        for member in &mut members {
            let taken = 0.17 + 0.9 * bits + 0.2 * rng.random::<f64>();
            member.observe(RoundTiming {
                bits,
                own_bits: member.bits(),
                share: 0.2,
                taken: Duration::from_secs_f64(taken),
                window: Duration::from_secs_f64(0.16),
                round_trip: Duration::from_secs_f64(0.112),
            });
            if round >= 100 {
                waited += (taken - 0.16) / 2000.0;
                sent += bits / 2000.0;
            }
        }
    }
    assert!(waited < 0.23, "{waited} s of waiting a round, of which 0.11 s are for no bits");
    assert!(sent > 0.03, "{sent} bits a value, of which 0.04 take a quarter of the window");
}

/// As in a warm-up: all rounds send a fixed amount regardless of the controller, and each takes a hundred times its window.
#[test]
fn where_what_is_sent_is_given_bits_do_not_rise() {
    let mut controller = RateController::new(BOUNDS, 0.1);
    for _ in 0..100 {
        controller.observe(RoundTiming {
            bits: 4.14,
            own_bits: 4.14,
            share: 1.0,
            taken: Duration::from_secs(19),
            window: Duration::from_secs_f64(0.16),
            round_trip: Duration::from_secs_f64(0.112),
        });
        assert!(controller.bits() <= 0.1, "{} bits", controller.bits());
    }
}

/// A stall lowers the bits; afterwards each round waits for others longer than its window.
#[test]
fn bits_come_back_after_a_stall_though_rounds_wait_for_others() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(8);
    let mut controller = RateController::new(BOUNDS, 0.04);
    let mut sent = 0.0;
    for round in 0..600 {
        let stall = if (50..60).contains(&round) { 5.0 } else { 0.0 };
        let taken = 0.27 + 0.9 * controller.bits() + 0.02 * rng.random::<f64>() + stall;
        controller.observe(RoundTiming {
            bits: controller.bits(),
            own_bits: controller.bits(),
            share: 0.2,
            taken: Duration::from_secs_f64(taken),
            window: Duration::from_secs_f64(0.16),
            round_trip: Duration::from_secs_f64(0.112),
        });
        if round >= 300 {
            sent += controller.bits() / 300.0;
        }
    }
    // A quarter of the window carries 0.043 bits.
    assert!((0.02..0.1).contains(&sent), "{sent} bits");
}

/// Few fragments are due, so a round's results come from one owner or another and do not show the others' traffic; each bit of all values takes five
/// steps. A member without a clear slope must not send ever more. Each has its own least, as with a large backlog.
#[test]
fn nobody_runs_away_from_the_others() {
    const LEAST: [f64; 4] = [0.13, 0.2, 0.23, 0.33];
    for seed in 0..20 {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let mut members = [RateController::new(BOUNDS, 0.1); 4];
        let mut mean = 0.0;
        for round in 0..1500 {
            let mut sent = LEAST;
            for (sent, member) in sent.iter_mut().zip(&members) {
                *sent = sent.max(member.bits());
            }
            let in_results = sent[round % 4];
            let taken = 0.1 + 0.25 * sent.iter().sum::<f64>() * rng.random::<f64>();
            for (member, own_bits) in members.iter_mut().zip(sent) {
                let waited = 0.4 * rng.random::<f64>();
                member.observe(RoundTiming {
                    bits: in_results,
                    own_bits,
                    share: 0.2,
                    taken: Duration::from_secs_f64(taken + waited),
                    window: Duration::from_secs_f64(0.13),
                    round_trip: Duration::from_secs_f64(0.02),
                });
            }
            if round >= 100 {
                mean += sent.iter().sum::<f64>() / 5600.0;
            }
        }
        assert!(mean < 0.5, "seed {seed}: {mean} bits a value, where 0.22 are the least");
    }
}

/// One member's rounds take longest where the results have fewest bits, as with few fragments of unlike owners: it sees no cost. The other sees it, and is at its
/// least.
#[test]
fn of_two_members_the_one_without_a_slope_stays_near_the_other() {
    const LEAST: f64 = 0.25;
    let mut members = [RateController::new(BOUNDS, LEAST); 2];
    for round in 0..1500 {
        let sent = members.map(|member| member.bits().max(LEAST));
        let of_turn = [0.8, 1.2, 1.0, 1.0][round % 4];
        let bits = of_turn * (sent[0] + sent[1]) / 2.0;
        let times = [0.09 - 0.01 * of_turn, 0.012 + 0.11 * bits];
        for ((member, own_bits), taken) in members.iter_mut().zip(sent).zip(times) {
            member.observe(RoundTiming {
                bits,
                own_bits,
                share: 0.25,
                taken: Duration::from_secs_f64(taken),
                window: Duration::from_secs_f64(0.046),
                round_trip: Duration::from_secs_f64(0.01),
            });
        }
    }
    let most = members[0].bits();
    assert!(most < 1.4 * LEAST, "{most} bits a value");
}

#[test]
fn a_round_that_measured_nothing_changes_nothing() {
    let mut controller = RateController::new(BOUNDS, 1.0);
    let nothing = RoundTiming {
        bits: 0.0,
        own_bits: 0.0,
        share: 1.0,
        taken: Duration::ZERO,
        window: Duration::from_secs(1),
        round_trip: Duration::ZERO,
    };
    assert_eq!(controller.observe(nothing), None);
    assert_eq!(controller.observe(RoundTiming { bits: 1.0, ..nothing }), None);
}

#[test]
fn the_users_bounds_hold() {
    let bounds = RateBounds { bits_min: 0.5, bits_max: 4.0, ..BOUNDS };
    assert_eq!(RateController::new(bounds, 100.0).bits(), 4.0);
    for slope in [1e-6, 100.0] {
        let mut controller = RateController::new(bounds, 1.0);
        settled(&Link { slope, round_trip: 0.01, window: 1.0 }, &mut controller);
        assert_eq!(controller.bits(), if slope < 1.0 { 4.0 } else { 0.5 });
    }
}
