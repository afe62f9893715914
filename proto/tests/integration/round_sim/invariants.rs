//! Invariants at the end of every simulation.

use std::collections::BTreeSet;

use longhaul_proto::round::{EARLY_FRAMES_PER_FRAGMENT_MAX, RESULTS_KEPT_ROUNDS, ROUNDS_AHEAD_MAX};

use super::payload::{self, Atom};
use super::world::World;

/// Checks all; the error names the violated one.
pub fn check(world: &World) -> Result<(), String> {
    parity(world)?;
    exactly_once(world)?;
    conservation(world)?;
    honesty(world)?;
    bounds(world)
}

/// All live workers applied the same bytes in every round and have the same state.
pub fn parity(world: &World) -> Result<(), String> {
    let Some(first) = world.live().next() else { return Err("nobody is left".to_owned()) };
    for node in world.live() {
        if let Some((round, _)) =
            node.applied.iter().find(|(round, results)| first.applied.get(round) != Some(results))
        {
            return Err(format!(
                "parity: {} and {} applied different bytes in {round}",
                node.worker, first.worker
            ));
        }
        if node.state != first.state {
            return Err(format!("parity: {} and {} hold different states", node.worker, first.worker));
        }
    }
    Ok(())
}

/// Each part of an update is in the state, a residual or the carry-over at most once in total.
pub fn exactly_once(world: &World) -> Result<(), String> {
    for fragment in 0..world.scenario.fragments as usize {
        let mut seen = BTreeSet::new();
        for atom in present(world, fragment) {
            if !seen.insert(atom) {
                return Err(format!("exactly once: {} of f{fragment} is there twice", payload::show(atom)));
            }
        }
    }
    Ok(())
}

/// Each update of a live worker is in the state, a residual or the carry-over, unless it was in a residual of
/// a dead worker.
pub fn conservation(world: &World) -> Result<(), String> {
    for fragment in 0..world.scenario.fragments as usize {
        let present: BTreeSet<Atom> = present(world, fragment).collect();
        for node in world.live() {
            let learnt = node.learnt.iter().flat_map(|&round| payload::learn(node.worker, round));
            for atom in learnt.filter(|atom| !present.contains(atom)) {
                let live: BTreeSet<_> = world.live().map(|node| node.worker).collect();
                let mut dead = world.nodes.values().filter(|node| !live.contains(&node.worker));
                if !dead.any(|node| node.compressed[fragment].contains(&atom)) {
                    return Err(format!("conservation: {} of f{fragment} is lost", payload::show(atom)));
                }
            }
        }
    }
    Ok(())
}

/// Protocol-abiding members are never accused; without deaths and joins, no member has to heal.
pub fn honesty(world: &World) -> Result<(), String> {
    if let Some((worker, violation)) = world.accusations.first() {
        return Err(format!("honesty: {worker} is accused: {violation}"));
    }
    let is_stable = world.scenario.faults.is_empty() && world.scenario.joiners.is_empty();
    match world.lost.first() {
        Some(worker) if is_stable => Err(format!("{worker} cannot follow any more")),
        _ => Ok(()),
    }
}

/// No member kept more frames than its limits permit.
pub fn bounds(world: &World) -> Result<(), String> {
    // A fragment has one value here, so results are never smaller than the model, and are not kept longer.
    let rounds = (RESULTS_KEPT_ROUNDS + 1 + ROUNDS_AHEAD_MAX) as usize;
    let each = rounds + world.nodes.len() * 2 + EARLY_FRAMES_PER_FRAGMENT_MAX;
    let limit = each * world.scenario.fragments as usize;
    if world.frames_held_max > limit {
        return Err(format!("bounds: {} frames in memory, more than {limit}", world.frames_held_max));
    }
    Ok(())
}

fn present(world: &World, fragment: usize) -> impl Iterator<Item = Atom> + '_ {
    let state = world.live().next().into_iter().flat_map(move |node| &node.state[fragment]);
    let private = world.live().flat_map(move |node| {
        [&node.carried, &node.residuals, &node.owner_residuals]
            .into_iter()
            .flat_map(move |kept| &kept[fragment])
    });
    state.chain(private).copied()
}
