//! The round protocol in a simulated cluster: every worker is a real `Member`, driven through calm weather, deaths at
//! every point, late sites and joiners. A failure prints the scenario and the command that replays it.

mod coordinator;
mod invariants;
mod node;
mod payload;
mod scenario;
mod world;

use longhaul_common::id::{SiteId, WorkerId};

use node::Sabotage;
use scenario::{Fault, Scenario};
use world::World;

const SHAPES: [(u32, u32); 5] = [(1, 1), (2, 1), (2, 2), (3, 2), (5, 1)];

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
        }
    }
}

#[test]
fn any_mixture_of_faults_is_survived() {
    let replay = std::env::var("ROUND_SIM_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in replay.map_or(0..2_000, |seed: u64| seed..seed + 1) {
        let scenario = Scenario::random(seed);
        if let Err(broken) = verdict(&scenario) {
            panic!(
                "{broken}\nin {scenario:#?}\nreplay: ROUND_SIM_SEED={seed} cargo test -p longhaul-proto --test round_sim any_mixture"
            );
        }
    }
}
