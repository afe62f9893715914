//! One worker of the simulation: a real [`Member`], and a caller that processes atoms as the worker does
//! numbers. It panics when the member requests something impossible, such as released data.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use longhaul_common::id::{FragmentId, Round, SiteId, WorkerId};
use longhaul_common::schedule::RoundSchedule;
use longhaul_proto::control::message::{Hash, Settled};
use longhaul_proto::round::{
    Command, Contribution, Event, FragmentResult, Frame, FrameHeader, Member, Violation,
};

use super::payload::{self, Atom};
use super::scenario::Form;

/// A known bug in the caller, to test the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    AppliesTwice,
    IgnoresRetract,
    IgnoresCarryOver,
    ForgetsResiduals,
    ForgetsOwnerResiduals,
    AppliesInWrongOrder,
    NeverAnswersPulls,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Idle,
    Computing(Round),
    Finished(Round),
}

/// External effect of a command.
#[derive(Debug)]
pub enum Effect {
    Send {
        to: WorkerId,
        frame: Frame,
    },
    /// The caller's own work, which completes later.
    Answer(Event),
    Pull {
        from: WorkerId,
        round: Round,
        fragment: FragmentId,
    },
    Settled(Settled),
    Lost,
    Accused(WorkerId, Violation),
}

#[derive(Debug)]
pub struct Node {
    pub worker: WorkerId,
    pub site: SiteId,
    pub member: Member,
    pub device: Device,
    pub alive: bool,
    pub sabotage: Option<Sabotage>,
    /// Events handled.
    pub handled: usize,
    /// Commands carried out, by kind.
    pub executed: BTreeMap<&'static str, usize>,
    /// Synchronised state: all atoms applied, by fragment.
    pub state: Vec<Vec<Atom>>,
    pub applied: BTreeMap<Round, Vec<FragmentResult>>,
    /// Results reported for the open round.
    here: BTreeMap<FragmentId, FragmentResult>,
    pub next_apply: Round,
    /// Rounds with a non-empty contribution of this worker.
    pub learnt: Vec<Round>,
    /// Weight and finished fragments of the device's round, where fragments become ready one by one.
    streaming: Option<(u32, BTreeSet<FragmentId>)>,
    slices: BTreeMap<(Round, FragmentId), Vec<Atom>>,
    pub carried: Vec<Vec<Atom>>,
    pub residuals: Vec<Vec<Atom>>,
    /// By fragment: residual of the means published by this node as owner.
    pub owner_residuals: Vec<Vec<Atom>>,
    /// By fragment: the owner's residual before each reduction.
    owner_backups: Vec<BTreeMap<Round, Vec<Atom>>>,
    form: Form,
    schedule: RoundSchedule,
    /// By fragment: round of the last compression, and the residual before it.
    backups: Vec<Option<(Round, Vec<Atom>)>>,
    /// By fragment: all atoms that ever went through a residual here.
    pub compressed: Vec<BTreeSet<Atom>>,
}

impl Node {
    pub fn new(
        worker: WorkerId,
        site: SiteId,
        member: Member,
        fragments: usize,
        form: Form,
        schedule: RoundSchedule,
    ) -> Self {
        Self {
            worker,
            site,
            next_apply: member.open_round(),
            member,
            device: Device::Idle,
            alive: true,
            sabotage: None,
            handled: 0,
            executed: BTreeMap::new(),
            state: vec![Vec::new(); fragments],
            applied: BTreeMap::new(),
            here: BTreeMap::new(),
            learnt: Vec::new(),
            streaming: None,
            slices: BTreeMap::new(),
            carried: vec![Vec::new(); fragments],
            residuals: vec![Vec::new(); fragments],
            owner_residuals: vec![Vec::new(); fragments],
            owner_backups: vec![BTreeMap::new(); fragments],
            form,
            schedule,
            backups: vec![None; fragments],
            compressed: vec![BTreeSet::new(); fragments],
        }
    }

    /// Passes an event to the member and carries out its commands.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Effect> {
        self.handled += 1;
        if matches!(event, Event::Begin(_)) {
            self.here.clear();
        }
        self.member.handle(now, event);
        let mut effects = Vec::new();
        while let Some(command) = self.member.poll_command() {
            effects.extend(self.execute(command));
        }
        effects
    }

    /// Begins a round whose fragments become ready one by one.
    pub fn stream(&mut self, weight: u32) {
        self.streaming = (weight > 0).then(|| (weight, BTreeSet::new()));
    }

    /// Finishes a fragment of the current round, unless the others did not wait for it.
    pub fn finish_fragment(&mut self, now: Duration, round: Round, fragment: FragmentId) -> Vec<Effect> {
        let is_wanted =
            self.schedule.is_due(round, fragment) && round >= self.member.open_round() && self.alive;
        let Some((weight, ready)) = self.streaming.as_mut().filter(|_| is_wanted) else { return Vec::new() };
        let weight = *weight;
        if !ready.insert(fragment) {
            return Vec::new();
        }
        self.learn(round, fragment);
        self.handle(now, Event::FragmentReady { round, fragment, weight })
    }

    /// Finishes a round: contributes its update and the carry-over.
    pub fn contribute(&mut self, now: Duration, round: Round, weight: u32) -> Vec<Effect> {
        let streamed = self.streaming.take();
        let weight = streamed.as_ref().map_or(weight, |(weight, _)| *weight);
        if weight > 0 {
            self.learnt.push(round);
            let ready = streamed.map(|(_, ready)| ready).unwrap_or_default();
            let rest = (0..self.carried.len() as u32).map(FragmentId).filter(|f| !ready.contains(f));
            rest.for_each(|fragment| self.learn(round, fragment));
        }
        self.handle(now, Event::Contribute { round, weight })
    }

    fn learn(&mut self, round: Round, fragment: FragmentId) {
        let carried = &mut self.carried[fragment.0 as usize];
        carried.extend(payload::learn(self.worker, round));
        if self.schedule.is_due(round, fragment) {
            self.slices.insert((round, fragment), std::mem::take(carried));
        }
    }

    fn execute(&mut self, command: Command) -> Option<Effect> {
        *self.executed.entry(kind(&command)).or_default() += 1;
        match command {
            Command::SendLocal { to, header } => {
                let slice = payload::encode(&self.slices[&(header.round, header.fragment)]);
                Some(self.send(to, header, slice, None))
            }
            Command::Send { to, header, body, hash } => Some(self.send(to, header, body, hash)),
            Command::Compress { generation, round, fragment, locals } => {
                let own = &self.slices.get(&(round, fragment));
                let update = locals.iter().flat_map(|local| match &local.body {
                    Some(body) => payload::decode(body),
                    None => own.expect("its own update is not released").clone(),
                });
                let at = fragment.0 as usize;
                let before = std::mem::take(&mut self.residuals[at]);
                let all: Vec<Atom> = before.iter().copied().chain(update).collect();
                self.compressed[at].extend(&all);
                let (sent, rest) = payload::compress(round, all);
                self.residuals[at] = rest;
                self.backups[at] = Some((round, before));
                Some(Effect::Answer(Event::Compressed {
                    generation,
                    round,
                    fragment,
                    body: payload::encode(&sent),
                }))
            }
            Command::Retract { round, fragment } => {
                let at = fragment.0 as usize;
                let (compressed, before) = self.backups[at].take().expect("a compression is retracted once");
                assert_eq!(compressed, round, "only the last compression can be retracted");
                if self.sabotage != Some(Sabotage::IgnoresRetract) {
                    self.residuals[at] = before;
                }
                None
            }
            Command::CarryOver { round, fragment } => {
                let slice = self.slices.remove(&(round, fragment)).expect("a slice is carried over once");
                if self.sabotage != Some(Sabotage::IgnoresCarryOver) {
                    self.carried[fragment.0 as usize].extend(slice);
                }
                None
            }
            Command::MoveResidual { fragment } => {
                let at = fragment.0 as usize;
                let residual = std::mem::take(&mut self.residuals[at]);
                if self.sabotage != Some(Sabotage::ForgetsResiduals) {
                    self.carried[at].extend(residual);
                }
                None
            }
            Command::MoveOwnerResidual { fragment, void_from } => {
                let at = fragment.0 as usize;
                let present = std::mem::take(&mut self.owner_residuals[at]);
                let void = std::mem::take(&mut self.owner_backups[at]).split_off(&void_from);
                let residual = void.into_values().next().unwrap_or(present);
                if self.sabotage != Some(Sabotage::ForgetsOwnerResiduals) {
                    self.carried[at].extend(residual);
                }
                None
            }
            Command::Reduce { generation, round, fragment, contributions } => {
                let result = match self.form {
                    Form::Bundle => FragmentResult::bundle(contributions),
                    Form::Mean => self.mean(round, fragment, &contributions),
                };
                Some(Effect::Answer(Event::Reduced { generation, round, fragment, result }))
            }
            Command::Pull { .. } if self.sabotage == Some(Sabotage::NeverAnswersPulls) => None,
            Command::Pull { round, fragment, from, .. } => Some(Effect::Pull { from, round, fragment }),
            Command::ResultHere { round, fragment, result } => {
                assert_eq!(round, self.next_apply, "{}: results of the open round are told of", self.worker);
                assert_eq!(self.here.insert(fragment, result), None, "each is told of once");
                None
            }
            Command::RoundComplete { round, results } => {
                for (fragment, result) in std::mem::take(&mut self.here) {
                    assert_eq!(results[fragment.0 as usize], result, "{}: what is here stays", self.worker);
                }
                self.apply(round, results);
                None
            }
            Command::Release { round } => {
                self.slices.retain(|&(of, _), _| of != round);
                None
            }
            Command::ReportSettled(settled) => Some(Effect::Settled(settled)),
            Command::Lost { .. } => Some(Effect::Lost),
            Command::Accuse { worker, violation } => Some(Effect::Accused(worker, violation)),
        }
    }

    /// Returns the recompressed mean. Residuals of an earlier reduction of this round, and of later rounds,
    /// are void.
    fn mean(&mut self, round: Round, fragment: FragmentId, contributions: &[Contribution]) -> FragmentResult {
        let at = fragment.0 as usize;
        let present = std::mem::take(&mut self.owner_residuals[at]);
        let void = self.owner_backups[at].split_off(&round);
        let before = void.into_values().next().unwrap_or(present);
        let arrived = contributions.iter().flat_map(|contribution| payload::decode(&contribution.body));
        let all: Vec<Atom> = before.iter().copied().chain(arrived).collect();
        self.compressed[at].extend(&all);
        let (sent, rest) = payload::compress_mean(round, all);
        self.owner_residuals[at] = rest;
        self.owner_backups[at].insert(round, before);
        FragmentResult::mean(contributions, payload::encode(&sent))
    }

    fn apply(&mut self, round: Round, results: Vec<FragmentResult>) {
        assert_eq!(round, self.next_apply, "{}: rounds are applied in order", self.worker);
        self.next_apply = round.next();
        let times = if self.sabotage == Some(Sabotage::AppliesTwice) && round.0 == 1 { 2 } else { 1 };
        for (state, result) in self.state.iter_mut().zip(&results) {
            (0..times).for_each(|_| state.extend(payload::atoms_of(result)));
        }
        if self.sabotage == Some(Sabotage::AppliesInWrongOrder) {
            self.state.iter_mut().for_each(|state| state.reverse());
        }
        self.applied.insert(round, results);
    }

    fn send(&self, to: WorkerId, header: FrameHeader, body: Bytes, hash: Option<Hash>) -> Effect {
        let computed = *blake3::hash(&body).as_bytes();
        assert!(hash.is_none_or(|hash| hash == computed), "the member names bytes rightly");
        Effect::Send { to, frame: Frame { from: self.worker, header, body, hash: computed } }
    }
}

fn kind(command: &Command) -> &'static str {
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
