//! A member of the run, as a state machine.

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

/// Configuration shared by all members of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Fragments synchronised in each round.
    pub schedule: RoundSchedule,
    /// Owners' wait for late sites.
    pub deadline: DeadlineConfig,
}

/// One worker's side of the round protocol.
///
/// Calls: [`Self::handle`] an event, then [`Self::poll_command`] until it returns `None`;
/// [`Self::poll_timeout`] returns the time of the next [`Event::Timeout`]. The rest may be read at any time
/// between.
///
/// Memory: results of [`super::RESULTS_KEPT_ROUNDS`] + 1 + [`super::ROUNDS_AHEAD_MAX`] rounds, or of
/// [`super::SMALL_RESULTS_KEPT_ROUNDS`] if together no larger than the model; one local update per member of
/// the site for each uploaded fragment; one contribution per site for each owned fragment; and a bounded
/// number of frames and bytes of the next generation. An event causes at most one command per kept round,
/// fragment and peer.
#[derive(Debug)]
pub struct Member {
    me: WorkerId,
    site: SiteId,
    layout: FragmentLayout,
    schedule: RoundSchedule,
    now: Duration,
    /// `None` until the first generation.
    duties: Option<Arc<Duties>>,
    /// The next generation, once the present one has ended.
    settling: Option<Generation>,
    /// The device's round; `None` before its first.
    computing: Option<Round>,
    /// First round of this member.
    starts_at: Option<Round>,
    /// Weights contributed to incomplete rounds.
    contributed: BTreeMap<Round, u32>,
    last_contributed: Option<Round>,
    /// Finished fragments of the device's round, or of a round completed without it.
    ready: Ready,
    results: Results,
    /// Fragments of a round whose results were adopted before this member contributed: they lack its update,
    /// even if they name its site.
    without_me: (Round, BTreeSet<FragmentId>),
    /// By fragment.
    uploads: Vec<Upload>,
    /// Of the fragments that this member owns.
    collections: BTreeMap<FragmentId, Collection>,
    /// First non-empty arrivals of open collections.
    arrivals: Arrivals,
    /// Fragments for which the caller may keep an owner's residual.
    reduced: BTreeSet<FragmentId>,
    deadline: Deadline,
    pulls: Pulls,
    /// Results that came too early to keep, with their senders: for at most as many rounds as peers keep
    /// them.
    missed: BTreeMap<(Round, FragmentId), WorkerId>,
    early: EarlyFrames,
    commands: VecDeque<Command>,
    dropped: Dropped,
    accusations: u32,
    /// Whether this member is too far behind to follow.
    lost: bool,
}

impl Member {
    /// Creates a member that has the synchronised state of all rounds before `open_round`, and no generation
    /// yet.
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
            // Only the caller knows of residuals from an earlier process.
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

    /// Handles an event. `now` counts from any fixed instant and never decreases.
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

    /// Returns the next command.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// Returns the time of the next [`Event::Timeout`], on the clock of [`Self::handle`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.running()?;
        self.next_deadline().into_iter().chain(self.pulls.next_start()).min()
    }

    /// Returns the round that the device may start after its current one. `None`: it must wait for
    /// [`Event::Begin`] or for results, or the generation's last round has started. (The overlap may delay it
    /// further: without one, a round starts when the previous one is applied.)
    #[must_use]
    pub fn next_round(&self) -> Option<Round> {
        let duties = self.running()?;
        let next = self.computing.map_or(self.starts_at?, Round::next).max(self.open_round());
        // The round before the previous one must be applied: only one round is in flight while another is
        // computed.
        (next < duties.until && next <= self.open_round().next()).then_some(next)
    }

    /// Returns this member's first round; `None` before its first generation. It may become earlier until the
    /// device starts.
    #[must_use]
    pub fn first_round(&self) -> Option<Round> {
        self.starts_at
    }

    /// Returns the first round with missing results.
    #[must_use]
    pub fn open_round(&self) -> Round {
        self.results.open()
    }

    /// Returns the present generation; `None`: not begun, or ended.
    #[must_use]
    pub fn generation(&self) -> Option<Generation> {
        self.running().map(|duties| duties.generation())
    }

    /// Returns the samples behind this member's update of a round of the present generation; 0 if it sits the
    /// round out. `None`: not ready, or this member is inactive.
    #[must_use]
    pub fn weight_in(&self, round: Round) -> Option<u32> {
        let duties = self.running()?;
        self.whole_weight(&duties, round)
    }

    /// Returns the bytes and hash of a result, for a peer that pulls it.
    #[must_use]
    pub fn lookup(&self, round: Round, fragment: FragmentId) -> Option<(Bytes, Hash)> {
        self.results.get(round, fragment).map(|held| (held.bytes.clone(), held.hash))
    }

    /// Returns the members on which the open round's results depend, once this member has contributed: for
    /// results that it makes, the uploaders of sites that have not delivered; for results that it forwards
    /// within its site, the owners. It receives the others from its own site. Empty without a generation.
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
                        collection.lacks(sites).filter_map(|site| duties.membership.uploader(site, fragment)),
                    );
                }
                None if duties.uploads(fragment) => awaited.extend(duties.owner(fragment)),
                None => {}
            }
        }
        awaited.remove(&self.me);
        awaited
    }

    /// Returns the frames dropped since the start.
    #[must_use]
    pub fn dropped(&self) -> &Dropped {
        &self.dropped
    }

    /// Returns the present duties, unless the generation has ended.
    fn running(&self) -> Option<Arc<Duties>> {
        self.duties.clone().filter(|_| self.settling.is_none())
    }

    fn upload_mut(&mut self, fragment: FragmentId) -> Option<&mut Upload> {
        self.uploads.get_mut(fragment.0 as usize)
    }

    /// Returns the number of results, local updates, contributions and early frames in memory.
    #[must_use]
    pub fn frames_held(&self) -> usize {
        let locals: usize = self.uploads.iter().map(Upload::held).sum();
        let contributions: usize = self.collections.values().map(Collection::held).sum();
        self.results.held() + locals + contributions + self.early.held()
    }

    /// Reports once per generation that this member is too far behind.
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
