//! What one member has that is in no result.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::id::{FragmentId, Generation, Round, SiteId};
use longhaul_common::plan::Membership;
use longhaul_common::schedule::RoundSchedule;
use longhaul_proto::control::message::Hash;
use longhaul_proto::round::{Command, Content, FragmentResult, FrameHeader};

use super::{Atom, FrameKey, Of, Session, compress, compress_mean, hash, learn};

/// Contributions of sites.
type Collected = Vec<(SiteId, Vec<Atom>)>;

/// By fragment, where nothing else is said.
#[derive(Debug)]
pub(super) struct Private {
    session: Session,
    pub site: SiteId,
    pub generation: Generation,
    /// The first round whose results it has not applied.
    pub next: Round,
    /// Rounds it has learnt something in.
    pub learnt: Vec<Round>,
    contributed: Option<Round>,
    /// Fragments of a round that left before its end.
    ready: BTreeSet<(Round, FragmentId)>,
    slices: BTreeMap<(Round, FragmentId), Vec<Atom>>,
    carried: Vec<Vec<Atom>>,
    residuals: Vec<Vec<Atom>>,
    /// The last compression, and the residual before it.
    backups: Vec<Option<(Round, Vec<Atom>)>>,
    /// Compressed and not sent yet.
    compressing: BTreeMap<(Round, FragmentId), Vec<Atom>>,
    owner: Owner,
    /// Results of its open round that it was told of.
    here: BTreeMap<FragmentId, Hash>,
    /// All that ever went through a residual here.
    pub through: Vec<BTreeSet<Atom>>,
}

/// What a member has of the means that it publishes as owner.
#[derive(Debug)]
struct Owner {
    residuals: Vec<Vec<Atom>>,
    /// Before each round's.
    backups: Vec<BTreeMap<Round, Vec<Atom>>>,
    /// Collected and not reduced yet.
    reducing: BTreeMap<(Round, FragmentId), Collected>,
}

impl Private {
    pub fn new(session: Session, next: Round, fragments: usize) -> Self {
        Self {
            session,
            site: SiteId(0),
            generation: Generation(0),
            next,
            learnt: Vec::new(),
            contributed: None,
            ready: BTreeSet::new(),
            slices: BTreeMap::new(),
            carried: vec![Vec::new(); fragments],
            residuals: vec![Vec::new(); fragments],
            backups: vec![None; fragments],
            compressing: BTreeMap::new(),
            owner: Owner {
                residuals: vec![Vec::new(); fragments],
                backups: vec![BTreeMap::new(); fragments],
                reducing: BTreeMap::new(),
            },
            here: BTreeMap::new(),
            through: vec![BTreeSet::new(); fragments],
        }
    }

    pub fn slice(&self, header: &FrameHeader) -> Option<Vec<Atom>> {
        self.slices.get(&(header.round, header.fragment)).cloned()
    }

    pub fn begins(&mut self, membership: &Membership) {
        let member = membership.member(self.session.0.worker);
        if let Some(member) = member.filter(|_| membership.generation > self.generation) {
            (self.generation, self.site) = (membership.generation, member.site);
            self.here.clear();
        }
    }

    pub fn ready(&mut self, round: Round, fragment: FragmentId, schedule: RoundSchedule) {
        if self.contributed < Some(round) && self.ready.insert((round, fragment)) {
            self.learn(round, fragment, schedule);
        }
    }

    pub fn contributes(&mut self, round: Round, weight: u32, schedule: RoundSchedule) {
        if self.contributed >= Some(round) {
            return;
        }
        self.contributed = Some(round);
        let ready = std::mem::take(&mut self.ready);
        if weight > 0 {
            self.learnt.push(round);
            let rest = (0..self.carried.len() as u32).map(FragmentId);
            let rest = rest.filter(|fragment| !ready.contains(&(round, *fragment)));
            rest.for_each(|fragment| self.learn(round, fragment, schedule));
        }
    }

    fn learn(&mut self, round: Round, fragment: FragmentId, schedule: RoundSchedule) {
        let carried = &mut self.carried[fragment.0 as usize];
        carried.extend(learn(self.session, round));
        if schedule.is_due(round, fragment) {
            self.slices.insert((round, fragment), std::mem::take(carried));
        }
    }

    fn carry(&mut self, fragment: FragmentId, atoms: Vec<Atom>, is_ignored: bool) {
        if !is_ignored {
            self.carried[fragment.0 as usize].extend(atoms);
        }
    }

    /// What a compression leaves to send.
    pub fn compressed(&mut self, round: Round, fragment: FragmentId) -> Vec<Atom> {
        self.compressing.remove(&(round, fragment)).unwrap_or_default()
    }

    /// The atoms of a result. Residuals of an earlier reduction of this round, and of later rounds, are void.
    pub fn reduced(&mut self, round: Round, fragment: FragmentId, result: &FragmentResult) -> Vec<Atom> {
        let collected = self.owner.reducing.remove(&(round, fragment)).unwrap_or_default();
        let named = collected.into_iter().filter(|(site, _)| result.names(*site));
        let named = named.flat_map(|(_, atoms)| atoms);
        if matches!(result.content, Content::Bundle(_)) {
            return named.collect();
        }
        let at = fragment.0 as usize;
        let present = std::mem::take(&mut self.owner.residuals[at]);
        let void = self.owner.backups[at].split_off(&round);
        let before = void.into_values().next().unwrap_or(present);
        let all: Vec<Atom> = before.iter().copied().chain(named).collect();
        self.through[at].extend(&all);
        let (sent, rest) = compress_mean(round, all);
        self.owner.residuals[at] = rest;
        self.owner.backups[at].insert(round, before);
        sent
    }

    /// Returns its atoms of a fragment that no applied result contains. An open round counts as void.
    pub fn keeps(&self, at: usize) -> impl Iterator<Item = Atom> + '_ {
        let is_open = |of: &&(Round, Vec<Atom>)| of.0 >= self.next;
        let residual =
            self.backups[at].as_ref().filter(is_open).map_or(&self.residuals[at], |(_, before)| before);
        let void = self.owner.backups[at].range(self.next..).next();
        let of_owner = void.map_or(&self.owner.residuals[at], |(_, before)| before);
        let slices = self.slices.range((self.next, FragmentId(0))..);
        let open = slices.filter(move |((_, fragment), _)| fragment.0 as usize == at);
        let open = open.flat_map(|(_, slice)| slice);
        self.carried[at].iter().chain(residual).chain(of_owner).chain(open).copied()
    }

    /// Applies a round, and notes its results where no later generation has made others.
    pub fn completes(
        &mut self,
        round: Round,
        results: &[FragmentResult],
        applied: &mut BTreeMap<Round, (Generation, Vec<Hash>)>,
    ) -> Result<(), String> {
        if round != self.next {
            return Err(format!("{round} is applied before {}", self.next));
        }
        self.next = round.next();
        let hashes: Vec<Hash> = results.iter().map(|result| hash(&result.encode())).collect();
        for (fragment, told) in std::mem::take(&mut self.here) {
            if hashes.get(fragment.0 as usize) != Some(&told) {
                return Err(format!("{fragment} of {round} is another one than was told"));
            }
        }
        match applied.get(&round) {
            Some((generation, others)) if *generation == self.generation && *others != hashes => {
                Err(format!("parity: another result of {round} than others have"))
            }
            Some((generation, _)) if *generation >= self.generation => Ok(()),
            _ => {
                applied.insert(round, (self.generation, hashes));
                Ok(())
            }
        }
    }

    /// Carries out another command, with frames that were sent. `is_ignored`: forgets what it is about.
    pub fn executes(
        &mut self,
        command: &Command,
        frames: &BTreeMap<FrameKey, Vec<Atom>>,
        is_ignored: bool,
    ) -> Result<(), String> {
        let atoms_of = |generation: &Generation, (round, fragment): (&Round, &FragmentId), of, body| {
            let atoms = frames.get(&(*generation, *round, *fragment, of, hash(body)));
            let what =
                || format!("nobody sent this in {generation} as that of {of:?}, {fragment} in {round}");
            atoms.ok_or_else(what)
        };
        match command {
            Command::Compress { generation, round, fragment, locals } => {
                let own = self.slices.get(&(*round, *fragment));
                let mut update = Vec::new();
                for local in locals {
                    match &local.body {
                        Some(body) => {
                            let of = Of::Member(local.worker);
                            update.extend(atoms_of(generation, (round, fragment), of, body)?);
                        }
                        None => update.extend(own.ok_or("its own update is released")?),
                    }
                }
                let at = fragment.0 as usize;
                let before = std::mem::take(&mut self.residuals[at]);
                let all: Vec<Atom> = before.iter().copied().chain(update).collect();
                self.through[at].extend(&all);
                let (sent, rest) = compress(*round, all);
                self.residuals[at] = rest;
                self.backups[at] = Some((*round, before));
                self.compressing.insert((*round, *fragment), sent);
            }
            Command::Retract { round, fragment } => {
                let at = fragment.0 as usize;
                let last = self.backups[at].take().filter(|(of, _)| of == round);
                let (_, before) = last.ok_or("not the last compression is retracted")?;
                if !is_ignored {
                    self.residuals[at] = before;
                }
            }
            Command::CarryOver { round, fragment } => {
                let slice = self.slices.remove(&(*round, *fragment));
                let slice = slice.ok_or("a slice is carried over that is not there")?;
                self.carry(*fragment, slice, is_ignored);
            }
            Command::MoveResidual { fragment } => {
                let residual = std::mem::take(&mut self.residuals[fragment.0 as usize]);
                self.carry(*fragment, residual, is_ignored);
            }
            Command::MoveOwnerResidual { fragment, void_from } => {
                let at = fragment.0 as usize;
                let present = std::mem::take(&mut self.owner.residuals[at]);
                let void = std::mem::take(&mut self.owner.backups[at]).split_off(void_from);
                self.carry(*fragment, void.into_values().next().unwrap_or(present), is_ignored);
            }
            Command::Reduce { generation, round, fragment, contributions } => {
                let mut collected = Vec::new();
                for each in contributions {
                    let of = Of::Site(each.site);
                    let atoms = atoms_of(generation, (round, fragment), of, &each.body)?;
                    collected.push((each.site, atoms.clone()));
                }
                self.owner.reducing.insert((*round, *fragment), collected);
            }
            Command::ResultHere { round, fragment, result } => {
                let is_first = self.here.insert(*fragment, hash(&result.encode())).is_none();
                if *round != self.next || !is_first {
                    return Err(format!("{fragment} of {round} is told of twice, or too early"));
                }
            }
            Command::Release { round } => self.slices.retain(|(of, _), _| of != round),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::WorkerId;
    use longhaul_common::schedule::Changes;
    use longhaul_proto::round::Local;

    use super::*;
    use crate::bus::Process;

    const SCHEDULE: RoundSchedule = RoundSchedule {
        warmup_rounds: 0,
        warmup_every: 1,
        every: 1,
        overlap: 1,
        groups: 1,
        exchanges: 1,
        steps: 9,
        changes: Changes::NONE,
    };

    fn member(number: u32) -> Private {
        let process = Process { worker: WorkerId(number), incarnation: 1 };
        Private::new((process, 0), Round(2), 1)
    }

    #[test]
    fn a_round_that_differs_in_one_member_is_found() {
        let (mut one, mut other, mut applied) = (member(1), member(2), BTreeMap::new());
        let result = FragmentResult { contributors: vec![(SiteId(1), 3)], ..FragmentResult::nothing() };
        one.completes(Round(2), std::slice::from_ref(&result), &mut applied).unwrap();
        let broken = other.completes(Round(2), &[FragmentResult::nothing()], &mut applied).unwrap_err();
        assert!(broken.starts_with("parity") && broken.contains("r2"), "{broken}");
    }

    #[test]
    fn a_round_that_is_applied_twice_is_found_without_a_second_member() {
        let (mut one, mut applied) = (member(1), BTreeMap::new());
        one.completes(Round(2), &[], &mut applied).unwrap();
        assert!(one.completes(Round(2), &[], &mut applied).unwrap_err().contains("before r3"));
    }

    /// At the end of a run, the result of its last compression may not be there.
    #[test]
    fn a_member_has_all_parts_of_an_open_round_once() {
        let (mut member, generation, fragment) = (member(1), Generation(1), FragmentId(0));
        let session = member.session;
        let kept = |member: &Private| member.keeps(0).collect::<BTreeSet<Atom>>();
        let mut before = BTreeSet::new();
        for round in [2, 3].map(Round) {
            member.contributes(round, 1, SCHEDULE);
            let all: BTreeSet<Atom> = before.into_iter().chain(learn(session, round)).collect();
            assert_eq!(kept(&member), all, "contributed, {round}");
            let own = Local { worker: session.0.worker, weight: 1, body: None };
            let compress = Command::Compress { generation, round, fragment, locals: vec![own] };
            member.executes(&compress, &BTreeMap::new(), false).unwrap();
            assert_eq!((kept(&member), member.keeps(0).count()), (all.clone(), all.len()), "open, {round}");
            member.completes(round, &[FragmentResult::nothing()], &mut BTreeMap::new()).unwrap();
            member.executes(&Command::Release { round }, &BTreeMap::new(), false).unwrap();
            let sent = member.compressed(round, fragment);
            before = kept(&member);
            assert!(sent.len() + before.len() == all.len() && before.is_subset(&all), "complete, {round}");
        }
    }
}
