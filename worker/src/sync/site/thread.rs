//! The thread that owns a generation's collective.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use longhaul_common::config::WithinSite;
use longhaul_common::explained::Explained;
use longhaul_common::id::{Generation, Round, WorkerId};
use tch::Device;
use tokio::sync::mpsc;

use super::said::{Said, agreed_turn};
use super::slot::{Request, Slot};
use super::vector::SiteVector;
use super::{SiteEvent, SiteNews, SitePart};
use crate::flight::What;
use crate::network::{Network, SiteDoorError};
use crate::sync::SyncEvent;
use crate::train::progress::Progress;
use longhaul_collective::{
    Collective, CollectiveError, Reduction, RingCollective, RingMember, RingSetup, Stop,
};
use longhaul_nccl::{NcclCollective, NcclReach};

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

/// What the thread starts from.
pub(super) struct SiteSetup {
    pub generation: Generation,
    pub members: Vec<RingMember>,
    pub rank: usize,
    /// Of the model.
    pub values: u64,
    pub way: WithinSite,
    /// For NCCL.
    pub device: Device,
    pub network: Arc<Network>,
    pub progress: Arc<Progress>,
    pub queue: mpsc::Sender<SyncEvent>,
}

/// The thread and the means to reach it. When this is dropped, it ends within moments; nobody waits for it, as it may be waiting for room
/// in the synchroniser's queue.
pub(super) struct SiteThread {
    slot: Arc<Slot>,
    stop: Stop,
    // None only while dropped.
    thread: Option<JoinHandle<()>>,
}

/// Why there is no collective any more.
#[derive(Debug, thiserror::Error)]
enum SiteError {
    #[error(transparent)]
    Door(#[from] SiteDoorError),
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A member says what cannot be.
    #[error(
        "{worker} says that it has {ready} of the {count} fragments of a round, of which {reduced} are reduced; let all workers \
         run the same version"
    )]
    Said { worker: WorkerId, ready: u32, reduced: usize, count: usize },
}

impl SiteThread {
    /// Starts the thread; it joins the others when the thread of the generation before has ended, as both listen at one address.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(setup: SiteSetup, before: Option<Self>) -> io::Result<Self> {
        let (slot, stop) = (Arc::new(Slot::default()), Stop::default());
        let member = SiteMember { setup, slot: Arc::clone(&slot), stop: stop.clone() };
        let before = before.and_then(|mut before| before.thread.take());
        let thread = std::thread::Builder::new().name("site".into()).spawn(move || {
            // A thread that panicked has said so on standard error.
            before.map(JoinHandle::join);
            member.run();
        })?;
        Ok(Self { slot, stop, thread: Some(thread) })
    }

    /// Hands over an update or some of it, in place of what is here of an older round and has not been begun.
    pub fn ask(&self, request: Request) {
        self.slot.put(request);
    }
}

#[cfg(test)]
impl SiteThread {
    /// Ends the thread as a failure would: when this returns, it says and does nothing any more.
    pub fn end(mut self) {
        self.stop.stop();
        self.slot.close();
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for SiteThread {
    fn drop(&mut self) {
        self.stop.stop();
        self.slot.close();
    }
}

/// The thread's side.
struct SiteMember {
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

impl SiteMember {
    fn run(self) {
        let mut tally = Tally::default();
        let ended = self.serve(&mut tally);
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
            self.tell(SiteNews::Failed(Explained(&error).to_string()));
        }
    }

    fn serve(&self, tally: &mut Tally) -> Result<(), SiteError> {
        let mut collective = self.join()?;
        tracing::debug!(
            generation = self.setup.generation.0,
            members = collective.size(),
            over = if self.setup.way == WithinSite::Nccl { "NCCL" } else { "a ring" },
            "the members of this site have joined"
        );
        let mut next = self.slot.take(Round(0));
        while let Some(request) = next.take() {
            next = self.reduce(&mut *collective, request, tally)?;
        }
        Ok(())
    }

    fn join(&self) -> Result<Box<dyn Collective>, SiteError> {
        let SiteSetup { generation, members, rank, way, device, network, .. } = &self.setup;
        let call_max = self.reduction_max();
        let (listener, tls) = network.site_door()?;
        let setup = RingSetup {
            members: members.clone(),
            rank: *rank,
            session: generation.0,
            tls,
            call_max,
            join_max: JOIN_MAX,
            stop: self.stop.clone(),
        };
        let ring = RingCollective::join(&setup, &listener)?;
        Ok(match way {
            WithinSite::Nccl => Box::new(NcclCollective::join(ring, *device, NcclReach::OneMachine)?),
            WithinSite::Ring | WithinSite::Direct => Box::new(ring),
        })
    }

    /// Reduces a round with the others while they are at the same one, each part of it when all have it. Returns the next request; none: there is
    /// none any more.
    fn reduce(
        &self,
        collective: &mut dyn Collective,
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
            let (agreed, samples_of) = match self.agree(collective, round, samples, &vector)? {
                Agreed::Part { to, samples_of } => (to, samples_of),
                Agreed::Passed { newest } => {
                    self.tell(SiteNews::Passed { round });
                    return Ok(self.slot.take(newest));
                }
            };
            self.reduce_part(collective, round, &mut vector, agreed, samples_of, tally)?;
            if vector.is_done() {
                break;
            }
        }
        tally.ended_round(round, tally.parts - parts_before);
        // Whoever is not heard of may have nothing, and is sent to directly.
        let word = Said { round, samples, ready: vector.ready() as u32 }.to_word();
        collective.exchange(word, self.reduction_max())?;
        self.tell(SiteNews::Confirmed { round });
        Ok(self.slot.take(round.next()))
    }

    /// Hears how far the others are, until all are at one round.
    fn agree(
        &self,
        collective: &mut dyn Collective,
        round: Round,
        samples: u32,
        vector: &SiteVector,
    ) -> Result<Agreed, SiteError> {
        let _waiting = self.setup.progress.begin(What::WaitForSite { round });
        let own = Said { round, samples, ready: vector.ready() as u32 };
        loop {
            let words = collective.exchange(own.to_word(), PEERS_MAX)?;
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
        collective: &mut dyn Collective,
        round: Round,
        vector: &mut SiteVector,
        to: usize,
        samples: Vec<u32>,
        tally: &mut Tally,
    ) -> Result<(), SiteError> {
        let _adding = self.setup.progress.begin(What::SumSite { round });
        let (turns, mut values) = vector.next_part(to);
        if samples.iter().any(|samples| *samples > 0) {
            let ranges = vector.layout().ranges(turns.clone());
            let own = ranges[collective.rank()].clone();
            let reduction = Reduction::Mean { samples: samples[collective.rank()] };
            collective.reduce_scatter(&mut values, &ranges, reduction)?;
            // Of every range but its own, a member sends one sum.
            let bytes = ((values.len() - own.len()) * size_of::<f32>()) as u64;
            self.setup.progress.sent(bytes, false);
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
        let fragments = vector.layout().fragments_of(collective.rank(), turns);
        let is_last = vector.is_done();
        self.tell(SiteNews::Reduced { round, part: SitePart { fragments, mean: values, samples, is_last } });
        Ok(())
    }

    fn reduction_max(&self) -> Duration {
        let bytes = self.setup.values.saturating_mul(size_of::<f32>() as u64);
        REDUCTION_MAX + Duration::from_secs(bytes / SLOWEST_LINK)
    }

    /// To the synchroniser, which may be gone.
    fn tell(&self, news: SiteNews) {
        let event = SiteEvent { generation: self.setup.generation, news };
        let _ = self.setup.queue.blocking_send(SyncEvent::Site(event));
    }
}

/// What members come to when all have spoken.
enum Agreed {
    /// All have the fragments up to this turn, and so many samples each, by rank.
    Part { to: usize, samples_of: Vec<u32> },
    /// Others are at this round, a later one.
    Passed { newest: Round },
}
