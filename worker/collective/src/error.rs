use std::fmt::{self, Display, Formatter};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use longhaul_common::id::WorkerId;

use super::nccl_error::NcclError;

/// A member, as errors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its place in the list of members.
    pub rank: usize,
    /// Who it is.
    pub worker: WorkerId,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Display for Peer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} (rank {} at {})", self.worker, self.rank, self.address)
    }
}

/// Why members of a site could not reduce. All are final: join again, with the members that are left.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// A neighbour's connection ended.
    #[error(
        "{peer} was lost: {reason}. Its log says why, or names the neighbour that it lost itself; \
         join again without those that are gone"
    )]
    PeerLost {
        /// Which neighbour.
        peer: Peer,
        /// What the connection said.
        reason: String,
    },
    /// A neighbour did not deliver, or did not take what was sent, in time.
    #[error(
        "waited {} s for {peer} in vain. See whether it is stopped, or waits for a neighbour itself; \
         join again without those that are gone", waited.as_secs_f64()
    )]
    TimedOut {
        /// Whom this member waited for.
        peer: Peer,
        /// For how long.
        waited: Duration,
    },
    /// A member is in another call, or its vector has another shape.
    #[error(
        "{peer} says {theirs} where this member says {ours}: all members must make the same calls \
         with vectors of the same shape; see that they run the same release and plan"
    )]
    Disagree {
        /// Which member.
        peer: Peer,
        /// What this member is about.
        ours: String,
        /// What the other one is about.
        theirs: String,
    },
    /// A neighbour was not there in time.
    #[error("{peer} did not join within {} s: {reason}. See that it runs and that TCP to its address gets through", waited.as_secs_f64())]
    NotJoined {
        /// Which neighbour.
        peer: Peer,
        /// For how long this member tried.
        waited: Duration,
        /// What the last attempt met.
        reason: String,
    },
    /// The listener cannot take connections.
    #[error("take connections from the site's members: {0}")]
    Listener(#[source] io::Error),
    /// No thread could be started.
    #[error("start a thread for a connection: {0}")]
    Thread(#[source] io::Error),
    /// The list of members does not make sense.
    #[error("{0}")]
    Members(String),
    /// Ranges that cannot be: the caller's mistake.
    #[error("{0}")]
    Ranges(String),
    /// A root that is no member: the caller's mistake.
    #[error("there is no member of rank {root} among {size}")]
    Root {
        /// The rank asked for.
        root: usize,
        /// How many members there are.
        size: usize,
    },
    /// Nobody has a sample, so there is no mean.
    #[error("no member has a sample to weigh its values by")]
    NoSamples,
    /// More bytes to be broadcast than allowed.
    #[error("{peer} has {bytes} bytes to hand round, and at most {bytes_max} are allowed")]
    TooLong {
        /// The root.
        peer: Peer,
        /// The length of what it has.
        bytes: u64,
        /// The limit.
        bytes_max: usize,
    },
    /// NCCL, CUDA, or their absence.
    #[error(transparent)]
    Nccl(#[from] NcclError),
    /// This member was told to stop waiting.
    #[error("this member was told to stop")]
    Stopped,
    /// An earlier call failed.
    #[error("the site's collective is of no use since an earlier failure; join again. It was: {cause}")]
    Broken {
        /// That failure.
        cause: String,
    },
}
