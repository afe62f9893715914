//! Accounts of what members learn, part by part: whether all of it is in the model, once, or still on its way.
//!
//! Instead of numbers they have *atoms*, each of which a process learns in one round. They follow the round protocol's commands, as the member's
//! arithmetic does: a sum is a concatenation, and compression keeps some atoms and leaves the rest as a residual. Frames are known by their bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round, SiteId, WorkerId};
use longhaul_common::schedule::RoundSchedule;
use longhaul_proto::control::message::Hash;
use longhaul_proto::round::{Command, Event, FragmentResult, FrameHeader};

use crate::bus::Process;

mod member;
mod verdict;

use member::Private;

/// A process, and how often it has taken up a state before.
type Session = (Process, u32);

/// Learnt in a session, in a round, as one of [`LANES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Atom {
    session: Session,
    round: Round,
    lane: u64,
}

/// Whose a frame is: a member's local update, or a site's contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Of {
    Member(WorkerId),
    Site(SiteId),
}

/// A frame, by its bytes. One of another generation is another one.
type FrameKey = (Generation, Round, FragmentId, Of, Hash);

/// Atoms of a fragment that a process learns in a round.
const LANES: u64 = 3;

/// The accounts of a world. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Atoms(Arc<Mutex<Accounts>>);

#[derive(Debug, Default)]
struct Accounts {
    fragments: u32,
    schedule: Option<RoundSchedule>,
    members: BTreeMap<Session, Private>,
    frames: BTreeMap<FrameKey, Vec<Atom>>,
    /// By generation that has made them.
    results: BTreeMap<(Round, FragmentId, Hash), BTreeMap<Generation, Vec<Atom>>>,
    /// Results that were applied, and by whose generation.
    applied: BTreeMap<Round, (Generation, Vec<Hash>)>,
    /// Completed rounds whose results name a site for some of their fragments.
    in_part: BTreeSet<Round>,
    /// Commands carried out, by name.
    executed: BTreeMap<&'static str, u64>,
    /// A command that is carried out wrongly, to test the checks.
    ignored: Option<&'static str>,
    ended: BTreeSet<Session>,
    violations: Vec<String>,
}

impl Atoms {
    /// Of runs with so many fragments that are due by this schedule.
    pub fn new(fragments: u32, schedule: RoundSchedule) -> Self {
        let schedule = Some(schedule.for_fragments(fragments));
        Self(Arc::new(Mutex::new(Accounts { fragments, schedule, ..Accounts::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, Accounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does as if members forgot what commands of this name are about.
    pub fn ignore(&self, name: &'static str) {
        self.lock().ignored = Some(name);
    }

    /// Commands that members have carried out, by name.
    pub fn executed(&self) -> BTreeMap<&'static str, u64> {
        self.lock().executed.clone()
    }

    /// Rounds whose results name a site for some of their fragments, and not for others.
    pub fn rounds_in_part(&self) -> usize {
        self.lock().in_part.len()
    }

    /// A member begins with the results of all rounds before this one.
    pub fn starts(&self, process: Process, next: Round) {
        let mut accounts = self.lock();
        let (fragments, before) = (accounts.fragments as usize, accounts.last_session(process));
        let session = (process, before.map_or(0, |(_, before)| before + 1));
        accounts.ended.extend(before);
        accounts.members.insert(session, Private::new(session, next, fragments));
    }

    /// A process ends, with all that it alone has.
    pub fn ends(&self, process: Process) {
        let accounts = &mut *self.lock();
        accounts.ended.extend(accounts.last_session(process));
    }

    /// A local update leaves.
    pub fn sends_local(&self, process: Process, header: &FrameHeader, body: &Bytes) {
        let accounts = &mut *self.lock();
        let slice = accounts.member(process).and_then(|member| member.slice(header));
        if let Some(slice) = slice.filter(|_| header.weight > 0) {
            let of = Of::Member(process.worker);
            let key = (header.generation, header.round, header.fragment, of, hash(body));
            accounts.frames.insert(key, slice);
        }
    }

    /// A member is about to handle an event.
    pub fn hears(&self, process: Process, event: &Event) {
        let accounts = &mut *self.lock();
        let Some(schedule) = accounts.schedule else { return };
        let Some(member) = accounts.member(process) else { return };
        match event {
            Event::Begin(start) => member.begins(&start.membership),
            Event::FragmentReady { round, fragment, .. } => member.ready(*round, *fragment, schedule),
            Event::Contribute { round, weight } => member.contributes(*round, *weight, schedule),
            Event::Compressed { generation, round, fragment, body } => {
                let (of, sent) = (Of::Site(member.site), member.compressed(*round, *fragment));
                accounts.frames.insert((*generation, *round, *fragment, of, hash(body)), sent);
            }
            Event::Reduced { generation, round, fragment, result } => {
                let sent = member.reduced(*round, *fragment, result);
                let key = (*round, *fragment, hash(&result.encode()));
                accounts.results.entry(key).or_default().insert(*generation, sent);
            }
            _ => {}
        }
    }

    /// A member carries out a command.
    pub fn decides(&self, process: Process, command: &Command) {
        let accounts = &mut *self.lock();
        *accounts.executed.entry(name_of(command)).or_default() += 1;
        let is_ignored = accounts.ignored == Some(name_of(command));
        let (Some(session), Some(schedule)) = (accounts.last_session(process), accounts.schedule) else {
            return;
        };
        if let Command::RoundComplete { round, results } = command
            && is_in_part(results, |fragment| schedule.is_due(*round, fragment))
        {
            accounts.in_part.insert(*round);
        }
        let (frames, applied) = (&accounts.frames, &mut accounts.applied);
        let Some(member) = accounts.members.get_mut(&session) else { return };
        let outcome = match command {
            Command::RoundComplete { round, results } => member.completes(*round, results, applied),
            command => member.executes(command, frames, is_ignored),
        };
        accounts.violations.extend(outcome.err().map(|what| format!("{process:?}: {what}")));
    }
}

impl Accounts {
    fn last_session(&self, process: Process) -> Option<Session> {
        self.members.range((process, 0)..=(process, u32::MAX)).next_back().map(|(session, _)| *session)
    }

    fn member(&mut self, process: Process) -> Option<&mut Private> {
        let session = self.last_session(process)?;
        self.members.get_mut(&session)
    }
}

fn is_in_part(results: &[FragmentResult], is_due: impl Fn(FragmentId) -> bool) -> bool {
    let due = (0..).map(FragmentId).zip(results).filter(|(fragment, _)| is_due(*fragment));
    let sites: BTreeSet<Vec<SiteId>> = due.map(|(_, result)| result.sites().collect()).collect();
    sites.len() > 1
}

/// What a session learns in a round.
fn learn(session: Session, round: Round) -> impl Iterator<Item = Atom> {
    (0..LANES).map(move |lane| Atom { session, round, lane })
}

/// The parts that a compression keeps, and the rest. The kept lanes alternate, so that all are sent eventually.
fn compress(round: Round, atoms: Vec<Atom>) -> (Vec<Atom>, Vec<Atom>) {
    atoms.into_iter().partition(|atom| (atom.lane + round.0).is_multiple_of(2))
}

/// The same of an owner, whose residual is another one.
fn compress_mean(round: Round, atoms: Vec<Atom>) -> (Vec<Atom>, Vec<Atom>) {
    atoms.into_iter().partition(|atom| (atom.lane / 2 + atom.round.0 + round.0).is_multiple_of(2))
}

fn hash(bytes: &Bytes) -> Hash {
    *blake3::hash(bytes).as_bytes()
}

fn name_of(command: &Command) -> &'static str {
    match command {
        Command::SendLocal { .. } => "send local",
        Command::Send { .. } => "send",
        Command::Compress { .. } => "compress",
        Command::Retract { .. } => "retract",
        Command::CarryOver { .. } => "carry over",
        Command::MoveResidual { .. } => "move residual",
        Command::MoveOwnerResidual { .. } => "move owner residual",
        Command::Reduce { .. } => "reduce",
        Command::Pull { .. } => "pull",
        Command::ResultHere { .. } => "result here",
        Command::RoundComplete { .. } => "round complete",
        Command::Release { .. } => "release",
        Command::ReportSettled(_) => "report settled",
        Command::Lost { .. } => "lost",
        Command::Accuse { .. } => "accuse",
    }
}
