//! What a test looks at.

use longhaul_proto::round::{Dropped, EARLY_FRAMES_PER_FRAGMENT_MAX, Member, ROUNDS_AHEAD_MAX};

use super::*;
use crate::atoms::Atoms;
use crate::books::Books;

#[derive(Default)]
pub(super) struct Watch {
    /// The coordinator's reports, with the faults between them.
    pub log: Vec<String>,
    pub books: Books,
    /// `None`: nobody keeps them.
    pub atoms: Option<Atoms>,
    /// What each was told of who is out of the run.
    pub told: strangers::Told,
    /// A step that failed, or an impossible message.
    pub failure: Option<anyhow::Error>,
    /// By process: frames that it did not take, and the most that it had in memory.
    dropped: BTreeMap<Process, Dropped>,
    held_max: usize,
}

impl Watch {
    /// Where all that a process alone has ends with it.
    pub fn ends(&self, process: Process) {
        self.atoms.iter().for_each(|atoms| atoms.ends(process));
    }

    pub fn looks_at(&mut self, process: Process, member: &Member) {
        if self.atoms.is_some() {
            self.dropped.insert(process, *member.dropped());
            self.held_max = self.held_max.max(member.frames_held());
        }
    }
}

impl World {
    /// What devices have trained on, and what members have told.
    #[must_use]
    pub fn books(&self) -> &Books {
        &self.watch.books
    }

    /// What the coordinator has told, with faults between.
    #[must_use]
    pub fn log(&self) -> &[String] {
        &self.watch.log
    }

    /// Commands of the round protocol that members have carried out, by name.
    #[must_use]
    pub fn executed(&self) -> BTreeMap<&'static str, u64> {
        self.watch.atoms.as_ref().map(Atoms::executed).unwrap_or_default()
    }

    /// Rounds whose results name a site for some of their fragments, and not for others.
    #[must_use]
    pub fn rounds_in_part(&self) -> usize {
        self.watch.atoms.as_ref().map_or(0, Atoms::rounds_in_part)
    }

    /// Frames that members have not taken.
    #[must_use]
    pub fn dropped(&self) -> Dropped {
        let mut sum = Dropped::default();
        for of in self.watch.dropped.values() {
            sum.stale += of.stale;
            sum.settling += of.settling;
            sum.early_overflow += of.early_overflow;
            sum.unexpected += of.unexpected;
            sum.duplicate += of.duplicate;
            sum.late += of.late;
            sum.ahead += of.ahead;
        }
        sum
    }

    /// Does as if members forgot what the round protocol's commands of this name are about, to test the checks.
    pub fn ignore(&self, name: &'static str) {
        self.watch.atoms.iter().for_each(|atoms| atoms.ignore(name));
    }

    /// Whether the round protocol has kept its promises: nothing is lost or counts twice, nobody is accused, and memory is bounded.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_protocol(&self) -> Result<(), String> {
        let Some(atoms) = &self.watch.atoms else { return Ok(()) };
        if let Some((process, _)) = self.watch.dropped.iter().find(|(_, dropped)| dropped.unexpected > 0) {
            return Err(format!("honesty: {process:?} has accused somebody"));
        }
        let rounds = self.config.round_schedule().rounds() + ROUNDS_AHEAD_MAX + 1;
        let each = rounds as usize + 2 * self.nodes.len() + EARLY_FRAMES_PER_FRAGMENT_MAX;
        let (held, limit) = (self.watch.held_max, each * self.fragments() as usize);
        if held > limit {
            return Err(format!("bounds: {held} frames in a member's memory, more than {limit}"));
        }
        atoms.check()
    }
}
