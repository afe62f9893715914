//! A plan as a run's configuration has it.

use longhaul_common::config::ParallelConfig;

use super::{Choice, Plan, Topology};

/// `[parallel]` for the best plan of a choice, with ranks that talk as is configured.
#[must_use]
pub fn parallel_of(topology: &Topology, choice: &Choice, configured: &ParallelConfig) -> ParallelConfig {
    let (plan, tensor) = (&choice.best.0, choice.tensor);
    let pipeline = &plan.pipeline;
    if pipeline.ranks < 2 {
        let replan_after_s = configured.replan_after_s;
        return ParallelConfig { tensor, replan_after_s, ..ParallelConfig::undivided() };
    }
    ParallelConfig {
        stages: pipeline.ranks,
        tensor,
        schedule: pipeline.schedule,
        chunks: pipeline.chunks,
        in_flight: pipeline.in_flight.clone(),
        blocks: plan.stages.iter().map(|stage| stage.end - stage.start).collect(),
        sites: sites(topology, plan).unwrap_or_default(),
        ..configured.joined()
    }
}

/// Where every copy has each part at the same site, those sites, if they are all that there are; elsewhere copies find together by themselves.
fn sites(topology: &Topology, plan: &Plan) -> Option<Vec<String>> {
    let site = |rank: usize| {
        let mut sites = plan.replicas.iter().map(|replica| replica[rank].site);
        let first = sites.next()?;
        sites.all(|site| site == first).then_some(first)
    };
    let places: Vec<usize> = (0..plan.pipeline.ranks as usize).map(site).collect::<Option<_>>()?;
    let is_all = (0..topology.sites.len()).all(|site| places.contains(&site));
    is_all.then(|| places.iter().map(|&place| topology.sites[place].name.clone()).collect())
}
