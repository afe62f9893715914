//! The reductions of a generation, in the thread that owns its collective.

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

/// Longest wait of a new generation's members for one another. All learn of it within moments; a member with a large update to encode takes seconds.
const JOIN_MAX: Duration = Duration::from_secs(15);
/// Longest time of one reduction after all members have arrived, besides the vector's time at [`SLOWEST_LINK`].
const REDUCTION_MAX: Duration = Duration::from_secs(30);
/// Bytes per second: a third of 1 Gb/s.
const SLOWEST_LINK: u64 = 40_000_000;
/// Longest wait of members for a slower device. A dead member is noticed otherwise, by its connection or by the coordinator, which begins another generation.
const PEERS_MAX: Duration = Duration::from_secs(600);

/// Parameters of a reduction job.
pub(crate) struct SiteSetup {
    pub generation: Generation,
    pub members: Vec<RingMember>,
    pub rank: usize,
    /// Values of the model.
    pub values: u64,
    pub way: WithinSite,
    /// For NCCL.
    pub gpu: Option<usize>,
}

/// Parameters of a member's connection to its site.
#[derive(Debug)]
pub struct SiteJoin<'a> {
    /// All members.
    pub members: &'a [RingMember],
    /// This member's rank.
    pub rank: usize,
    /// Generation.
    pub session: u64,
    /// Transport.
    pub way: WithinSite,
    /// GPU of this member.
    pub gpu: Option<usize>,
    /// Longest time of one reduction after all have arrived.
    pub call_max: Duration,
    /// Longest wait for the others.
    pub join_max: Duration,
    /// Ends all waiting.
    pub stop: Stop,
}

/// A [`SiteJob`]'s environment.
pub trait SiteLink {
    /// Connects to the other members.
    ///
    /// # Errors
    /// The others are absent or unreachable.
    fn join(&self, join: &SiteJoin<'_>) -> anyhow::Result<Box<dyn Collective>>;
    /// Records an activity until the returned guard is dropped.
    fn begin(&self, activity: Activity) -> Ongoing;
    /// Counts bytes sent to another member.
    fn sent(&self, bytes: u64);
    /// Sends an event to the synchroniser, which may have ended.
    fn tell(&self, event: SiteEvent);
}

/// The handle of a generation's [`SiteJob`]. After its drop, the job ends within moments.
pub(crate) struct SiteHandle {
    slot: Arc<Slot>,
    stop: Stop,
}

/// End of a collective.
#[derive(Debug, thiserror::Error)]
enum SiteError {
    #[error(transparent)]
    Join(#[from] anyhow::Error),
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A member reports impossible numbers.
    #[error(
        "{worker} reports {ready} of the {count} fragments of a round, of which {reduced} are reduced; make all workers \
         run the same version"
    )]
    Said { worker: WorkerId, ready: u32, reduced: usize, count: usize },
}

impl SiteHandle {
    /// Creates a job and its handle.
    pub fn new(setup: SiteSetup) -> (Self, SiteJob) {
        let (slot, stop) = (Arc::new(Slot::default()), Stop::default());
        let handle = Self { slot: Arc::clone(&slot), stop: stop.clone() };
        (handle, SiteJob { setup, slot, stop })
    }

    /// Hands over an update or a part of it; replaces a waiting one of an older round.
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

/// Counts for the log.
#[derive(Default)]
struct Tally {
    rounds: u64,
    /// Rounds among these that were reduced in several parts.
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
    /// Connects to the others and reduces with them, until its handle is dropped or a member fails. Blocks, so it needs a thread.
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

    /// Reduces a round with the others while they are at the same one, each part once all have it. Returns the next request; `None` at the end.
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
        // A silent member may have nothing; it receives frames directly.
        let word = Said { round, samples, ready: vector.ready() as u32 }.to_word();
        met.collective.exchange(word, self.reduction_max())?;
        self.tell(met.link, SiteNews::Confirmed { round });
        Ok(self.slot.take(round.next()))
    }

    /// Exchanges progress with the others until all are at one round.
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
                // A member at a later round holds the results of the earlier ones.
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

    /// Computes the mean of the fragments that all have.
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
            // For every range but its own, a member sends one sum.
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

/// The connected members.
struct Met<'a> {
    link: &'a dyn SiteLink,
    collective: Box<dyn Collective>,
}

/// Outcome of an exchange.
enum Agreed {
    /// All have the fragments up to this turn, with these numbers of samples by rank.
    Part { to: usize, samples_of: Vec<u32> },
    /// Others are at this later round.
    Passed { newest: Round },
}
