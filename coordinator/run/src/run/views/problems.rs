//! Problems for a person to look at, as listed in the status.

use std::collections::BTreeSet;

use longhaul_common::id::WorkerId;

use crate::run::core::{Core, shorten};
use crate::run::machine::Run;
use crate::run::state::{Checkpoint, Phase};

impl Run {
    /// Present problems for a person to look at.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.core.is_paused() {
            problems.push("the run is paused; `coordinator resume` continues it".to_owned());
        }
        problems.extend(self.accounting.awaited_slow_joiners(&self.core).map(|(worker, until)| {
            let still = until.saturating_sub(self.core.now).as_secs();
            format!("rounds wait for {worker} to fetch the state, for {still} s at most")
        }));
        problems.extend(self.accounting.audits().wrong().map(|worker| {
            format!(
                "the sent and kept values of {worker} do not add up to the input: its hardware is faulty, or this release has a bug; \
                 `coordinator kick {worker}` goes on without it"
            )
        }));
        let (here, wanted) = (self.core.peers.len(), self.core.config.run.workers);
        if self.core.state.phase == Phase::Gathering && here < wanted as usize {
            problems.push(format!("{here} of {wanted} workers have joined; the run starts when all have"));
        }
        if self.core.state.lineage.fork.is_some()
            && self.core.state.phase == Phase::Gathering
            && here >= wanted as usize
            && self.core.nobody_holds_a_state()
        {
            problems.push(format!(
                "no worker has the checkpoint that the run begins from, or a later one: start a worker with the --checkpoint-dir that holds the folder {}, which `coordinator fork` wrote",
                self.core.state.run
            ));
        }
        problems.extend(self.recovery.absent_holders_problem(&self.core));
        problems.extend(self.planning.unfit().map(str::to_owned));
        let untold = self.planning.untold(&self.core);
        if !untold.is_empty() {
            problems.push(format!(
                "the plan waits for {} to measure their speed and their links",
                listed(&untold)
            ));
        }
        let unplaced = self.core.peers.values().filter(|peer| peer.slot.is_none()).count();
        if unplaced > 0
            && self.core.ranks() > 1
            && (self.core.state.phase != Phase::Gathering || here >= wanted as usize)
        {
            problems.push(format!(
                "{unplaced} workers wait for others: a copy of the model takes {} workers{}",
                self.core.ranks(),
                match &self.core.config.parallel {
                    parallel if !parallel.sites.is_empty() => ", from each of parallel.sites",
                    parallel if parallel.is_shared() && parallel.is_pipelined() => {
                        ", with the parallel.tensor workers of each part at one site"
                    }
                    parallel if parallel.is_shared() => ", all at one site",
                    _ => "",
                }
            ));
        }
        if unplaced > 0 && self.core.state.phase == Phase::Training && !self.core.copies_may_join() {
            problems.push(
                "new copies of the model join training after the warm-up; before it, and with a strategy that exchanges clipped gradients, only when all workers restart \
                 together, which is done rarely and for whole copies only".to_owned(),
            );
        }
        let awaited = self.core.peers.values().filter(|peer| peer.is_awaited()).count();
        if awaited > 0 && self.generations.waits_until().is_some_and(|until| until <= self.core.now) {
            problems.push(format!(
                "{awaited} members have not come back, and no other worker holds the run's state: the run goes on once one of them returns, {wanted} \
                 other workers join, or one joins with a checkpoint; `coordinator stop` ends it"
            ));
        } else if awaited > 0 {
            problems.push(format!("{awaited} members have not come back yet"));
        }
        let verdicts = self.accounting.verdicts();
        for verdict in verdicts.filter(|verdict| !verdict.odd.is_empty()) {
            problems.push(format!("parity was broken after {} by {}", verdict.round, listed(&verdict.odd)));
        }
        let without_data = self.core.waiting_for_data();
        if !without_data.is_empty() {
            problems.push(format!(
                "{} were started with `--data remote` and wait: no worker here has the run's data; start a worker on a machine that has it",
                listed(&without_data)
            ));
        }
        let without_model = self.core.waiting_for_model();
        if !without_model.is_empty() {
            problems.push(format!(
                "{} without the run's model, and no worker here has it: start a worker on a machine that has its folder",
                listed(&without_model)
            ));
        }
        problems.extend(self.core.unwritten_checkpoints());
        problems
    }
}

/// The workers' names, separated by commas.
fn listed(workers: &[WorkerId]) -> String {
    workers.iter().map(WorkerId::to_string).collect::<Vec<_>>().join(", ")
}

impl Core {
    /// Reasons for unwritten newest checkpoints, by worker. A worker that has left a running run does not count.
    fn unwritten_checkpoints(&self) -> impl Iterator<Item = String> {
        let mut seen = BTreeSet::new();
        let newest =
            self.state.checkpoints.newest.iter().filter(move |checkpoint| seen.insert(checkpoint.worker));
        let over = self.state.phase == Phase::Finished;
        let concerned = newest.filter(move |of| over || self.peers.contains_key(&of.worker));
        concerned.filter_map(|Checkpoint { worker, report }| {
            let reason = report.outcome.as_ref().err()?;
            Some(format!("{worker} could not write its newest checkpoint: {}", shorten(reason)))
        })
    }
}
