//! The accounts at the end of a world.

use std::collections::BTreeSet;

use longhaul_common::id::{FragmentId, Generation, Round};

use super::member::Private;
use super::{Accounts, Atom, Atoms, LANES, Session, learn};

impl Atoms {
    /// Whether each atom is there at most once, and each of those who are here at the end is there, unless it went through a residual of another.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self) -> Result<(), String> {
        let accounts = self.lock();
        if let Some(violation) = accounts.violations.first() {
            return Err(violation.clone());
        }
        let lived = accounts.members.iter().filter(|(session, _)| !accounts.ended.contains(session));
        let Some(end) = lived.map(|(_, member)| (member.generation, member.next)).max() else {
            return Ok(());
        };
        (0..accounts.fragments as usize).try_for_each(|at| accounts.check_fragment(at, end))
    }
}

impl Accounts {
    /// Whether it is a member of the last generation that has gone through to the end.
    fn is_here(&self, session: &Session, member: &Private, end: (Generation, Round)) -> bool {
        (member.generation, member.next) == end && !self.ended.contains(session)
    }

    fn check_fragment(&self, at: usize, end: (Generation, Round)) -> Result<(), String> {
        let here = || self.members.iter().filter(|(session, member)| self.is_here(session, member, end));
        let private = here().flat_map(|(_, member)| member.keeps(at));
        let mut present = BTreeSet::new();
        for atom in self.state(at, end.1).chain(private) {
            if !present.insert(atom) {
                return Err(format!("exactly once: {atom:?} of fragment {at} is there twice"));
            }
        }
        for (session, member) in here() {
            let count = present.iter().filter(|atom| atom.session == *session).count();
            if count == member.learnt.len() * LANES as usize {
                continue;
            }
            let all = member.learnt.iter().flat_map(|round| learn(*session, *round));
            for atom in all.filter(|atom| !present.contains(atom)) {
                let mut gone = self.members.iter().filter(|(of, member)| !self.is_here(of, member, end));
                if !gone.any(|(_, other)| other.through[at].contains(&atom)) {
                    return Err(format!("conservation: {atom:?} of fragment {at} is lost"));
                }
            }
        }
        Ok(())
    }

    /// All atoms of a fragment that were applied.
    fn state(&self, at: usize, end: Round) -> impl Iterator<Item = Atom> + '_ {
        let results = self.applied.range(..end).filter_map(move |(round, (generation, hashes))| {
            let made = self.results.get(&(*round, FragmentId(at as u32), *hashes.get(at)?))?;
            made.range(..=generation).next_back().map(|(_, atoms)| atoms)
        });
        results.flatten().copied()
    }
}
