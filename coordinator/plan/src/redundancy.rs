//! Whether members compute a run's warm-up together, or each all of it.

use longhaul_common::config::RunConfig;
use longhaul_common::model::ModelSpec;

use super::whole_run::{WholeRun, whole_run};
use super::{PhaseKind, Plan, Topology, Unfit, Workload, phases};

/// A redundant warm-up may make the run longer by this share: its gradients are exact, and no early phase with two bits follows. Two members reached a loss sooner
/// with it where it took 5 to 7 % of the run (`docs/decisions/0108-redundant-warmup.md`).
const WORTH: f64 = 0.07;

/// A run with either warm-up.
#[derive(Clone, Debug, PartialEq)]
pub struct Warmups {
    /// Members exchange gradients.
    pub exchanged: WholeRun,
    /// Each computes the gradients of all.
    pub redundant: WholeRun,
}

impl Warmups {
    /// Predicts both runs under `plan`, whose replicas are devices.
    ///
    /// # Errors
    /// No schedule goes with the plan's numbers.
    pub fn predict(
        topology: &Topology,
        config: &RunConfig,
        spec: &ModelSpec,
        plan: &Plan,
    ) -> Result<Self, Unfit> {
        let work = Workload::of(config, spec);
        let run = |is_redundant| {
            let mut config = config.clone();
            config.decide_redundancy(is_redundant);
            whole_run(topology, &work, plan, &phases(&config, spec))
        };
        Ok(Self { exchanged: run(false)?, redundant: run(true)? })
    }

    /// Whether the whole run takes less time with a redundant warm-up, or no more time than its loss is worth.
    #[must_use]
    pub fn is_redundant(&self) -> bool {
        self.redundant.seconds < (1.0 + WORTH) * self.exchanged.seconds
    }

    /// Both steps of the warm-up, for people.
    #[must_use]
    pub fn told(&self) -> String {
        let step_s = |run: &WholeRun| {
            let warmup = run.phases.iter().find(|phase| phase.kind == PhaseKind::Warmup);
            warmup.map_or(0.0, |phase| phase.step_s)
        };
        let (exchanged, redundant) = (step_s(&self.exchanged), step_s(&self.redundant));
        match self.is_redundant() {
            true => format!(
                "in the warm-up each worker computes the whole batch, {redundant:.3} s a step; an exchange would take {exchanged:.3} s"
            ),
            false => format!(
                "the warm-up is exchanged, {exchanged:.3} s a step; to compute the whole batch would take each worker {redundant:.3} s"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::workload::tests::run_toml;
    use super::*;
    use crate::choose_among;

    /// Workers of a tenth of a TFLOP/s, half of them at each of two sites.
    fn over(mbit: f64, workers: usize) -> Warmups {
        let each = workers / 2;
        let site = |name: &str| {
            format!("[[site]]\nname = \"{name}\"\nworkers = {each}\ntflops = 0.1\nmemory_gib = 4\n")
        };
        let machines = format!("{}{}[wan]\nmbit = {mbit}\nrtt_ms = 50\n", site("a"), site("b"));
        let run = run_toml().steps(1500).set("train.micro_batch", 8).lines("sync", "preset = \"auto\"");
        let config = RunConfig::parse(&run.to_string()).unwrap();
        assert!(config.is_redundancy_open());
        let topology = Topology::parse(&machines).unwrap();
        let spec = ModelSpec::resolve(&config.model, 256).unwrap();
        let work = Workload::of(&config, &spec);
        let (plan, _) = choose_among(&topology, &work, |rows| rows.len() == workers).unwrap().best;
        Warmups::predict(&topology, &config, &spec, &plan).unwrap()
    }

    #[test]
    fn a_warmup_is_redundant_for_two_and_for_more_where_the_link_takes_longer_than_their_batches() {
        let is_redundant = |mbit| [2, 8].map(|workers| over(mbit, workers).is_redundant());
        assert_eq!(
            [1.0, 10.0, 100.0, 1000.0].map(is_redundant),
            [[true; 2], [true; 2], [true, false], [true, false]]
        );
    }

    #[test]
    fn a_redundant_warmup_may_make_the_run_longer_by_seven_percent() {
        let longer_by = |mbit: u32| {
            let both = over(mbit.into(), 8);
            (both.redundant.seconds / both.exchanged.seconds - 1.0, both.is_redundant())
        };
        let all: Vec<_> = (1..=80).map(longer_by).collect();
        for (share, is_redundant) in &all {
            assert_eq!(*is_redundant, *share < 0.07, "{all:?}");
        }
        for range in [0.035..0.07, 0.07..0.14] {
            assert!(all.iter().any(|(share, _)| range.contains(share)), "{all:?}");
        }
    }

    #[test]
    fn a_choice_tells_the_steps_of_both() {
        let slow = over(1.0, 2);
        let [exchanged, redundant] = [&slow.exchanged, &slow.redundant].map(|run| run.phases[0].step_s);
        let told = slow.told();
        assert!(told.contains(&format!("whole batch, {redundant:.3} s")), "{told}");
        assert!(
            told.contains(&format!("would take {exchanged:.3} s")) && exchanged > 10.0 * redundant,
            "{told}"
        );
        assert!(over(1000.0, 8).told().starts_with("the warm-up is exchanged"));
    }
}
