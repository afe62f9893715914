//! A simple model of a worker: it trains by noting which positions it saw, and a "model" is the list of results it applied.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher};
use std::sync::Arc;
use std::time::Duration;

use longhaul_common::id::{FragmentId, Round, SiteId, WorkerId};
use longhaul_common::sampler::Positions;
use longhaul_common::timeline::Timeline;
use longhaul_proto::control::message::{
    CheckpointOffer, CheckpointReport, GenerationStart, Hash, HeldResult, RoundReport, Settled, Settlement,
    ToCoordinator,
};

use crate::run::event::ConnectionId;

/// Rounds between checkpoints.
pub const CHECKPOINT_EVERY: u64 = 8;
/// Reports that a worker repeats when it resumes, as some may have been lost with the connection.
const REPORTS_REPEATED: usize = 128;

/// What one worker trained on in one round.
#[derive(Clone, Debug)]
pub struct Share {
    pub positions: Vec<Positions>,
}

/// A round's published result.
#[derive(Clone, Debug)]
pub struct RoundResult {
    pub id: u64,
    pub round: Round,
    pub sites: Vec<SiteId>,
    pub shares: Vec<Share>,
}

impl RoundResult {
    pub fn hash(&self) -> Hash {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&self.id.to_le_bytes());
        hash
    }
}

/// A state is what was applied, in order.
pub type Applied = Vec<Arc<RoundResult>>;

pub fn state_hash(applied: &Applied, corruption: u64) -> Hash {
    let mut hasher = DefaultHasher::new();
    applied.iter().for_each(|result| result.id.hash(&mut hasher));
    corruption.hash(&mut hasher);
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&hasher.finish().to_le_bytes());
    hash
}

/// A checkpoint, with the worker's private state.
#[derive(Clone, Debug)]
pub struct SavedState {
    pub offer: CheckpointOffer,
    pub applied: Applied,
    pub corruption: u64,
    pub carried: Vec<Share>,
}

#[derive(Debug)]
pub struct Node {
    pub worker: WorkerId,
    pub site_name: String,
    pub site: SiteId,
    pub incarnation: u64,
    /// Counts what it was told to load; the newest counts.
    pub loads: u64,
    /// Whether it has loaded that.
    pub holds: bool,
    pub running: bool,
    pub frozen: bool,
    pub connection: Option<ConnectionId>,
    /// Until then it says nothing but `Join`: reports are repeated in order afterwards.
    pub welcomed: bool,
    pub beats: u64,
    /// What others of its site have shown it, by worker: of which process, and when.
    pub signs: BTreeMap<WorkerId, (u64, Duration)>,
    /// It speaks for itself until then.
    pub speaks_until: Duration,
    pub disk: Vec<SavedState>,
    /// Whether it takes anything.
    pub has_disk: bool,
    pub generation: Option<GenerationStart>,
    pub begin_later: Option<GenerationStart>,
    pub timeline: Timeline,
    pub applied: Applied,
    pub corruption: u64,
    /// The round that the device computes.
    pub computing: Option<Round>,
    pub last_begun: Option<Round>,
    /// The first round that it was to take part in.
    pub start_at: Round,
    /// By round: computed, and not decided over by a result.
    pub trained: BTreeMap<Round, Vec<Share>>,
    pub carried: Vec<Share>,
    pub results: BTreeMap<Round, Arc<RoundResult>>,
    pub sent: Option<Round>,
    pub settling: bool,
    /// Results that are here in part, and of which the rest is on its way.
    pub partial: BTreeMap<Round, Arc<RoundResult>>,
    /// Whether results come in parts.
    pub in_parts: bool,
    /// Whether it tells of the checkpoint at its end. Not in seeds from before it did: another message makes another run of them.
    pub tells_last: bool,
    /// What others sent to it as the owner.
    pub collected: BTreeMap<Round, BTreeMap<WorkerId, Vec<Share>>>,
    pub reports: Vec<RoundReport>,
    pub skipped: Vec<Round>,
    pub finished: bool,
    pub dismissed: bool,
    /// Everything that it skipped or dropped with a residual: positions that may be missing from the results.
    pub dropped: Vec<Share>,
}

impl Node {
    pub fn new(worker: u32, site_name: &str, batch: u64) -> Self {
        Self {
            worker: WorkerId(worker),
            site_name: site_name.to_owned(),
            site: SiteId(0),
            incarnation: u64::from(worker) << 32,
            loads: 0,
            holds: false,
            running: false,
            frozen: false,
            connection: None,
            welcomed: false,
            beats: 0,
            signs: BTreeMap::new(),
            speaks_until: Duration::ZERO,
            disk: Vec::new(),
            has_disk: true,
            generation: None,
            begin_later: None,
            timeline: Timeline::new(batch),
            applied: Vec::new(),
            corruption: 0,
            computing: None,
            last_begun: None,
            start_at: Round(0),
            trained: BTreeMap::new(),
            carried: Vec::new(),
            results: BTreeMap::new(),
            sent: None,
            settling: false,
            partial: BTreeMap::new(),
            in_parts: false,
            tells_last: false,
            collected: BTreeMap::new(),
            reports: Vec::new(),
            skipped: Vec::new(),
            finished: false,
            dismissed: false,
            dropped: Vec::new(),
        }
    }

    /// Forgets what a process keeps in memory.
    pub fn reset(&mut self) {
        self.dropped.append(&mut self.carried);
        let blank = Self::new(self.worker.0, &self.site_name, self.timeline.batch);
        *self = Self {
            site: self.site,
            incarnation: self.incarnation,
            loads: self.loads + 1,
            running: self.running,
            frozen: self.frozen,
            connection: self.connection,
            welcomed: self.welcomed,
            disk: std::mem::take(&mut self.disk),
            has_disk: self.has_disk,
            in_parts: self.in_parts,
            tells_last: self.tells_last,
            dropped: std::mem::take(&mut self.dropped),
            ..blank
        };
    }

    pub fn next_round(&self) -> Round {
        Round(self.applied.len() as u64)
    }

    /// The first round whose result is not here.
    pub fn open_round(&self) -> Round {
        let mut open = self.next_round();
        while self.results.contains_key(&open) {
            open = open.next();
        }
        open
    }

    /// The first round that is made in this generation: what somebody has of those before is pulled, and made by nobody else, as a real member has it (`round::duties`).
    pub fn first_made(&self) -> Round {
        let settlement = self.generation.as_ref().and_then(|start| start.settlement.as_ref());
        settlement.map_or(Round(0), first_open).max(self.open_round())
    }

    pub fn is_active(&self, worker: WorkerId, round: Round) -> bool {
        let Some(start) = &self.generation else { return false };
        let member = start.membership.member(worker).is_some();
        member && (round >= start.first_round || start.active_before.contains(&worker))
    }

    /// With one fragment, a round whose result is here is complete. Of several, some may be: then the round is open, and they are told.
    pub fn settled(&self, generation: longhaul_common::id::Generation) -> Settled {
        let open_round = self.open_round();
        let computing = self.last_begun.unwrap_or(Round(open_round.0.saturating_sub(1)));
        let held = |result: &Arc<RoundResult>| HeldResult {
            fragment: FragmentId(0),
            hash: result.hash(),
            sites: result.sites.clone(),
        };
        let results = self.partial.get(&open_round).map(held).into_iter().collect();
        Settled { generation, open_round, computing, results }
    }

    pub fn begin(&mut self, start: GenerationStart) {
        // Whoever has not begun yet may be wanted earlier than it was told first, never later.
        let told_before = self.generation.as_ref().map(|_| self.start_at);
        self.start_at = told_before.unwrap_or(start.first_round).min(start.first_round);
        if told_before.is_none() {
            self.skipped.extend((self.start_at.0..self.next_round().0).map(Round));
        }
        for assignment in &start.assignments {
            self.timeline.push(assignment.clone());
        }
        if let Some(settlement) = &start.settlement {
            let (open, adopted) = (settlement.open_round, settlement.results.first());
            self.results.retain(|&round, _| round < open);
            let partial = std::mem::take(&mut self.partial);
            self.results.extend(partial.into_iter().filter(|(round, result)| {
                *round < open
                    || *round == open && adopted.is_some_and(|adopted| adopted.hash == result.hash())
            }));
        }
        self.collected.clear();
        self.sent = None;
        self.settling = false;
        self.generation = Some(start);
    }

    /// Applies what has come and is due; says so.
    pub fn apply(&mut self) -> Vec<ToCoordinator> {
        let mut messages = Vec::new();
        while let Some(result) = self.results.get(&self.next_round()).cloned() {
            let round = result.round;
            if self.computing.is_some_and(|computing| computing <= round) || self.generation.is_none() {
                break;
            }
            let mine = self.trained.remove(&round);
            if mine.is_none() && round >= self.start_at && self.is_active(self.worker, round) {
                self.skipped.push(round);
                let positions = self.share_of(round).positions;
                self.dropped.push(Share { positions });
            }
            if !result.sites.contains(&self.site) {
                self.carried.extend(mine.into_iter().flatten());
            }
            self.applied.push(result.clone());
            self.last_begun = self.last_begun.max(Some(round).filter(|_| round >= self.start_at));
            messages.push(ToCoordinator::RoundApplied(self.report(&result)));
            if round.next().0.is_multiple_of(CHECKPOINT_EVERY) {
                self.write_checkpoint();
                messages.extend(self.written().next_back());
            }
        }
        messages
    }

    /// That it has these checkpoints, the oldest first.
    pub fn written(&self) -> impl DoubleEndedIterator<Item = ToCoordinator> {
        self.disk.iter().rev().map(|SavedState { offer, .. }| {
            ToCoordinator::Checkpoint(CheckpointReport {
                next_round: offer.next_round,
                generation: offer.generation,
                path: "disk".to_owned(),
                outcome: Ok(offer.state_hash),
            })
        })
    }

    fn report(&mut self, result: &RoundResult) -> RoundReport {
        let report = RoundReport {
            generation: self.generation.as_ref().map(|g| g.membership.generation).unwrap_or_default(),
            round: result.round,
            loss: Some(1.0),
            gradient_norm: Some(0.5),
            samples: 1,
            sites: result.sites.clone(),
            residual_ratio: None,
            state_hash: state_hash(&self.applied, self.corruption),
            skipped: std::mem::take(&mut self.skipped),
            validation_loss: None,
            validation_accuracy: None,
            refused: Vec::new(),
            refused_beyond: 0,
            measured: None,
            audit: Default::default(),
        };
        self.reports.push(report.clone());
        if self.reports.len() > REPORTS_REPEATED {
            self.reports.remove(0);
        }
        report
    }

    pub fn write_checkpoint(&mut self) {
        if !self.has_disk {
            return;
        }
        let state_hash = state_hash(&self.applied, self.corruption);
        let generation =
            self.generation.as_ref().map(|start| start.membership.generation).unwrap_or_default();
        let (next_round, rank, parts) = (self.next_round(), 0, 1);
        let offer = CheckpointOffer { next_round, state_hash, private: true, rank, parts, generation };
        let (applied, carried) = (self.applied.clone(), self.carried.clone());
        self.save(SavedState { offer, applied, corruption: self.corruption, carried });
    }

    pub fn save(&mut self, saved: SavedState) {
        self.disk.insert(0, saved);
        self.disk.truncate(2);
    }

    /// The positions that it is to train on in a round.
    pub fn share_of(&self, round: Round) -> Share {
        let steps = super::schedule().steps_of(round);
        Share { positions: steps.flat_map(|step| self.timeline.positions(step, self.worker)).collect() }
    }

    /// The round that the device may begin now.
    pub fn may_begin(&self) -> Option<Round> {
        let start = self.generation.as_ref().filter(|_| !self.settling && self.computing.is_none())?;
        let next =
            self.last_begun.map_or(self.next_round(), Round::next).max(self.next_round()).max(self.start_at);
        // One round may be in flight while the next is computed.
        (next < start.until && next <= self.next_round().next()).then_some(next)
    }

    pub fn has_all(&self) -> bool {
        self.generation.as_ref().is_some_and(|start| self.next_round() >= start.until)
    }
}

/// The first round that nobody is known to have.
pub fn first_open(settlement: &Settlement) -> Round {
    if settlement.results.is_empty() { settlement.open_round } else { settlement.open_round.next() }
}
