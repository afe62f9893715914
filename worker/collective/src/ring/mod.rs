//! Reduction over TCP and TLS, in a ring.

mod accept;
mod clock;
mod dial;
mod frame;
mod hello;
mod link;
#[cfg(any(test, feature = "loopback"))]
pub mod loopback;
mod memory;
mod schedule;
mod setup;
mod stop;
#[cfg(test)]
mod tests;
mod tls;
mod visitor;
mod wire;

use std::net::TcpListener;
use std::ops::Range;
use std::thread;
use std::time::Duration;

pub use frame::CHUNK_BYTES;
pub use setup::{RingMember, RingSetup};
pub use stop::Stop;
pub use tls::{SiteTls, SiteTlsError};

use self::accept::accept;
pub use self::clock::{Limit, left};
use self::dial::dial;
use self::frame::Kind;
use self::memory::{Bytes, Memory, Values};
use self::setup::peer;
use self::wire::{Wire, place};
use super::ranges::{even_ranges, objection};
use super::statement::{Call, STATEMENT_BYTES, Statement};
use super::{Collective, CollectiveError, Peer, Reduction, Word};

/// Longest time until a connection is identified. An honest one needs milliseconds, more on a busy machine; connections to a neighbour that is not joining
/// yet are retried after this.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// A member of a ring: it sends to the next rank and receives from the previous one, over mutual TLS.
pub struct RingCollective {
    members: Vec<RingMember>,
    rank: usize,
    call_max: Duration,
    state: State,
}

enum State {
    /// The only member.
    Alone,
    Joined(Box<Wire>),
    Broken {
        cause: String,
    },
}

impl RingCollective {
    /// Connects to the neighbours, and returns when all members have joined. The listener, at this member's address, becomes non-blocking, and can serve
    /// further sessions.
    ///
    /// # Errors
    /// [`CollectiveError`]: an invalid list of members, or an absent member.
    pub fn join(setup: &RingSetup, listener: &TcpListener) -> Result<Self, CollectiveError> {
        let identity = setup.identity()?;
        let limit = Limit::of(setup.join_max);
        let mut ring = Self {
            members: setup.members.clone(),
            rank: setup.rank,
            call_max: setup.call_max,
            state: State::Alone,
        };
        if setup.members.len() > 1 {
            let (dialled, accepted) = thread::scope(|scope| {
                let dialling = thread::Builder::new()
                    .name("site-dial".to_owned())
                    .spawn_scoped(scope, || dial(&identity, limit.until))
                    .map_err(CollectiveError::Thread)?;
                let accepted = accept(&identity, listener, limit.until);
                let dialled = dialling.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                Ok::<_, CollectiveError>((dialled, accepted))
            })?;
            let wire = Wire::new((identity.next(), dialled?), (identity.previous(), accepted?), &setup.stop);
            ring.state = State::Joined(Box::new(wire.map_err(CollectiveError::Thread)?));
        }
        ring.within(limit, |ring, limit| ring.agree(Statement::plain(Call::Barrier), limit))?;
        Ok(ring)
    }

    /// Returns all members' statements about a call that works elsewhere.
    ///
    /// # Errors
    /// [`CollectiveError`]
    pub fn agree_on(&mut self, statement: Statement) -> Result<Vec<Statement>, CollectiveError> {
        self.call(|ring, limit| ring.agree(statement, limit))
    }

    /// Ends the connections, so that the others notice, and keeps the cause for later calls.
    pub fn break_off(&mut self, cause: &CollectiveError) {
        if !matches!(self.state, State::Broken { .. }) {
            self.state = State::Broken { cause: cause.to_string() };
        }
    }

    /// Returns the longest time of a call.
    #[must_use]
    pub fn call_max(&self) -> Duration {
        self.call_max
    }

    fn call<T>(
        &mut self,
        work: impl FnOnce(&mut Self, Limit) -> Result<T, CollectiveError>,
    ) -> Result<T, CollectiveError> {
        let limit = Limit::of(self.call_max);
        self.within(limit, work)
    }

    fn within<T>(
        &mut self,
        limit: Limit,
        work: impl FnOnce(&mut Self, Limit) -> Result<T, CollectiveError>,
    ) -> Result<T, CollectiveError> {
        if let State::Broken { cause } = &self.state {
            return Err(CollectiveError::Broken { cause: cause.clone() });
        }
        let done = work(self, limit);
        if let Err(error) = &done {
            self.break_off(error);
        }
        done
    }

    /// Exchanges statements with all members, and compares them.
    fn agree(&mut self, ours: Statement, limit: Limit) -> Result<Vec<Statement>, CollectiveError> {
        let size = self.members.len();
        let ranges: Vec<_> =
            (0..size).map(|rank| rank * STATEMENT_BYTES..(rank + 1) * STATEMENT_BYTES).collect();
        let mut bytes = vec![0; size * STATEMENT_BYTES];
        bytes[ranges[self.rank].clone()].copy_from_slice(&ours.to_bytes());
        self.transfer(Kind::Agree, &mut Bytes(&mut bytes), limit, |place| place.gather(&ranges))?;
        let (chunks, _) = bytes.as_chunks::<STATEMENT_BYTES>();
        let statements: Vec<_> = chunks.iter().map(Statement::from_bytes).collect();
        match statements.iter().position(|theirs| !ours.agrees_with(theirs)) {
            None => Ok(statements),
            Some(rank) => Err(CollectiveError::Disagree {
                peer: self.peer(rank),
                ours: ours.to_string(),
                theirs: statements[rank].to_string(),
            }),
        }
    }

    fn transfer<M: Memory>(
        &mut self,
        kind: Kind,
        memory: &mut M,
        limit: Limit,
        schedule: impl FnOnce(schedule::RingPosition) -> schedule::Schedule,
    ) -> Result<(), CollectiveError> {
        let place = place::<M>(self.rank, self.members.len());
        match &mut self.state {
            State::Joined(wire) => wire.transfer(kind, &schedule(place), memory, limit),
            State::Alone | State::Broken { .. } => Ok(()),
        }
    }

    fn reduce(
        &mut self,
        values: &mut [f32],
        ranges: &[Range<usize>],
        reduction: Reduction,
        gather: bool,
    ) -> Result<u64, CollectiveError> {
        self.call(|ring, limit| {
            ring.check(ranges, values.len())?;
            let statements = ring.agree(Statement::reduce(reduction, values.len(), ranges), limit)?;
            let (share, samples) = share(reduction, &statements)?;
            let mut values = Values::new(values, share);
            ring.transfer(Kind::Reduce, &mut values, limit, |place| place.reduce(ranges, gather))?;
            Ok(samples)
        })
    }

    fn check(&self, ranges: &[Range<usize>], len: usize) -> Result<(), CollectiveError> {
        objection(ranges, len, self.members.len()).map_or(Ok(()), |why| Err(CollectiveError::Ranges(why)))
    }

    fn peer(&self, rank: usize) -> Peer {
        peer(&self.members, rank)
    }
}

/// Returns the factor of this member's values, and the samples of all.
///
/// # Errors
/// No member has samples.
pub fn share(reduction: Reduction, statements: &[Statement]) -> Result<(f32, u64), CollectiveError> {
    let Reduction::Mean { samples } = reduction else { return Ok((1.0, 0)) };
    match statements.iter().map(|statement| u64::from(statement.samples)).sum::<u64>() {
        0 => Err(CollectiveError::NoSamples),
        total => Ok((samples as f32 / total as f32, total)),
    }
}

impl Collective for RingCollective {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn all_reduce(&mut self, values: &mut [f32], reduction: Reduction) -> Result<u64, CollectiveError> {
        let ranges = even_ranges(values.len(), self.members.len());
        self.reduce(values, &ranges, reduction, true)
    }

    fn reduce_scatter(
        &mut self,
        values: &mut [f32],
        ranges: &[Range<usize>],
        reduction: Reduction,
    ) -> Result<u64, CollectiveError> {
        self.reduce(values, ranges, reduction, false)
    }

    fn all_gather(&mut self, values: &mut [f32], ranges: &[Range<usize>]) -> Result<(), CollectiveError> {
        self.call(|ring, limit| {
            ring.check(ranges, values.len())?;
            ring.agree(Statement::gather(values.len(), ranges), limit)?;
            let mut values = Values::new(values, 1.0);
            ring.transfer(Kind::Gather, &mut values, limit, |place| place.gather(ranges))
        })
    }

    fn broadcast(
        &mut self,
        root: usize,
        bytes: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<(), CollectiveError> {
        self.call(|ring, limit| {
            let size = ring.members.len();
            if root >= size {
                return Err(CollectiveError::Root { root, size });
            }
            let len = if ring.rank == root { bytes.len() } else { 0 };
            let statements = ring.agree(Statement::broadcast(root, len), limit)?;
            let stated = statements[root].len;
            let len = usize::try_from(stated).ok().filter(|len| *len <= bytes_max);
            let len =
                len.ok_or(CollectiveError::TooLong { peer: ring.peer(root), bytes: stated, bytes_max })?;
            bytes.resize(len, 0);
            ring.transfer(Kind::Broadcast, &mut Bytes(bytes), limit, |place| place.broadcast(root, len))
        })
    }

    fn exchange(&mut self, word: Word, patience: Duration) -> Result<Vec<Word>, CollectiveError> {
        let limit = Limit::of(patience);
        let statements = self.within(limit, |ring, limit| ring.agree(Statement::exchange(word), limit))?;
        Ok(statements.iter().map(Statement::word).collect())
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.agree_on(Statement::plain(Call::Barrier)).map(|_| ())
    }
}
