use std::fmt::{self, Display, Formatter};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use longhaul_common::id::WorkerId;

use super::nccl_error::NcclError;

/// A member, as named in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Index in the list of members.
    pub rank: usize,
    /// Worker.
    pub worker: WorkerId,
    /// Listening address.
    pub address: SocketAddr,
}

impl Display for Peer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} (rank {} at {})", self.worker, self.rank, self.address)
    }
}

/// Failure of a reduction within a site. All are final: join again, with the remaining members.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// A neighbour's connection ended.
    #[error(
        "{peer} was lost: {reason}. Its log has the cause, or names the neighbour that it lost itself; \
         join again without those that are gone"
    )]
    PeerLost {
        /// Neighbour.
        peer: Peer,
        /// Error of the connection.
        reason: String,
    },
    /// A neighbour did not send or receive in time.
    #[error(
        "waited {} s for {peer} in vain. Check whether it is stopped, or waits for a neighbour itself; \
         join again without those that are gone", waited.as_secs_f64()
    )]
    TimedOut {
        /// Awaited member.
        peer: Peer,
        /// Time waited.
        waited: Duration,
    },
    /// A member is in another call, or its vector has another shape.
    #[error(
        "{peer} says {theirs} where this member says {ours}: all members must make the same calls \
         with vectors of the same shape; check that they run the same release and plan"
    )]
    Disagree {
        /// Member.
        peer: Peer,
        /// This member's call.
        ours: String,
        /// The other member's call.
        theirs: String,
    },
    /// A neighbour did not join in time.
    #[error("{peer} did not join within {} s: {reason}. Check that it runs and is reachable by TCP at its address", waited.as_secs_f64())]
    NotJoined {
        /// Neighbour.
        peer: Peer,
        /// Time of this member's attempts.
        waited: Duration,
        /// Outcome of the last attempt.
        reason: String,
    },
    /// The listener cannot take connections.
    #[error("take connections from the site's members: {0}")]
    Listener(#[source] io::Error),
    /// No thread could be started.
    #[error("start a thread for a connection: {0}")]
    Thread(#[source] io::Error),
    /// The list of members is invalid.
    #[error("{0}")]
    Members(String),
    /// Invalid ranges: the caller's mistake.
    #[error("{0}")]
    Ranges(String),
    /// A root that is no member: the caller's mistake.
    #[error("rank {root} is not among {size} members")]
    Root {
        /// Requested rank.
        root: usize,
        /// Number of members.
        size: usize,
    },
    /// No member has samples, so the mean is undefined.
    #[error("no member has samples, so the mean is undefined")]
    NoSamples,
    /// More bytes to be broadcast than allowed.
    #[error("{peer} broadcasts {bytes} bytes, more than the {bytes_max} allowed")]
    TooLong {
        /// Root.
        peer: Peer,
        /// Length of its bytes.
        bytes: u64,
        /// Limit.
        bytes_max: usize,
    },
    /// NCCL, CUDA, or their absence.
    #[error(transparent)]
    Nccl(#[from] NcclError),
    /// This member was told to stop waiting.
    #[error("this member was told to stop")]
    Stopped,
    /// An earlier call failed.
    #[error("the site's collective failed earlier; join again. Cause: {cause}")]
    Broken {
        /// That failure.
        cause: String,
    },
}
