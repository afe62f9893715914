//! The round protocol in a simulated cluster. Every worker is a real `Member`, through normal operation,
//! deaths at every point, late sites and joins. A failure prints the scenario and the command that replays
//! it.

mod coordinator;
mod invariants;
mod node;
mod payload;
mod scenario;
mod world;

use std::collections::BTreeMap;
use std::ops::Range;

use longhaul_common::id::{FragmentId, Round, SiteId, WorkerId};

use node::Sabotage;
use scenario::{Fault, Scenario, Streams};
use world::World;

const SHAPES: [(u32, u32); 6] = [(1, 1), (2, 1), (2, 2), (3, 2), (5, 1), (8, 1)];

fn verdict(scenario: &Scenario) -> Result<World, String> {
    let world = World::play(scenario.clone())?;
    invariants::check(&world)?;
    Ok(world)
}

fn hold(scenario: &Scenario) -> World {
    verdict(scenario).unwrap_or_else(|broken| panic!("{broken}\nin {scenario:#?}"))
}

#[test]
fn a_calm_run_of_any_shape_applies_every_round_everywhere() {
    for (sites, members) in SHAPES {
        for seed in 0..20 {
            let world = hold(&Scenario::calm(seed, sites, members));
            assert!(world.nodes.values().all(|node| node.applied.len() == 6));
            let repeated = world.nodes.values().map(|node| node.member.dropped().duplicate).sum::<u64>();
            assert_eq!(repeated, 0, "frames sent in vain");
        }
    }
}

/// The frames of a run's first rounds are lost one at a time, with their sender or receiver.
#[test]
fn whoever_dies_with_any_frame_of_a_round_the_rest_goes_on() {
    for (sites, members) in SHAPES {
        for seed in 0..4 {
            let calm = Scenario { rounds: 3, ..Scenario::calm(seed, sites, members) };
            for nth in 0..hold(&calm).frames {
                hold(&calm.clone().with(Fault::SenderOf(nth)));
                hold(&calm.clone().with(Fault::ReceiverOf(nth)));
            }
        }
    }
}

/// The transport retransmits lost data, so a lost frame comes late: after a repair within a round, or on a
/// new connection, while others continue for some rounds.
#[test]
fn any_frame_of_a_run_may_be_lost_and_sent_again() {
    for (sites, members) in SHAPES {
        for seed in 0..2 {
            let calm = Scenario::calm(seed, sites, members);
            let frames = hold(&calm).frames;
            for (nth, repaired_after_ms) in (0..frames).flat_map(|nth| [(nth, 30), (nth, 400)]) {
                let world = hold(&calm.clone().with(Fault::Stuck(nth, repaired_after_ms)));
                let applied = |node: &node::Node| node.applied.len();
                assert!(world.nodes.values().all(|node| applied(node) == 6), "frame {nth}");
            }
        }
    }
}

/// Including owners and uploaders, while compressing, reducing, settling and catching up.
#[test]
fn a_member_may_vanish_before_any_of_its_events() {
    for (sites, members) in SHAPES {
        for seed in 0..3 {
            let calm = Scenario { rounds: 3, ..Scenario::calm(seed, sites, members) };
            for (worker, node) in hold(&calm).nodes {
                for nth in 0..node.handled {
                    hold(&calm.clone().with(Fault::BeforeEvent(worker, nth)));
                }
            }
        }
    }
}

/// The second death comes during the first settlement, or while the survivors catch up.
#[test]
fn a_second_death_during_a_settlement_starts_it_over() {
    for seed in 0..3 {
        let calm = Scenario { rounds: 4, ..Scenario::calm(seed, 3, 2) };
        for at_ms in (0..60).step_by(3) {
            for second in (0..150).step_by(2) {
                let faults = vec![Fault::At(at_ms, WorkerId(2)), Fault::BeforeEvent(WorkerId(3), second)];
                hold(&Scenario { faults, ..calm.clone() });
            }
        }
    }
}

#[test]
fn workers_may_join_at_any_time() {
    for (sites, members) in SHAPES {
        for at_ms in (0..100).step_by(2) {
            // One at an existing site, one at a new one, shortly after.
            let joiners = vec![(at_ms, SiteId(0)), (at_ms + 9, SiteId(sites))];
            hold(&Scenario { joiners, rounds: 12, ..Scenario::calm(at_ms, sites, members) });
        }
    }
}

#[test]
fn a_slow_device_skips_rounds_and_what_it_learnt_comes_later() {
    let (mut skipped, mut carried) = (0, 0);
    for seed in 0..40 {
        let scenario = Scenario { slow: Some((WorkerId(2), 50)), rounds: 30, ..Scenario::calm(seed, 3, 1) };
        let world = hold(&scenario);
        let slow = &world.nodes[&WorkerId(2)];
        skipped += usize::from(slow.learnt.len() < 15);
        carried += usize::from(slow.executed.contains_key("carry over"));
    }
    assert!(skipped > 10, "only {skipped} of 40 runs skipped rounds");
    assert!(carried > 10, "only {carried} of 40 runs had late contributions");
}

#[test]
fn of_a_late_round_what_was_ready_in_time_counts() {
    let mut partly = 0;
    for seed in 0..40 {
        let calm = Scenario { streams: Streams::Everybodys, ..Scenario::calm(seed, 3, 1) };
        let world = hold(&Scenario { slow: Some((WorkerId(2), 8)), rounds: 30, ..calm });
        let (schedule, fragments) = (world.scenario.schedule(), world.scenario.fragments);
        for (round, results) in &world.nodes[&WorkerId(1)].applied {
            let due = (0..fragments).filter(|f| schedule.is_due(*round, FragmentId(*f)));
            let named = due.map(|fragment| results[fragment as usize].names(SiteId(1)));
            let named: Vec<bool> = named.collect();
            partly += usize::from(named.contains(&true) && named.contains(&false));
        }
    }
    assert!(partly > 100, "only {partly} rounds counted in part");
}

#[test]
fn a_frame_that_is_stuck_for_many_rounds_holds_nobody_up() {
    let (mut ahead, mut pulls) = (0, 0);
    for seed in 0..4 {
        let calm = Scenario { rounds: 30, ..Scenario::calm(seed, 3, 1) };
        for nth in 0..60 {
            let world = hold(&calm.clone().with(Fault::Stuck(nth, 2_500)));
            for node in world.nodes.values() {
                ahead += node.member.dropped().ahead;
                pulls += node.executed.get("pull").copied().unwrap_or(0);
            }
        }
    }
    assert!(ahead > 0 && pulls > 0, "{ahead} results too early, {pulls} pulls");
}

/// Seeds requested by the user.
fn seeds() -> Option<Range<u64>> {
    let text = std::env::var("LONGHAUL_SEEDS").ok()?;
    let (from, to) = text.split_once("..").expect("LONGHAUL_SEEDS is FROM..TO");
    let number = |text: &str| text.parse().expect("LONGHAUL_SEEDS has numbers");
    Some(number(from)..number(to))
}

#[test]
fn any_mixture_of_faults_is_survived() {
    for seed in seeds().unwrap_or(0..2_500) {
        let scenario = Scenario::random(seed);
        if let Err(broken) = verdict(&scenario) {
            let replay = "cargo test -p longhaul-proto --test integration any_mixture";
            panic!("{broken}\nin {scenario:#?}\nreplay: LONGHAUL_SEEDS={seed}..{} {replay}", seed + 1);
        }
    }
}

/// A worker joins a site whose dead member is named in an adopted result of the open round, and contributes
/// to that round as well. Its update is not in that result and is carried over. (In the second case others
/// make the site's contribution.)
#[test]
fn what_was_adopted_before_a_member_contributed_is_without_it() {
    for seed in [10_321, 90] {
        hold(&Scenario::random(seed));
    }
}

/// An owner whose fragment is two rounds ahead of the open one undoes both when they turn out void.
#[test]
fn an_owner_goes_back_over_all_rounds_that_are_void() {
    hold(&Scenario::random(75_841));
}

/// The random scenarios must cover all cases to be useful.
#[test]
fn the_mixtures_reach_every_command_and_every_reason_to_drop_a_frame() {
    let mut executed: BTreeMap<&str, usize> = BTreeMap::new();
    let mut dropped = longhaul_proto::round::Dropped::default();
    for seed in 0..1_000 {
        let Ok(world) = World::play(Scenario::random(seed)) else { continue };
        for node in world.nodes.values() {
            node.executed.iter().for_each(|(kind, count)| *executed.entry(kind).or_default() += count);
            let of = node.member.dropped();
            dropped.stale += of.stale;
            dropped.settling += of.settling;
            dropped.late += of.late;
            dropped.ahead += of.ahead;
        }
    }
    let kinds = [
        "send local",
        "send",
        "compress",
        "retract",
        "carry over",
        "move residual",
        "move owner residual",
        "reduce",
        "pull",
        "result here",
        "release",
    ];
    for kind in kinds {
        assert!(executed.get(kind).is_some_and(|&count| count > 10), "{kind}: {executed:?}");
    }
    assert!(
        [dropped.stale, dropped.settling, dropped.late, dropped.ahead].iter().all(|&count| count > 10),
        "{dropped:?}"
    );
}

/// Known bugs in the caller, each of which its check must find.
#[test]
fn the_checks_find_known_bugs() {
    let found = |sabotage, promise: &str| {
        let broken = (0..400).find_map(|seed| {
            let scenario = Scenario { sabotage: Some(sabotage), ..Scenario::random(seed) };
            verdict(&scenario).err().filter(|broken| broken.starts_with(promise))
        });
        assert!(broken.is_some(), "{sabotage:?} goes unnoticed by {promise}");
    };
    found(Sabotage::AppliesTwice, "parity");
    found(Sabotage::AppliesInWrongOrder, "parity");
    found(Sabotage::IgnoresRetract, "exactly once");
    found(Sabotage::IgnoresCarryOver, "conservation");
    found(Sabotage::ForgetsResiduals, "conservation");
    found(Sabotage::ForgetsOwnerResiduals, "conservation");
    found(Sabotage::NeverAnswersPulls, "everybody waits");
}

/// Without a second member for comparison, the state itself reveals a round applied twice.
#[test]
fn a_round_that_is_applied_twice_is_found_without_a_second_member() {
    let scenario = Scenario { sabotage: Some(Sabotage::AppliesTwice), ..Scenario::calm(0, 1, 1) };
    let broken = verdict(&scenario).expect_err("it is applied twice");
    assert!(broken.starts_with("exactly once"), "{broken}");
}

#[test]
fn a_round_that_differs_in_one_member_is_found() {
    let mut world = hold(&Scenario { groups: 1, ..Scenario::calm(1, 2, 2) });
    let node = world.nodes.get_mut(&WorkerId(3)).expect("there are four");
    let results = node.applied.get_mut(&Round(2)).expect("there are six rounds");
    results[0].contributors.pop();
    let broken = invariants::check(&world).expect_err("one result differs");
    assert!(broken.starts_with("parity") && broken.contains("r2"), "{broken}");
}
