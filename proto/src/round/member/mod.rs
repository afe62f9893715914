//! One member of the run, as a state machine.

mod contributing;
mod generation;
mod publishing;
mod receiving;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round, SiteId, WorkerId};
use longhaul_common::plan::FragmentLayout;
use longhaul_common::schedule::RoundSchedule;

use super::ACCUSATIONS_MAX;
use super::arrivals::Arrivals;
use super::collection::Collection;
use super::command::{Command, Violation};
use super::deadline::{Deadline, DeadlineConfig};
use super::dropped::Dropped;
use super::duties::Duties;
use super::early::EarlyFrames;
use super::event::Event;
use super::pulls::Pulls;
use super::ready::Ready;
use super::results::Results;
use super::upload::Upload;
use crate::control::message::Hash;

/// What all members of a run agree on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Which fragments a round synchronises.
    pub schedule: RoundSchedule,
    /// How long owners wait for late sites.
    pub deadline: DeadlineConfig,
}

/// One worker's side of the round protocol.
///
/// Calls: [`Self::handle`] an event, then [`Self::poll_command`] until there is none; [`Self::poll_timeout`]
/// says when [`Event::Timeout`] is due. The rest may be read at any time between.
///
/// Memory: results of [`super::RESULTS_KEPT_ROUNDS`] + 1 + [`super::ROUNDS_AHEAD_MAX`] rounds, or of [`super::SMALL_RESULTS_KEPT_ROUNDS`] that are no larger than the model, one local update
/// per member of the site for each fragment that it uploads, one contribution per site for each that it owns,
/// and a bounded number of frames and bytes of a generation to come. An event causes at most one command per kept round,
/// fragment and peer.
#[derive(Debug)]
pub struct Member {
    me: WorkerId,
    site: SiteId,
    layout: FragmentLayout,
    schedule: RoundSchedule,
    now: Duration,
    /// None until the first generation.
    duties: Option<Arc<Duties>>,
    /// The generation to come, while the present one has ended.
    settling: Option<Generation>,
    /// The round of the device; none before its first.
    computing: Option<Round>,
    /// The first round that this member takes part in.
    starts_at: Option<Round>,
    /// Weights contributed to rounds that are not complete.
    contributed: BTreeMap<Round, u32>,
    last_contributed: Option<Round>,
    /// What is ready of the round that the device computes, or computed when it was complete without it.
    ready: Ready,
    results: Results,
    /// Fragments of a round whose results were adopted before this member contributed to them: they are without it, also where they name its site.
    without_me: (Round, BTreeSet<FragmentId>),
    /// By fragment.
    uploads: Vec<Upload>,
    /// Of the fragments that this member owns.
    collections: BTreeMap<FragmentId, Collection>,
    /// When those that are not closed first had something in them.
    arrivals: Arrivals,
    /// Fragments of which the caller may keep an owner's residual.
    reduced: BTreeSet<FragmentId>,
    deadline: Deadline,
    pulls: Pulls,
    /// Results that came too early to be kept, and who sent them: for at most as many rounds as peers keep them.
    missed: BTreeMap<(Round, FragmentId), WorkerId>,
    early: EarlyFrames,
    commands: VecDeque<Command>,
    dropped: Dropped,
    accusations: u32,
    /// Whether this member is known to be too far behind to follow.
    lost: bool,
}

impl Member {
    /// A member that holds the synchronised state of all rounds before `open_round`, and no generation yet.
    #[must_use]
    pub fn new(
        me: WorkerId,
        site: SiteId,
        layout: FragmentLayout,
        open_round: Round,
        config: Config,
    ) -> Self {
        Self {
            me,
            site,
            layout,
            schedule: config.schedule,
            now: Duration::ZERO,
            duties: None,
            settling: None,
            computing: None,
            starts_at: None,
            contributed: BTreeMap::new(),
            last_contributed: None,
            ready: Ready::default(),
            results: Results::new(layout, config.schedule, open_round),
            without_me: (open_round, BTreeSet::new()),
            uploads: layout.fragments().map(|_| Upload::new()).collect(),
            collections: BTreeMap::new(),
            arrivals: Arrivals::default(),
            // Whether there is a residual from an earlier process, only the caller knows.
            reduced: layout.fragments().collect(),
            deadline: Deadline::new(config.deadline),
            pulls: Pulls::default(),
            missed: BTreeMap::new(),
            early: EarlyFrames::new(layout),
            commands: VecDeque::new(),
            dropped: Dropped::default(),
            accusations: 0,
            lost: false,
        }
    }

    /// Takes an event. `now` counts from any fixed instant and never goes back.
    pub fn handle(&mut self, now: Duration, event: Event) {
        self.now = now.max(self.now);
        match event {
            Event::Begin(start) => self.begin(&start),
            Event::Settle { generation } => self.settle(generation),
            Event::Computing { round } => self.computing = self.computing.max(Some(round)),
            Event::FragmentReady { round, fragment, weight } => self.fragment_ready(round, fragment, weight),
            Event::Contribute { round, weight } => self.contribute(round, weight),
            Event::Frame(frame) => self.receive(frame),
            Event::Compressed { generation, round, fragment, body } => {
                self.compressed(generation, round, fragment, body);
            }
            Event::Reduced { generation, round, fragment, result } => {
                self.reduced(generation, round, fragment, result);
            }
            Event::Pulled { round, fragment, body, hash } => self.pulled(round, fragment, body, hash),
            Event::PullFailed { round, fragment, from } => self.pull_failed(round, fragment, from),
            Event::Timeout => self.close_at_deadline(),
        }
        self.start_pulls();
    }

    /// The next thing to do.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// When [`Event::Timeout`] is due, on the clock of [`Self::handle`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.running()?;
        self.next_deadline().into_iter().chain(self.pulls.next_start()).min()
    }

    /// The round that the device may begin when it has finished the one it computes, or has none yet. None: it
    /// has to wait for [`Event::Begin`], for results, or for nothing any more, as the generation's last round
    /// is begun. (The overlap may make it wait longer: without one, a round begins when the one before it is
    /// applied.)
    #[must_use]
    pub fn next_round(&self) -> Option<Round> {
        let duties = self.running()?;
        let next = self.computing.map_or(self.starts_at?, Round::next).max(self.open_round());
        // What precedes the round before must be applied: only one round is in flight while another is computed.
        (next < duties.until && next <= self.open_round().next()).then_some(next)
    }

    /// The first round that this member takes part in; none before its first generation. It may become an earlier one
    /// until the device begins.
    #[must_use]
    pub fn first_round(&self) -> Option<Round> {
        self.starts_at
    }

    /// The first round whose results are not all here.
    #[must_use]
    pub fn open_round(&self) -> Round {
        self.results.open()
    }

    /// The generation that this member takes part in; none while it has none, or that one has ended.
    #[must_use]
    pub fn generation(&self) -> Option<Generation> {
        self.running().map(|duties| duties.generation())
    }

    /// Samples behind what this member has for a round of the present generation, 0 where it sits the round out. None: it has nothing
    /// for it yet, or takes no part in it.
    #[must_use]
    pub fn weight_in(&self, round: Round) -> Option<u32> {
        let duties = self.running()?;
        self.whole_weight(&duties, round)
    }

    /// The bytes of a result and their name, for a peer that pulls it.
    #[must_use]
    pub fn lookup(&self, round: Round, fragment: FragmentId) -> Option<(Bytes, Hash)> {
        self.results.get(round, fragment).map(|held| (held.bytes.clone(), held.hash))
    }

    /// Once this member has contributed to the open round: the other members without whom its results do not come. Of results that it makes, these are the uploaders of the sites that have
    /// not delivered; of those that it passes on within its site, the owners. Of the others it hears from members of its own site. None while there is no generation.
    #[must_use]
    pub fn awaited(&self) -> BTreeSet<WorkerId> {
        let round = self.open_round();
        let has_contributed = self.last_contributed >= Some(round);
        let Some(duties) = self.running().filter(|_| has_contributed) else { return BTreeSet::new() };
        let (sites, mut awaited) = (duties.contributing_sites(round), BTreeSet::new());
        for fragment in self.results.missing() {
            match self.collections.get(&fragment).filter(|collection| collection.round == round) {
                Some(collection) => {
                    awaited.extend(
                        collection
                            .lacks(&sites)
                            .filter_map(|site| duties.membership.uploader(site, fragment)),
                    );
                }
                None if duties.uploads(fragment) => awaited.extend(duties.owner(fragment)),
                None => {}
            }
        }
        awaited.remove(&self.me);
        awaited
    }

    /// Frames that were not taken, since the start.
    #[must_use]
    pub fn dropped(&self) -> &Dropped {
        &self.dropped
    }

    /// The present duties, unless the generation has ended.
    fn running(&self) -> Option<Arc<Duties>> {
        self.duties.clone().filter(|_| self.settling.is_none())
    }

    fn upload_mut(&mut self, fragment: FragmentId) -> Option<&mut Upload> {
        self.uploads.get_mut(fragment.0 as usize)
    }

    /// Results, local updates, contributions and frames of a generation to come that are in memory.
    #[must_use]
    pub fn frames_held(&self) -> usize {
        let locals: usize = self.uploads.iter().map(Upload::held).sum();
        let contributions: usize = self.collections.values().map(Collection::held).sum();
        self.results.held() + locals + contributions + self.early.held()
    }

    /// Says once in a generation that this member is too far behind.
    fn lose(&mut self, round: Round, fragment: FragmentId) {
        if !self.lost {
            self.lost = true;
            self.commands.push_back(Command::Lost { round, fragment });
        }
    }

    fn accuse(&mut self, worker: WorkerId, violation: Violation) {
        self.dropped.unexpected += 1;
        if self.accusations < ACCUSATIONS_MAX {
            self.accusations += 1;
            self.commands.push_back(Command::Accuse { worker, violation });
        }
    }
}
