//! Whether the warm-up of a run is redundant, where the coordinator decides it (`docs/decisions/0108-redundant-warmup.md`).

use longhaul_common::memory::PerMemory;
use longhaul_plan::{Warmups, Workload, choose_among};

use super::Planning;
use crate::run::core::Core;
use crate::run::state::Decided;

/// A decision, and its reason.
#[derive(Debug, Default)]
pub(crate) struct Warmup {
    pub is_redundant: bool,
    /// For people; empty: nothing was to be decided.
    pub why: String,
}

impl Warmup {
    /// An exchange, for this reason.
    pub fn exchanged(reason: &str) -> Self {
        Self { is_redundant: false, why: format!("the warm-up is exchanged, as {reason}") }
    }
}

impl Planning {
    /// Whether measurements decide on the warm-up: within one site, an exchange takes no time worth mentioning.
    pub(crate) fn is_warmup_open(&self, core: &Core) -> bool {
        core.config.is_redundancy_open() && !(core.has_all_workers() && self.surveys.sites() < 2)
    }

    /// Decides by the workers' measurements, where each holds the whole model.
    pub(crate) fn choose_warmup(&self, core: &Core) -> Warmup {
        if !core.config.is_redundancy_open() {
            return Warmup::default();
        }
        if !self.surveys.compute_alike() {
            return Warmup::exchanged("gradients of the workers differ by rounding, or may on a GPU");
        }
        let device = |worker| self.surveys.device(worker);
        let topology = self.topology_of(core, &self.surveys.by_site(), device);
        let (Some(topology), Some(spec)) = (topology, self.spec(core)) else {
            return Warmup::exchanged("a worker has left");
        };
        let (work, devices) = (Workload::of(&core.config, &spec), topology.devices().count());
        let Ok(choice) = choose_among(&topology, &work, |rows| rows.len() == devices) else {
            return Warmup::exchanged("no step of the whole model can be predicted");
        };
        match Warmups::predict(&topology, &core.config, &spec, &choice.best.0) {
            Ok(warmups) => Warmup { is_redundant: warmups.is_redundant(), why: warmups.told() },
            Err(error) => Warmup::exchanged(&error.to_string()),
        }
    }

    /// Gives every worker the whole model, of so many bytes.
    pub(crate) fn decide_undivided(&mut self, core: &mut Core, bytes: PerMemory, warmup: Warmup) {
        let mut why = format!(
            "every worker holds the whole model ({}), and the amount of exchange adapts to the links",
            self.told_bytes(bytes)
        );
        if !warmup.why.is_empty() {
            why.push_str("; ");
            why.push_str(&warmup.why);
        }
        let undivided = Decided { why, redundant_warmup: warmup.is_redundant, ..core.undivided() };
        self.decide(core, undivided);
    }
}
