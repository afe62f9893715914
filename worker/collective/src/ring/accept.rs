//! Admission of the previous member, and of no other.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::ServerConnection;

use super::HANDSHAKE_MAX;
use super::clock::{left, now};
use super::link::Secured;
use super::setup::RingIdentity;
use super::stop::STOP_CHECK;
use super::visitor::{Progress, Visitor};
use crate::CollectiveError;

/// Most unidentified connections. The awaited member needs one, its earlier attempts a few; beyond that, the oldest is dropped.
pub(super) const VISITORS_MAX: usize = 16;

/// Accepts connections until the previous member has joined, or the deadline.
pub(super) fn accept(
    identity: &RingIdentity<'_>,
    listener: &TcpListener,
    until: Instant,
) -> Result<Secured<ServerConnection>, CollectiveError> {
    let begun = now();
    // A connection lost before its acceptance must not make the listener wait for the next.
    listener.set_nonblocking(true).map_err(CollectiveError::Listener)?;
    let mut reason = "it did not connect".to_owned();
    let mut visitors = VecDeque::<Visitor>::new();
    loop {
        if identity.stop.is_stopped() {
            return Err(CollectiveError::Stopped);
        }
        if left(until).is_zero() {
            let (peer, waited) = (identity.previous(), now() - begun);
            return Err(CollectiveError::NotJoined { peer, waited, reason });
        }
        wait(listener, &visitors, until).map_err(CollectiveError::Listener)?;
        take_connections(identity, listener, &mut visitors).map_err(CollectiveError::Listener)?;
        for _ in 0..visitors.len() {
            let Some(mut visitor) = visitors.pop_front() else { break };
            match visitor.advance(identity) {
                Ok(Progress::Welcomed) => match visitor.into_secured() {
                    Ok(secured) => return Ok(secured),
                    Err(error) => reason = error.to_string(),
                },
                Ok(Progress::Waiting) if visitor.expires > now() => visitors.push_back(visitor),
                Ok(Progress::Waiting) => {
                    reason = "a connection did not finish the handshake in time".to_owned()
                }
                Err(why) => reason = why,
            }
        }
    }
}

/// Waits for the listener, a visitor, the end of either's time, or [`STOP_CHECK`].
fn wait(listener: &TcpListener, visitors: &VecDeque<Visitor>, until: Instant) -> io::Result<()> {
    let until = visitors.iter().map(|visitor| visitor.expires).fold(until, Instant::min);
    let mut sources = vec![PollFd::new(listener, PollFlags::IN)];
    sources.extend(visitors.iter().map(|visitor| PollFd::new(visitor.socket(), PollFlags::IN)));
    let limit = left(until).clamp(Duration::from_millis(1), STOP_CHECK);
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    match poll(&mut sources, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn take_connections(
    identity: &RingIdentity<'_>,
    listener: &TcpListener,
    visitors: &mut VecDeque<Visitor>,
) -> io::Result<()> {
    for _ in 0..VISITORS_MAX {
        match listener.accept() {
            Ok((socket, address)) => {
                if visitors.len() == VISITORS_MAX {
                    visitors.pop_front();
                }
                // A connection that is already lost is ignored.
                visitors.extend(Visitor::new(identity, socket, address, now() + HANDSHAKE_MAX).ok());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            // The connection was given up before its acceptance (accept(2)).
            Err(error)
                if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
