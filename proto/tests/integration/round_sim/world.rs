//! Virtual time, a network that delays and reorders but loses nothing, and workers that die.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_common::id::{FragmentId, Round, SiteId, WorkerId};
use longhaul_common::plan::FragmentLayout;
use longhaul_proto::control::message::Settled;
use longhaul_proto::round::{Config, DeadlineConfig, Event, Frame, Member, Violation};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::coordinator::Coordinator;
use super::node::{Device, Effect, Node};
use super::scenario::{Fault, Scenario};

/// Far more than any progressing scenario needs.
const OCCURRENCES_MAX: usize = 300_000;

const DEADLINE: DeadlineConfig = DeadlineConfig {
    floor: Duration::from_millis(15),
    ceiling: Duration::from_millis(80),
    mads: 4.0,
    apart_every: 3,
};

#[derive(Debug)]
enum Occurrence {
    ToNode(WorkerId, Event),
    DeviceFinished(WorkerId),
    FragmentFinished(WorkerId, Round, FragmentId),
    Timer(WorkerId),
    PullArrives { to: WorkerId, from: WorkerId, round: Round, fragment: FragmentId },
    Answered(WorkerId, Settled),
    Dies(WorkerId),
    CutOff(WorkerId),
    DeathNoticed(WorkerId),
    Heals(WorkerId, SiteId),
    Ready(WorkerId),
    StartsOver(WorkerId),
}

#[derive(Debug)]
pub struct World {
    pub scenario: Scenario,
    pub nodes: BTreeMap<WorkerId, Node>,
    /// Taken for dead, though they may continue.
    pub cut: BTreeSet<WorkerId>,
    pub lost: Vec<WorkerId>,
    pub accusations: Vec<(WorkerId, Violation)>,
    /// The largest number of frames in a member's memory.
    pub frames_held_max: usize,
    /// Frames sent in the run.
    pub frames: usize,
    layout: FragmentLayout,
    coordinator: Coordinator,
    rng: ChaCha8Rng,
    now: Duration,
    agenda: BTreeMap<(Duration, usize), Occurrence>,
    occurrences: usize,
    /// Control streams preserve order.
    control_until: BTreeMap<WorkerId, Duration>,
}

impl World {
    /// Plays a scenario to its end; fails if it does not end.
    pub fn play(scenario: Scenario) -> Result<Self, String> {
        let mut world = Self::new(scenario);
        let mut played = 0;
        while let Some(((time, _), occurrence)) = world.agenda.pop_first() {
            world.now = time;
            world.happen(occurrence);
            if world.is_over() {
                return Ok(world);
            }
            played += 1;
            if played == OCCURRENCES_MAX {
                return Err(format!("no end in sight at {:?}: {}", world.now, world.progress()));
            }
        }
        Err(format!("everybody waits at {:?}: {}", world.now, world.progress()))
    }

    fn new(scenario: Scenario) -> Self {
        let layout = FragmentLayout { values: u64::from(scenario.fragments), fragment_values: 1 };
        let seats: Vec<_> = (0..scenario.sites * scenario.members)
            .map(|at| (WorkerId(at + 1), SiteId(at / scenario.members)))
            .collect();
        let (coordinator, begin) = Coordinator::start(layout, scenario.schedule(), &seats);
        let mut world = Self {
            nodes: BTreeMap::new(),
            cut: BTreeSet::new(),
            lost: Vec::new(),
            accusations: Vec::new(),
            frames_held_max: 0,
            frames: 0,
            layout,
            coordinator,
            rng: ChaCha8Rng::seed_from_u64(scenario.seed),
            now: Duration::ZERO,
            agenda: BTreeMap::new(),
            occurrences: 0,
            control_until: BTreeMap::new(),
            scenario,
        };
        for (worker, site) in seats.iter().copied() {
            let mut node = world.new_node(worker, site, Round(0));
            node.sabotage = world.scenario.sabotage.filter(|_| worker == WorkerId(1));
            world.nodes.insert(worker, node);
        }
        world.tell(begin);
        for fault in world.scenario.faults.clone() {
            match fault {
                Fault::At(at_ms, worker) => world.at(ms(at_ms), Occurrence::Dies(worker)),
                Fault::Cut(at_ms, worker) => world.at(ms(at_ms), Occurrence::CutOff(worker)),
                Fault::BeforeEvent(..) | Fault::SenderOf(_) | Fault::ReceiverOf(_) | Fault::Stuck(..) => {}
            }
        }
        for (worker, (at_ms, site)) in
            (seats.len() as u32 + 1..).map(WorkerId).zip(world.scenario.joiners.clone())
        {
            world.at(ms(at_ms), Occurrence::Heals(worker, site));
        }
        world
    }

    fn new_node(&self, worker: WorkerId, site: SiteId, open_round: Round) -> Node {
        let schedule = self.scenario.schedule();
        let config = Config { schedule, deadline: DEADLINE };
        let member = Member::new(worker, site, self.layout, open_round, config);
        Node::new(worker, site, member, self.layout.count() as usize, self.scenario.form, schedule)
    }

    /// Returns the live workers.
    pub fn live(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values().filter(|node| node.alive && !self.cut.contains(&node.worker))
    }

    fn is_over(&self) -> bool {
        let end = Round(self.scenario.rounds);
        self.live().all(|node| node.next_apply == end && node.member.generation().is_some())
    }

    fn progress(&self) -> String {
        let line = |node: &Node| {
            format!(
                "{} open {} {:?} {:?}",
                node.worker,
                node.member.open_round(),
                node.device,
                node.member.generation()
            )
        };
        self.live().map(line).collect::<Vec<_>>().join("; ")
    }

    fn happen(&mut self, occurrence: Occurrence) {
        match occurrence {
            Occurrence::ToNode(worker, event) => self.deliver(worker, event),
            Occurrence::DeviceFinished(worker) => {
                let Some(node) = self.nodes.get_mut(&worker) else { return };
                if let Device::Computing(round) = node.device {
                    node.device = Device::Finished(round);
                }
                self.run_device(worker);
            }
            Occurrence::FragmentFinished(worker, round, fragment) => {
                let now = self.now;
                self.maybe_dies(worker);
                let Some(node) = self.nodes.get_mut(&worker).filter(|n| n.device == Device::Computing(round))
                else {
                    return;
                };
                let effects = node.finish_fragment(now, round, fragment);
                self.carry_out(worker, effects);
            }
            Occurrence::Timer(worker) => {
                if self.nodes[&worker].member.poll_timeout().is_some_and(|due| due <= self.now) {
                    self.deliver(worker, Event::Timeout);
                }
            }
            Occurrence::PullArrives { to, from, round, fragment } => {
                self.serve_pull(to, from, round, fragment)
            }
            Occurrence::Answered(worker, settled) => {
                let messages = self.coordinator.settled(worker, settled);
                self.tell(messages);
                for worker in std::mem::take(&mut self.coordinator.to_heal) {
                    let site = self.nodes[&worker].site;
                    self.after(1_000..5_000, Occurrence::Heals(worker, site));
                }
            }
            Occurrence::Dies(worker) => self.kill(worker),
            Occurrence::CutOff(worker) => {
                if self.may_lose(worker) {
                    self.cut.insert(worker);
                    self.after(1_000..100_000, Occurrence::Dies(worker));
                    self.after(0..1_000, Occurrence::DeathNoticed(worker));
                }
            }
            Occurrence::DeathNoticed(worker) => {
                let messages = self.coordinator.died(worker);
                self.tell(messages);
            }
            Occurrence::StartsOver(worker) => self.start_over(worker),
            Occurrence::Heals(worker, site) => self.heal(worker, site),
            Occurrence::Ready(worker) => {
                let node = &self.nodes[&worker];
                if node.alive && !self.cut.contains(&worker) {
                    let messages = self.coordinator.ready(worker, node.site, node.next_apply);
                    self.tell(messages);
                }
            }
        }
    }

    /// A new worker takes over the state of one in the run.
    fn heal(&mut self, worker: WorkerId, site: SiteId) {
        let Some(donor) = self.live().find(|node| node.member.generation().is_some()) else {
            return self.after(1_000..5_000, Occurrence::Heals(worker, site));
        };
        let mut node = self.new_node(worker, site, donor.next_apply);
        node.state.clone_from(&donor.state);
        node.applied.clone_from(&donor.applied);
        self.nodes.insert(worker, node);
        self.coordinator.heals(worker);
        self.after(1_000..60_000, Occurrence::Ready(worker));
    }

    /// Whether the run can lose this worker: it must keep at least one.
    fn may_lose(&self, worker: WorkerId) -> bool {
        let others = self.live().filter(|node| node.worker != worker && node.member.generation().is_some());
        self.nodes.get(&worker).is_some_and(|node| node.alive) && others.count() > 0
    }

    fn kill(&mut self, worker: WorkerId) {
        if !self.cut.contains(&worker) && !self.may_lose(worker) {
            return;
        }
        if let Some(node) = self.nodes.get_mut(&worker) {
            node.alive = false;
            self.after(1_000..50_000, Occurrence::DeathNoticed(worker));
        }
    }

    fn deliver(&mut self, worker: WorkerId, event: Event) {
        self.maybe_dies(worker);
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&worker).filter(|node| node.alive) else { return };
        let effects = node.handle(now, event);
        self.carry_out(worker, effects);
        self.run_device(worker);
    }

    /// Kills a worker if its next event is the one at which it dies.
    fn maybe_dies(&mut self, worker: WorkerId) {
        let Some(handled) = self.nodes.get(&worker).map(|node| node.handled) else { return };
        let dies = |fault: &Fault| matches!(fault, Fault::BeforeEvent(who, nth) if *who == worker && *nth == handled);
        if self.scenario.faults.iter().any(dies) {
            self.kill(worker);
        }
    }

    /// Advances the device as far as possible.
    fn run_device(&mut self, worker: WorkerId) {
        loop {
            let (now, synchronous) = (self.now, self.scenario.synchronous);
            let weight = if self.rng.random_bool(0.05) { 0 } else { self.rng.random_range(1..5) };
            let Some(node) = self.nodes.get_mut(&worker).filter(|node| node.alive) else { return };
            let open = node.member.open_round();
            let effects = match node.device {
                Device::Idle => {
                    let Some(round) = node.member.next_round().filter(|&next| !synchronous || next <= open)
                    else {
                        break;
                    };
                    node.device = Device::Computing(round);
                    let effects = node.handle(now, Event::Computing { round });
                    let times =
                        self.scenario.slow.filter(|(slow, _)| *slow == worker).map_or(1, |(_, times)| times);
                    if self.scenario.streams(worker) {
                        node.stream(weight);
                        let layout = self.layout;
                        for fragment in layout.fragments() {
                            let finished = Occurrence::FragmentFinished(worker, round, fragment);
                            self.after(1_000 * times..14_000 * times, finished);
                        }
                    }
                    self.after(8_000 * times..14_000 * times, Occurrence::DeviceFinished(worker));
                    effects
                }
                // The device waits for the previous round within this one's steps.
                Device::Finished(round) if round <= open => {
                    node.device = Device::Idle;
                    node.contribute(now, round, weight)
                }
                Device::Computing(_) | Device::Finished(_) => break,
            };
            self.carry_out(worker, effects);
        }
        let Some(node) = self.nodes.get(&worker) else { return };
        self.frames_held_max = self.frames_held_max.max(node.member.frames_held());
        if let Some(due) = node.member.poll_timeout() {
            self.at(due.max(self.now + Duration::from_micros(1)), Occurrence::Timer(worker));
        }
    }

    fn carry_out(&mut self, worker: WorkerId, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { to, frame } => self.send(to, frame),
                Effect::Answer(event) => self.after(100..2_000, Occurrence::ToNode(worker, event)),
                Effect::Pull { from, round, fragment } => {
                    let delay = self.delay(from);
                    let pull = Occurrence::PullArrives { to: from, from: worker, round, fragment };
                    self.at(self.now + delay, pull);
                }
                Effect::Settled(settled) => {
                    // The reply must not overtake an earlier one.
                    let time = self.in_order(worker);
                    self.at(time, Occurrence::Answered(worker, settled));
                }
                Effect::Lost => {
                    self.lost.push(worker);
                    self.start_over(worker);
                }
                Effect::Accused(accused, violation) => self.accusations.push((accused, violation)),
            }
        }
    }

    /// A worker that can no longer follow drops its state and joins anew.
    fn start_over(&mut self, worker: WorkerId) {
        if self.may_lose(worker) {
            self.kill(worker);
            let site = self.nodes[&worker].site;
            self.after(1_000..5_000, Occurrence::Heals(WorkerId(1_000 + self.lost.len() as u32), site));
        } else {
            self.after(1_000..5_000, Occurrence::StartsOver(worker));
        }
    }

    fn send(&mut self, to: WorkerId, frame: Frame) {
        let nth = self.frames;
        self.frames += 1;
        let mut stuck = Duration::ZERO;
        for fault in self.scenario.faults.clone() {
            match fault {
                Fault::Stuck(n, longer_ms) if n == nth => stuck = ms(longer_ms),
                Fault::SenderOf(n) if n == nth => self.kill(frame.from),
                Fault::ReceiverOf(n) if n == nth => self.kill(to),
                _ => {}
            }
        }
        if self.nodes[&frame.from].alive {
            let delay = self.delay(to) + stuck;
            self.at(self.now + delay, Occurrence::ToNode(to, Event::Frame(frame)));
        }
    }

    fn serve_pull(&mut self, to: WorkerId, from: WorkerId, round: Round, fragment: FragmentId) {
        let holder = self.nodes.get(&to).filter(|node| node.alive);
        let event = match holder.and_then(|node| node.member.lookup(round, fragment)) {
            Some((body, hash)) => Event::Pulled { round, fragment, body, hash },
            None => Event::PullFailed { round, fragment, from: to },
        };
        let delay = self.delay(from);
        self.at(self.now + delay, Occurrence::ToNode(from, event));
    }

    fn tell(&mut self, messages: Vec<(WorkerId, Event)>) {
        for (worker, event) in messages {
            let time = self.in_order(worker);
            self.at(time, Occurrence::ToNode(worker, event));
        }
    }

    /// Returns the arrival time of a control message sent now.
    fn in_order(&mut self, worker: WorkerId) -> Duration {
        let time =
            (self.now + self.delay(worker)).max(self.control_until.get(&worker).copied().unwrap_or_default());
        self.control_until.insert(worker, time);
        time
    }

    fn delay(&mut self, to: WorkerId) -> Duration {
        let usual = self.rng.random_range(500..10_000);
        let jam = if self.rng.random_bool(0.03) { 20 } else { 1 };
        let distance = self
            .scenario
            .distant
            .filter(|(worker, _)| *worker == to)
            .map_or(0, |(_, distance_ms)| distance_ms);
        Duration::from_micros(usual * jam) + ms(distance)
    }

    fn after(&mut self, range_us: std::ops::Range<u64>, occurrence: Occurrence) {
        let delay = Duration::from_micros(self.rng.random_range(range_us));
        self.at(self.now + delay, occurrence);
    }

    fn at(&mut self, time: Duration, occurrence: Occurrence) {
        self.occurrences += 1;
        self.agenda.insert((time, self.occurrences), occurrence);
    }
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}
