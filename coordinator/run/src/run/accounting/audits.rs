//! Results of the workers' audits of their own frames (decision 0014).

use std::collections::BTreeMap;

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::{AUDIT_MAX, Audit};
use serde::{Deserialize, Serialize};

use crate::run::accounting::Accounting;
use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::views::status::AuditStatus;

/// Audits of the workers present.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Audits {
    fragments: u64,
    worst: BTreeMap<WorkerId, f32>,
}

impl Audits {
    pub fn status(&self) -> AuditStatus {
        let worst = self.worst.values().copied().fold(0.0, f32::max);
        AuditStatus { fragments: self.fragments, worst }
    }

    /// Workers whose differences exceed rounding.
    pub fn wrong(&self) -> impl Iterator<Item = WorkerId> {
        self.worst.iter().filter(|(_, worst)| **worst > AUDIT_MAX).map(|(worker, _)| *worker)
    }

    /// A worker is not here any more.
    pub fn forget(&mut self, worker: WorkerId) {
        self.worst.remove(&worker);
    }
}

impl Accounting {
    /// Records a worker's comparison of its sent and kept values with the originals.
    pub(crate) fn note_audit(&mut self, core: &mut Core, worker: WorkerId, audit: Audit) {
        if audit.fragments == 0 {
            return;
        }
        self.audits.fragments += u64::from(audit.fragments);
        let known = self.audits.worst.entry(worker).or_default();
        let was_right = *known <= AUDIT_MAX;
        // NaN counts as the largest difference.
        let worst = if audit.worst.is_nan() { f32::MAX } else { audit.worst.min(f32::MAX) };
        *known = known.max(worst);
        if was_right && worst > AUDIT_MAX {
            let text = format!(
                "its sent and kept values do not add up to the input, by {worst:e} of a fragment's largest value: \
                 its hardware is faulty, or this release has a bug"
            );
            core.notice(Severity::Error, Some(worker), text);
        }
    }
}
