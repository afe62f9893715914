//! How many workers of a site share each layer, where that is not written: a third axis beside replicas and ranks.

use longhaul_common::config::{ParallelConfig, RunConfig};
use longhaul_common::model::ModelSpec;

use super::search::{CLOSE, Choice, choose_among};
use super::{DeviceId, NoPlan, Topology, Workload};

/// Members of a group that are tried. More share links that few machines have.
const MEMBERS: [u32; 3] = [2, 4, 8];

/// The best plan for this run, with whole layers on each worker or with layers that tensor groups share, and the machines that it is for: with groups in the place of devices,
/// where it has any. `admits` is asked of rows of so many devices or groups. Groups are looked at where all sites' own links are known; elsewhere where no plan fits without them.
///
/// # Errors
/// No plan fits, with groups or without.
pub fn choose_with_groups(
    topology: Topology,
    config: &RunConfig,
    spec: &ModelSpec,
    admits: impl Fn(usize, &[Vec<DeviceId>]) -> bool,
) -> Result<(Topology, Choice), NoPlan> {
    let devices = topology.devices().count();
    let whole = choose_among(&topology, &Workload::of(config, spec), |rows| admits(devices, rows));
    let mut shared: Option<(Topology, Choice)> = None;
    for members in MEMBERS {
        if whole.is_ok() && !topology.knows_lans() || !makes_whole_groups(&topology, members) {
            continue;
        }
        let Some(config) = with_groups(config, members) else { continue };
        let Ok(groups) = topology.in_groups(members) else { continue };
        let count = groups.devices().count();
        let is_admitted =
            |rows: &[Vec<DeviceId>]| rows.iter().all(|row| row.len() == 1) && admits(count, rows);
        let Ok(choice) = choose_among(&groups, &Workload::of(&config, spec), is_admitted) else { continue };
        if shared.as_ref().is_none_or(|(_, best)| is_faster(&choice, best)) {
            shared = Some((groups, choice));
        }
    }
    match (whole, shared) {
        (Ok(whole), Some((groups, choice))) if is_faster(&choice, &whole) => {
            Ok((groups, Choice { rival: Some(outcome(&whole)), ..choice }))
        }
        (Ok(whole), shared) => {
            Ok((topology, Choice { rival: shared.map(|(_, choice)| outcome(&choice)), ..whole }))
        }
        (Err(_), Some(found)) => Ok(found),
        (Err(none), None) => Err(none),
    }
}

/// By more than what passes for as fast.
fn is_faster(one: &Choice, other: &Choice) -> bool {
    one.best.1.step_s < other.best.1.step_s * (1.0 - CLOSE)
}

fn outcome(choice: &Choice) -> (u32, f64) {
    (choice.tensor, choice.best.1.step_s)
}

/// Whether nobody would be left over at any site.
fn makes_whole_groups(topology: &Topology, members: u32) -> bool {
    topology.sites.iter().all(|site| site.devices.len().is_multiple_of(members as usize))
}

/// The run with such groups. None: they do not go with its model, its number of workers, or what else it asks for.
fn with_groups(config: &RunConfig, members: u32) -> Option<RunConfig> {
    let parallel = ParallelConfig { tensor: members, ..ParallelConfig::undivided() };
    let config = RunConfig { parallel, ..config.clone() };
    // What can be written and read again is permitted.
    config.to_toml().ok().filter(|text| RunConfig::parse(text).is_ok()).map(|_| config)
}

#[cfg(test)]
mod tests;
