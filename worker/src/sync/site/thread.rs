//! The thread that owns a generation's collective.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use longhaul_common::config::WithinSite;
use longhaul_common::explained::Explained;
use longhaul_common::id::{Generation, Round};
use tch::Device;
use tokio::sync::mpsc;

use super::slot::{Request, Slot};
use super::{SiteEvent, SiteNews};
use crate::collective::{
    Collective, CollectiveError, NcclCollective, NcclReach, Reduction, RingCollective, RingMember, RingSetup,
    Stop, Word,
};
use crate::network::{Network, SiteDoorError};
use crate::sync::SyncEvent;
use crate::train::progress::Progress;

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

    /// Hands over an update, in place of an older one that has not been begun.
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
    bytes: u64,
}

impl SiteMember {
    fn run(self) {
        let mut tally = Tally::default();
        let ended = self.serve(&mut tally);
        let generation = self.setup.generation.0;
        tracing::info!(
            generation,
            rounds = tally.rounds,
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
        let mut from = Round(0);
        while let Some(request) = self.slot.take(from) {
            from = self.reduce(&mut *collective, request, tally)?;
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

    /// Reduces a round with the others, if all are at the same one. Returns the first round that may be next.
    fn reduce(
        &self,
        collective: &mut dyn Collective,
        request: Request,
        tally: &mut Tally,
    ) -> Result<Round, CollectiveError> {
        let Request { round, layout, mut values, samples } = request;
        let samples_of: Vec<u32> = loop {
            let words = collective.exchange(to_word(round, samples), PEERS_MAX)?;
            let said: Vec<_> = words.into_iter().map(from_word).collect();
            let newest = said.iter().map(|(round, _)| *round).max().unwrap_or(round);
            if round < newest {
                // Who is at a later round holds the results of those before.
                self.tell(SiteNews::Passed { round });
                return Ok(newest);
            }
            if said.iter().all(|(round, _)| *round == newest) {
                break said.into_iter().map(|(_, samples)| samples).collect();
            }
        };
        if samples_of.iter().any(|samples| *samples > 0) {
            collective.reduce_scatter(&mut values, &layout.ranges, Reduction::Mean { samples })?;
            let own = layout.ranges[collective.rank()].clone();
            // Of every range but its own, a member sends one sum.
            let bytes = ((values.len() - own.len()) * size_of::<f32>()) as u64;
            self.setup.progress.sent(bytes, false);
            if tally.rounds == 0 {
                tracing::info!(
                    round = round.0,
                    bytes,
                    "the first reduction with the members of this site is done"
                );
            }
            tally.rounds += 1;
            tally.bytes += bytes;
            values.truncate(own.end);
            values.drain(..own.start);
        } else {
            values.clear();
        }
        self.tell(SiteNews::Reduced { round, layout, mean: values, samples: samples_of });
        // Whoever is not heard of may have nothing, and is sent to directly.
        collective.exchange(to_word(round, samples), self.reduction_max())?;
        self.tell(SiteNews::Confirmed { round });
        Ok(round.next())
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

/// What a member says before a reduction: which round, and how many samples it has for it.
fn to_word(round: Round, samples: u32) -> Word {
    let mut word = [0; 16];
    word[..8].copy_from_slice(&round.0.to_le_bytes());
    word[8..12].copy_from_slice(&samples.to_le_bytes());
    word
}

fn from_word(word: Word) -> (Round, u32) {
    let (round, rest) = word.split_at(8);
    let long = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    // Four bytes make a u32.
    (Round(long(round)), long(&rest[..4]) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_survives_its_bytes() {
        let word = to_word(Round(0x0102_0304_0506_0708), 0x0a0b_0c0d);
        assert_eq!(word, [8, 7, 6, 5, 4, 3, 2, 1, 0xd, 0xc, 0xb, 0xa, 0, 0, 0, 0]);
        assert_eq!(from_word(word), (Round(0x0102_0304_0506_0708), 0x0a0b_0c0d));
    }
}
