//! The reductions of a generation, by whoever owns its collective.

use std::sync::Arc;
use std::time::Duration;

use longhaul_collective::{Collective, CollectiveError, Reduction, RingMember, Stop};
use longhaul_common::config::WithinSite;
use longhaul_common::explained::Explained;
use longhaul_common::id::{Generation, Round, WorkerId};

use super::said::{Said, agreed_turn};
use super::slot::{Request, Slot};
use super::vector::SiteVector;
use super::{SiteEvent, SiteNews, SitePart};
use crate::activity::Activity;
use crate::outside::Ongoing;

/// How long the members of a new generation wait for one another. They are told of it within moments; who has a large update to encode
/// first takes seconds.
const JOIN_MAX: Duration = Duration::from_secs(15);
/// How long one reduction may take once all members have come to it: so long, and what the vector takes at [`SLOWEST_LINK`].
const REDUCTION_MAX: Duration = Duration::from_secs(30);
/// In bytes a second: a third of what 1 Gb/s carries.
const SLOWEST_LINK: u64 = 40_000_000;
/// How long members wait for one whose device is slower. One that is dead is noticed otherwise, by its connection or by the
/// coordinator, who begins another generation.
const PEERS_MAX: Duration = Duration::from_secs(600);

/// What the reduction starts from.
pub(crate) struct SiteSetup {
    pub generation: Generation,
    pub members: Vec<RingMember>,
    pub rank: usize,
    /// Of the model.
    pub values: u64,
    pub way: WithinSite,
    /// For NCCL.
    pub gpu: Option<usize>,
}

/// How a member meets those of its site.
#[derive(Debug)]
pub struct SiteJoin<'a> {
    /// All of them.
    pub members: &'a [RingMember],
    /// Which of them it is.
    pub rank: usize,
    /// The generation.
    pub session: u64,
    /// Over what.
    pub way: WithinSite,
    /// The GPU that this member computes on.
    pub gpu: Option<usize>,
    /// How long one reduction may take once all have come to it.
    pub call_max: Duration,
    /// How long to wait for the others.
    pub join_max: Duration,
    /// Ends all waiting.
    pub stop: Stop,
}

/// What a [`SiteJob`] has to do with others.
pub trait SiteLink {
    /// Meets the other members.
    ///
    /// # Errors
    /// They did not come, or cannot be reached.
    fn join(&self, join: &SiteJoin<'_>) -> anyhow::Result<Box<dyn Collective>>;
    /// Something begins that is recorded, until what is returned is dropped.
    fn begin(&self, activity: Activity) -> Ongoing;
    /// So many bytes went to another member.
    fn sent(&self, bytes: u64);
    /// Tells the synchroniser, which may be gone.
    fn tell(&self, event: SiteEvent);
}

/// The means to reach a generation's [`SiteJob`]. When this is dropped, that ends within moments.
pub(crate) struct SiteHandle {
    slot: Arc<Slot>,
    stop: Stop,
}

/// Why there is no collective any more.
#[derive(Debug, thiserror::Error)]
enum SiteError {
    #[error(transparent)]
    Join(#[from] anyhow::Error),
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A member says what cannot be.
    #[error(
        "{worker} says that it has {ready} of the {count} fragments of a round, of which {reduced} are reduced; let all workers \
         run the same version"
    )]
    Said { worker: WorkerId, ready: u32, reduced: usize, count: usize },
}

impl SiteHandle {
    /// A job, and the means to reach it.
    pub fn new(setup: SiteSetup) -> (Self, SiteJob) {
        let (slot, stop) = (Arc::new(Slot::default()), Stop::default());
        let handle = Self { slot: Arc::clone(&slot), stop: stop.clone() };
        (handle, SiteJob { setup, slot, stop })
    }

    /// Hands over an update or some of it, in place of what is here of an older round and has not been begun.
    pub fn ask(&self, request: Request) {
        self.slot.put(request);
    }
}

impl Drop for SiteHandle {
    fn drop(&mut self) {
        self.stop.stop();
        self.slot.close();
    }
}

/// The reductions of a generation, one after the other.
pub struct SiteJob {
    setup: SiteSetup,
    slot: Arc<Slot>,
    stop: Stop,
}

/// What was done, for the log.
#[derive(Default)]
struct Tally {
    rounds: u64,
    /// Of these, rounds whose parts were reduced one after the other.
    in_parts: u64,
    parts: u64,
    bytes: u64,
}

impl Tally {
    fn ended_round(&mut self, round: Round, parts: u64) {
        self.rounds += 1;
        if parts > 1 {
            if self.in_parts == 0 {
                tracing::info!(
                    round = round.0,
                    parts,
                    "the first round that this site reduced in parts is done"
                );
            }
            self.in_parts += 1;
        }
    }
}

impl SiteJob {
    /// Meets the others and reduces with them, until its handle is dropped or one of them fails: a thread's work, as it waits for them.
    pub fn run(self, link: &dyn SiteLink) {
        let mut tally = Tally::default();
        let ended = self.serve(link, &mut tally);
        let generation = self.setup.generation.0;
        tracing::info!(
            generation,
            rounds = tally.rounds,
            in_parts = tally.in_parts,
            parts = tally.parts,
            bytes = tally.bytes,
            "the reduction within the site has ended"
        );
        if let Err(error) = ended
            && !self.stop.is_stopped()
        {
            self.tell(link, SiteNews::Failed(Explained(&error).to_string()));
        }
    }

    fn serve(&self, link: &dyn SiteLink, tally: &mut Tally) -> Result<(), SiteError> {
        let mut met = Met { link, collective: self.join(link)? };
        tracing::debug!(
            generation = self.setup.generation.0,
            members = met.collective.size(),
            over = if self.setup.way == WithinSite::Nccl { "NCCL" } else { "a ring" },
            "the members of this site have joined"
        );
        let mut next = self.slot.take(Round(0));
        while let Some(request) = next.take() {
            next = self.reduce(&mut met, request, tally)?;
        }
        Ok(())
    }

    fn join(&self, link: &dyn SiteLink) -> Result<Box<dyn Collective>, SiteError> {
        let SiteSetup { generation, members, rank, way, gpu, .. } = &self.setup;
        let join = SiteJoin {
            members,
            rank: *rank,
            session: generation.0,
            way: *way,
            gpu: *gpu,
            call_max: self.reduction_max(),
            join_max: JOIN_MAX,
            stop: self.stop.clone(),
        };
        Ok(link.join(&join)?)
    }

    /// Reduces a round with the others while they are at the same one, each part of it when all have it. Returns the next request; none: there is
    /// none any more.
    fn reduce(
        &self,
        met: &mut Met<'_>,
        request: Request,
        tally: &mut Tally,
    ) -> Result<Option<Request>, SiteError> {
        let Request { round, layout, pieces, samples } = request;
        let mut vector = SiteVector::new(layout);
        vector.take(pieces);
        let parts_before = tally.parts;
        loop {
            while !vector.has_more() {
                match self.slot.take(round) {
                    Some(more) if more.round == round => vector.take(more.pieces),
                    // The round is decided without the rest.
                    other => return Ok(other),
                }
            }
            let (agreed, samples_of) = match self.agree(met, round, samples, &vector)? {
                Agreed::Part { to, samples_of } => (to, samples_of),
                Agreed::Passed { newest } => {
                    self.tell(met.link, SiteNews::Passed { round });
                    return Ok(self.slot.take(newest));
                }
            };
            self.reduce_part(met, round, &mut vector, agreed, samples_of, tally)?;
            if vector.is_done() {
                break;
            }
        }
        tally.ended_round(round, tally.parts - parts_before);
        // Whoever is not heard of may have nothing, and is sent to directly.
        let word = Said { round, samples, ready: vector.ready() as u32 }.to_word();
        met.collective.exchange(word, self.reduction_max())?;
        self.tell(met.link, SiteNews::Confirmed { round });
        Ok(self.slot.take(round.next()))
    }

    /// Hears how far the others are, until all are at one round.
    fn agree(
        &self,
        met: &mut Met<'_>,
        round: Round,
        samples: u32,
        vector: &SiteVector,
    ) -> Result<Agreed, SiteError> {
        let _waiting = met.link.begin(Activity::WaitForSite { round });
        let own = Said { round, samples, ready: vector.ready() as u32 };
        loop {
            let words = met.collective.exchange(own.to_word(), PEERS_MAX)?;
            let said: Vec<Said> = words.into_iter().map(Said::from_word).collect();
            let newest = said.iter().map(|said| said.round).max().unwrap_or(round);
            if round < newest {
                // Who is at a later round holds the results of those before.
                return Ok(Agreed::Passed { newest });
            }
            if said.iter().all(|said| said.round == newest) {
                let to = agreed_turn(&said, vector).map_err(|rank| SiteError::Said {
                    worker: self.setup.members[rank].worker,
                    ready: said[rank].ready,
                    reduced: vector.reduced(),
                    count: vector.layout().count(),
                })?;
                return Ok(Agreed::Part { to, samples_of: said.iter().map(|said| said.samples).collect() });
            }
        }
    }

    /// Takes the mean of the fragments that all have.
    fn reduce_part(
        &self,
        met: &mut Met<'_>,
        round: Round,
        vector: &mut SiteVector,
        to: usize,
        samples: Vec<u32>,
        tally: &mut Tally,
    ) -> Result<(), SiteError> {
        let _adding = met.link.begin(Activity::SumSite { round });
        let (turns, mut values) = vector.next_part(to);
        if samples.iter().any(|samples| *samples > 0) {
            let ranges = vector.layout().ranges(turns.clone());
            let own = ranges[met.collective.rank()].clone();
            let reduction = Reduction::Mean { samples: samples[met.collective.rank()] };
            met.collective.reduce_scatter(&mut values, &ranges, reduction)?;
            // Of every range but its own, a member sends one sum.
            let bytes = ((values.len() - own.len()) * size_of::<f32>()) as u64;
            met.link.sent(bytes);
            if tally.parts == 0 {
                tracing::info!(
                    round = round.0,
                    bytes,
                    "the first reduction with the members of this site is done"
                );
            }
            tally.parts += 1;
            tally.bytes += bytes;
            values.truncate(own.end);
            values.drain(..own.start);
        } else {
            values.clear();
        }
        let fragments = vector.layout().fragments_of(met.collective.rank(), turns);
        let is_last = vector.is_done();
        let part = SitePart { fragments, mean: values, samples, is_last };
        self.tell(met.link, SiteNews::Reduced { round, part });
        Ok(())
    }

    fn reduction_max(&self) -> Duration {
        let bytes = self.setup.values.saturating_mul(size_of::<f32>() as u64);
        REDUCTION_MAX + Duration::from_secs(bytes / SLOWEST_LINK)
    }

    fn tell(&self, link: &dyn SiteLink, news: SiteNews) {
        link.tell(SiteEvent { generation: self.setup.generation, news });
    }
}

/// The others, once they have met.
struct Met<'a> {
    link: &'a dyn SiteLink,
    collective: Box<dyn Collective>,
}

/// What members come to when all have spoken.
enum Agreed {
    /// All have the fragments up to this turn, and so many samples each, by rank.
    Part { to: usize, samples_of: Vec<u32> },
    /// Others are at this round, a later one.
    Passed { newest: Round },
}
