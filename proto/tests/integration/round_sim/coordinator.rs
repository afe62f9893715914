//! The coordinator's part of a generation change, as far as members see it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use longhaul_common::id::{Generation, Round, SiteId, WorkerId};
use longhaul_common::plan::{FragmentLayout, Member as Seat, Membership};
use longhaul_common::schedule::RoundSchedule;
use longhaul_proto::control::message::{GenerationStart, Settled};
use longhaul_proto::round::{Event, settle};

#[derive(Debug)]
pub struct Coordinator {
    layout: FragmentLayout,
    schedule: RoundSchedule,
    until: Round,
    generation: Generation,
    membership: Membership,
    /// Live members of the present generation.
    live: BTreeSet<WorkerId>,
    /// While a generation ends.
    answers: Option<BTreeMap<WorkerId, Settled>>,
    /// Healed, and waiting for the next generation.
    ready: BTreeMap<WorkerId, (SiteId, Round)>,
    /// By joining worker: the earliest round reopened since it began to heal. If its state contains that
    /// round, the state may come from a dead member, and the survivors may have redone the round with another
    /// result.
    reopened: BTreeMap<WorkerId, Round>,
    /// Workers with an untrusted state, which must heal again.
    pub to_heal: Vec<WorkerId>,
}

type ToMembers = Vec<(WorkerId, Event)>;

impl Coordinator {
    pub fn start(
        layout: FragmentLayout,
        schedule: RoundSchedule,
        members: &[(WorkerId, SiteId)],
    ) -> (Self, ToMembers) {
        let until = Round(schedule.rounds());
        let generation = Generation(1);
        let seats = members.iter().map(|&(worker, site)| seat(worker, site)).collect();
        let membership = Membership::assign(generation, seats, layout);
        let live = members.iter().map(|(worker, _)| *worker).collect();
        let (answers, ready, reopened, to_heal) = (None, BTreeMap::new(), BTreeMap::new(), Vec::new());
        let this =
            Self { layout, schedule, until, generation, membership, live, answers, ready, reopened, to_heal };
        let start = GenerationStart {
            membership: this.membership.clone(),
            settlement: None,
            first_round: Round(0),
            active_before: Vec::new(),
            assignments: Vec::new(),
            until,
            schedule,
            replica: None,
            checkpoint: false,
        };
        let begin = this.live.iter().map(|&worker| (worker, Event::Begin(Box::new(start.clone())))).collect();
        (this, begin)
    }

    pub fn died(&mut self, worker: WorkerId) -> ToMembers {
        self.ready.remove(&worker);
        if self.live.remove(&worker) { self.end_generation() } else { Vec::new() }
    }

    pub fn heals(&mut self, worker: WorkerId) {
        self.reopened.insert(worker, Round(u64::MAX));
    }

    pub fn ready(&mut self, worker: WorkerId, site: SiteId, next_round: Round) -> ToMembers {
        self.ready.insert(worker, (site, next_round));
        if self.answers.is_none() { self.end_generation() } else { Vec::new() }
    }

    pub fn settled(&mut self, worker: WorkerId, settled: Settled) -> ToMembers {
        let Some(answers) = &mut self.answers else { return Vec::new() };
        if settled.generation != self.generation || !self.live.contains(&worker) {
            return Vec::new();
        }
        answers.insert(worker, settled);
        if answers.len() < self.live.len() { Vec::new() } else { self.begin_generation() }
    }

    fn end_generation(&mut self) -> ToMembers {
        self.generation = self.generation.next();
        self.answers = Some(BTreeMap::new());
        let generation = self.generation;
        self.live.iter().map(|&worker| (worker, Event::Settle { generation })).collect()
    }

    fn begin_generation(&mut self) -> ToMembers {
        let answers = self.answers.take().unwrap_or_default();
        let Some(outcome) = settle(&self.membership, self.layout, self.schedule, &answers) else {
            return Vec::new();
        };
        let open_round = outcome.settlement.open_round;
        self.reopened.values_mut().for_each(|earliest| *earliest = open_round.min(*earliest));
        let active_before: Vec<WorkerId> = self.live.iter().copied().collect();
        let mut seats: Vec<Seat> = self
            .membership
            .members()
            .iter()
            .filter(|member| self.live.contains(&member.worker))
            .cloned()
            .collect();
        for (worker, (site, next_round)) in std::mem::take(&mut self.ready) {
            if next_round > self.reopened.remove(&worker).unwrap_or(open_round) {
                self.to_heal.push(worker);
            } else {
                seats.push(seat(worker, site));
                self.live.insert(worker);
            }
        }
        self.membership = Membership::assign(self.generation, seats, self.layout);
        let start = GenerationStart {
            membership: self.membership.clone(),
            settlement: Some(outcome.settlement),
            first_round: outcome.first_round,
            active_before,
            assignments: Vec::new(),
            until: self.until,
            schedule: self.schedule,
            replica: None,
            checkpoint: false,
        };
        self.live.iter().map(|&worker| (worker, Event::Begin(Box::new(start.clone())))).collect()
    }
}

fn seat(worker: WorkerId, site: SiteId) -> Seat {
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    Seat { worker, site, lan_address: address, wan_address: address, upload_weight: 1 }
}
