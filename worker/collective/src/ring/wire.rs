use std::collections::VecDeque;
use std::io;

use rustls::{ClientConnection, ServerConnection};

use super::clock::{Limit, left};
use super::frame::{CHUNK_BYTES, Header, Kind};
use super::link::{BUFFERS, Event, Link, Secured};
use super::memory::Memory;
use super::schedule::{Chunk, RingPosition, Schedule};
use super::stop::{STOP_CHECK, Stop};
use crate::{CollectiveError, Peer};

/// A member's connections, and the transfers over them. Useless after an error.
pub(super) struct Wire {
    link: Link,
    /// Empty buffers for outgoing frames: all of them, between transfers.
    frames: Vec<Vec<u8>>,
    /// Early events from the previous member: [`BUFFERS`] and the last one at most.
    early: VecDeque<Event>,
    /// Number of the next transfer.
    sequence: u64,
    next: Peer,
    previous: Peer,
    stop: Stop,
}

impl Wire {
    pub fn new(
        next: (Peer, Secured<ClientConnection>),
        previous: (Peer, Secured<ServerConnection>),
        stop: &Stop,
    ) -> io::Result<Self> {
        let (link, frames) = Link::start(next.1, previous.1)?;
        let (next, previous, stop) = (next.0, previous.0, stop.clone());
        Ok(Self { link, frames, early: VecDeque::new(), sequence: 0, next, previous, stop })
    }

    /// Does this member's part of a transfer, by the schedule for its place.
    pub fn transfer<M: Memory>(
        &mut self,
        kind: Kind,
        schedule: &Schedule,
        memory: &mut M,
        limit: Limit,
    ) -> Result<(), CollectiveError> {
        let sequence = self.sequence;
        self.sequence += 1;
        let total = memory.len() as u64;
        let header = |chunk: &Chunk| Header {
            sequence,
            offset: chunk.range.start as u64,
            total,
            // At most CHUNK_BYTES.
            payload: (chunk.range.len() * M::ELEMENT_BYTES) as u32,
            kind: kind as u8,
        };
        let (mut sent, mut received) = (0, 0);
        loop {
            while sent < schedule.head_start + received
                && let Some(chunk) = schedule.sends.get(sent)
                && let Some(mut frame) = self.frames.pop()
            {
                frame.extend_from_slice(&header(chunk).to_bytes());
                memory.write_to(chunk, &mut frame);
                self.link.send(frame);
                sent += 1;
            }
            let expected = schedule.receives.get(received);
            // The kernel delivers written frames even if this member leaves now.
            if expected.is_none() && sent == schedule.sends.len() && self.frames.len() == BUFFERS {
                return Ok(());
            }
            if let Some((found, payload)) = self.next_event(expected.is_some(), limit)?
                && let Some(chunk) = expected
            {
                self.compare(header(chunk), found)?;
                memory.read_from(chunk, &payload);
                self.link.give_back(payload);
                received += 1;
            }
        }
    }

    /// Returns the next frame, if one is expected; `None` after any other event.
    fn next_event(
        &mut self,
        expects: bool,
        limit: Limit,
    ) -> Result<Option<(Header, Vec<u8>)>, CollectiveError> {
        let early = if expects { self.early.pop_front() } else { None };
        let event = early.or_else(|| self.link.wait(left(limit.until).min(STOP_CHECK)));
        let lost = |peer, error: io::Error| CollectiveError::PeerLost { peer, reason: error.to_string() };
        match event {
            Some(Event::Written(frame)) => self.frames.push(frame),
            Some(Event::SendFailed(error)) => return Err(lost(self.next, error)),
            Some(event @ (Event::Received { .. } | Event::ReceiveFailed(_))) if !expects => {
                self.early.push_back(event);
            }
            Some(Event::Received { header, payload }) => return Ok(Some((header, payload))),
            Some(Event::ReceiveFailed(error)) => return Err(lost(self.previous, error)),
            None if self.stop.is_stopped() => return Err(CollectiveError::Stopped),
            None if !left(limit.until).is_zero() => {}
            None => {
                let peer = if expects { self.previous } else { self.next };
                return Err(CollectiveError::TimedOut { peer, waited: limit.whole });
            }
        }
        Ok(None)
    }

    fn compare(&self, ours: Header, theirs: Header) -> Result<(), CollectiveError> {
        if ours == theirs {
            return Ok(());
        }
        let (ours, theirs) = (ours.to_string(), theirs.to_string());
        Err(CollectiveError::Disagree { peer: self.previous, ours, theirs })
    }
}

/// Returns a place in a ring, with chunks for one kind of memory.
pub(super) fn place<M: Memory>(rank: usize, size: usize) -> RingPosition {
    RingPosition { rank, size, chunk: CHUNK_BYTES / M::ELEMENT_BYTES }
}
