//! How workers are admitted, and how one generation of members follows another.

pub(super) mod admit;
pub(super) mod generation_config;
pub(super) mod operate;
pub(super) mod prepare;
pub(super) mod settle;

use std::collections::BTreeSet;
use std::time::Duration;

use longhaul_common::id::WorkerId;
use serde::{Deserialize, Serialize};

use self::prepare::Preparing;
use self::settle::Settling;
use crate::run::core::Core;
use crate::run::recovery::source::Source;
use crate::run::state::Phase;

/// Transition between generations: workers that prepare, settle, are awaited or are out.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Generations {
    preparing: Option<Preparing>,
    settling: Option<Settling>,
    /// Until then awaited members may come back.
    grace_until: Option<Duration>,
    /// Members of the generation that cannot come back as such.
    gone: BTreeSet<WorkerId>,
    /// All are to leave, and no new worker is admitted. Not durable: after a restart the run goes on.
    suspending: bool,
    begun_at: Duration,
    last_join: Duration,
    /// Copies of the model that were ever put together.
    replicas_formed: u64,
}

impl Generations {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            preparing: None,
            settling: None,
            grace_until: None,
            gone: BTreeSet::new(),
            suspending: false,
            begun_at: now,
            last_join: now,
            replicas_formed: 0,
        }
    }

    /// A worker is not here any more.
    pub(super) fn departed(&mut self, worker: WorkerId) {
        if let Some(preparing) = &mut self.preparing {
            preparing.lost(worker);
        }
    }

    /// It cannot come back as a member of this generation.
    pub(super) fn exclude(&mut self, worker: WorkerId) {
        self.gone.insert(worker);
    }

    /// A generation begins.
    pub(super) fn begin(&mut self, now: Duration) {
        self.begun_at = now;
        self.gone.clear();
    }

    /// All gather anew, for another plan.
    pub(super) fn gather_anew(&mut self, now: Duration) {
        (self.preparing, self.settling, self.grace_until) = (None, None, None);
        self.last_join = now;
    }

    /// Members that are away may come back until then.
    pub(super) fn wait_until(&mut self, time: Duration) {
        self.grace_until = Some(time);
    }

    pub(super) fn waits_until(&self) -> Option<Duration> {
        self.grace_until
    }

    pub(super) fn is_settling(&self) -> bool {
        self.settling.is_some()
    }

    pub(super) fn is_suspending(&self) -> bool {
        self.suspending
    }

    /// Whether all expected answers to `Prepare` have come.
    pub(super) fn has_heard_all_ready(&self) -> bool {
        self.preparing.as_ref().is_none_or(Preparing::has_heard_all)
    }

    /// The same for the members' reports of their generation's last round.
    pub(super) fn has_heard_all_settled(&self) -> bool {
        self.settling.as_ref().is_none_or(Settling::has_heard_all)
    }

    /// A number for a copy of the model that is put together.
    pub(super) fn next_replica(&mut self) -> u64 {
        self.replicas_formed += 1;
        self.replicas_formed
    }

    /// Time at which a begun run goes on with fewer workers than wanted: none has joined for a while, and one holds its state.
    pub(super) fn gathering_ends(&self, core: &Core) -> Option<Duration> {
        let begun = core.state.phase == Phase::Gathering && core.state.lineage.facts.is_some();
        let held = begun && core.choose_source() != Source::Fresh;
        held.then(|| self.last_join + Duration::from_millis(core.config.faults.reconnect_grace_ms))
    }
}
