//! How many workers of a site share each layer, where that is not written: a third axis beside replicas and ranks.

use super::search::{CLOSE, Choice, Rival, choose_among};
use super::{DeviceId, Division, Divisions, NoPlan, Topology};

/// Chooses the best plan for a run with these divisions: with whole layers on each worker, or with layers shared by tensor groups, in one part or in several. Also
/// returns its machines, with groups in place of devices where it has any. `uses_all`: only plans that use every worker that could form another copy. Groups are examined
/// where all sites' own links are known; elsewhere only where no plan fits without them.
///
/// # Errors
/// No plan fits, with groups or without.
pub fn choose_with_groups(
    topology: Topology,
    divisions: &Divisions,
    uses_all: bool,
) -> Result<(Topology, Choice), NoPlan> {
    let whole = best_of(&topology, &divisions.whole, uses_all);
    let mut shared: Option<(Topology, Choice)> = None;
    for division in &divisions.shared {
        let members = division.members;
        if whole.is_ok() && !topology.knows_lans() || !makes_whole_groups(&topology, members) {
            continue;
        }
        let Ok(groups) = topology.in_groups(members) else { continue };
        let Ok(choice) = best_of(&groups, division, uses_all) else { continue };
        if shared.as_ref().is_none_or(|(_, best)| is_faster(&choice, best)) {
            shared = Some((groups, choice));
        }
    }
    match (whole, shared) {
        (Ok(whole), Some((groups, choice))) if is_faster(&choice, &whole) => {
            Ok((groups, Choice { rival: Some(rival(&whole)), ..choice }))
        }
        (Ok(whole), shared) => {
            Ok((topology, Choice { rival: shared.map(|(_, choice)| rival(&choice)), ..whole }))
        }
        (Err(_), Some(found)) => Ok(found),
        (Err(none), None) => Err(none),
    }
}

/// The best plan in as many parts as are permitted.
fn best_of(topology: &Topology, division: &Division, uses_all: bool) -> Result<Choice, NoPlan> {
    let devices = topology.devices().count();
    let is_admitted = |rows: &[Vec<DeviceId>]| {
        let stages = rows.first().map_or(0, Vec::len);
        division.permits(stages) && (!uses_all || rows.len() == devices / stages.max(1))
    };
    choose_among(topology, &division.work, is_admitted)
}

/// Whether it is faster by more than the tolerance.
fn is_faster(one: &Choice, other: &Choice) -> bool {
    one.best.1.step_s < other.best.1.step_s * (1.0 - CLOSE)
}

fn rival(choice: &Choice) -> Rival {
    let (plan, prediction) = &choice.best;
    Rival { members: choice.tensor, stages: plan.pipeline.ranks, step_s: prediction.step_s }
}

/// Whether all workers of every site would fit into groups.
fn makes_whole_groups(topology: &Topology, members: u32) -> bool {
    topology.sites.iter().all(|site| site.devices.len().is_multiple_of(members as usize))
}

#[cfg(test)]
mod tests;
