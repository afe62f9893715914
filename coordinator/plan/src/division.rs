//! In how many ways a run may be divided: how many workers share each layer, and in how many parts a copy is then.

use std::collections::BTreeSet;

use longhaul_common::config::{ModelKind, ParallelConfig, RunConfig};
use longhaul_common::model::ModelSpec;
use serde::{Deserialize, Serialize};

use super::Workload;

/// Members of a group that are tried. More share links that few machines have.
const MEMBERS: [u32; 3] = [2, 4, 8];

/// The work of a run in which this many workers of a site share each layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Division {
    /// Members of a tensor group; 1: each worker has its layers whole.
    pub members: u32,
    /// The work of a step for a worker, or a group.
    pub work: Workload,
    /// Parts that a copy may be in, each on a worker or a group. None: any number.
    pub stages: Option<BTreeSet<u32>>,
}

/// All that a run's configuration permits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divisions {
    /// With whole layers.
    pub whole: Division,
    /// With tensor groups, the smallest first.
    pub shared: Vec<Division>,
}

impl Divisions {
    /// Divisions that suit the model, the number of workers, and the rest of the configuration.
    #[must_use]
    pub fn of(config: &RunConfig, spec: &ModelSpec) -> Self {
        let whole = Division::of(config, spec, 1);
        let shared = MEMBERS.map(|members| Division::of(config, spec, members));
        let is_permitted = |division: &Division| division.stages.iter().any(|stages| !stages.is_empty());
        Self { whole, shared: shared.into_iter().filter(is_permitted).collect() }
    }

    /// The same where copies with whole layers may be in any number of parts, or in one where such a model is never in more: for machines that are not those of the run.
    #[must_use]
    pub fn in_any_parts(self, model: ModelKind) -> Self {
        let stages = model.is_of_images().then(|| [1].into());
        Self { whole: Division { stages, ..self.whole }, ..self }
    }

    /// The one with groups of so many.
    #[must_use]
    pub fn with(&self, members: u32) -> Option<&Division> {
        std::iter::once(&self.whole).chain(&self.shared).find(|division| division.members == members)
    }
}

impl Division {
    fn of(config: &RunConfig, spec: &ModelSpec, members: u32) -> Self {
        let workers = config.run.workers;
        let most = workers.checked_div(members).unwrap_or(0).min(spec.head() + 1);
        // Each copy has as many workers as every other one.
        let may_be = |stages: &u32| {
            workers.is_multiple_of(stages * members) && divided(config, *stages, members).is_some()
        };
        // The cut does not change the work of a step; divisions that the model forbids are never examined.
        let parallel = ParallelConfig { tensor: members, ..config.parallel.joined() };
        let work = Workload::of(&RunConfig { parallel, ..config.clone() }, spec);
        Self { members, work, stages: Some((1..=most).filter(may_be).collect()) }
    }

    /// Whether a copy may be in so many parts.
    #[must_use]
    pub fn permits(&self, stages: usize) -> bool {
        self.stages
            .as_ref()
            .is_none_or(|permitted| u32::try_from(stages).is_ok_and(|stages| permitted.contains(&stages)))
    }
}

/// The run with copies in this many parts of such groups. `None`: incompatible with its model, its number of workers, or the rest of the
/// configuration.
pub(super) fn divided(config: &RunConfig, stages: u32, members: u32) -> Option<RunConfig> {
    let parallel = ParallelConfig { stages, tensor: members, ..ParallelConfig::undivided() };
    let mut config = RunConfig { parallel, ..config.clone() };
    config.drop_speed_shares();
    config.check().is_ok().then_some(config)
}

#[cfg(test)]
mod tests {
    use super::super::workload::tests::{config, run_toml};
    use super::*;

    #[test]
    fn a_division_is_permitted_where_a_file_with_it_would_be() {
        let mut permitted = 0;
        let private = run_toml().set("sync.preset", "diloco");
        let private = private.lines("privacy", "clip = 1.0\nnoise = 1.0\ndelta = 1e-5");
        for run in [run_toml(), private, run_toml().set("sync.preset", "dense")] {
            let mut config = RunConfig::parse(&run.to_string()).unwrap();
            for (workers, stages, members) in (1..=12).flat_map(|workers| {
                (0..=9).flat_map(move |stages| (0..=5).map(move |members| (workers, stages, members)))
            }) {
                config.run.workers = workers;
                let parallel = ParallelConfig { stages, tensor: members, ..ParallelConfig::undivided() };
                let mut written = RunConfig { parallel, ..config.clone() };
                written.drop_speed_shares();
                let is_read = written.to_toml().is_ok_and(|text| RunConfig::parse(&text).is_ok());
                assert_eq!(
                    divided(&config, stages, members).is_some(),
                    is_read,
                    "{workers} {stages} {members}"
                );
                permitted += u32::from(is_read);
            }
        }
        assert!(permitted > 12, "{permitted}");
    }

    fn stages(change: impl FnOnce(&mut RunConfig)) -> Vec<(u32, Vec<u32>)> {
        let mut config = config("");
        (config.run.workers, config.model.heads) = (8, 8);
        change(&mut config);
        let spec = ModelSpec::resolve(&config.model, 256).unwrap();
        let Divisions { whole, shared } = Divisions::of(&config, &spec);
        let of = |division: Division| (division.members, division.stages.into_iter().flatten().collect());
        std::iter::once(whole).chain(shared).map(of).collect()
    }

    /// Eight workers, six layers and eight heads, and steps of sixteen sequences.
    #[test]
    fn copies_are_of_so_many_stages_and_members_that_all_workers_have_a_place_and_all_members_a_share() {
        let all = [(1, vec![1, 2, 4, 8]), (2, vec![1, 2, 4]), (4, vec![1, 2]), (8, vec![1])];
        assert_eq!(stages(|_| ()), all);
        // Of three layers, four parts would leave a group without one.
        let few = stages(|config| config.model.layers = 3);
        assert_eq!(few, [(1, vec![1, 2, 4]), (2, vec![1, 2]), (4, vec![1, 2]), (8, vec![1])]);
        let odd = stages(|config| config.model.heads = 6);
        assert_eq!(odd, [(1, vec![1, 2, 4, 8]), (2, vec![1, 2, 4])]);
        // Neither four nor eight copies have equally many of ten sequences.
        let uneven = stages(|config| config.train.batch = 10);
        assert_eq!(uneven, [(1, vec![4, 8]), (2, vec![2, 4]), (4, vec![1, 2]), (8, vec![1])]);
    }

    #[test]
    fn what_a_group_hands_on_is_in_the_format_that_is_configured() {
        let mut config = config("");
        (config.run.workers, config.model.heads) = (4, 8);
        config.parallel.boundary = longhaul_common::config::ValueFormat::Bf16;
        let spec = ModelSpec::resolve(&config.model, 256).unwrap();
        let Divisions { whole, shared } = Divisions::of(&config, &spec);
        let bytes = |division: &Division| division.work.boundary_bytes_per_token(&(0..1));
        assert!(!shared.is_empty() && shared.iter().all(|other| bytes(other) == bytes(&whole)));
        assert_eq!(bytes(&whole), 2.0 * f64::from(spec.width));
    }
}
