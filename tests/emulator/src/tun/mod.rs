//! Two TUN devices in two network namespaces, joined by two links, for TCP.
//!
//! Needs root, `/dev/net/tun` and the `ip` command of iproute2.

#[cfg(feature = "tun")]
mod engine;
#[cfg(feature = "tun")]
mod netns;
#[cfg_attr(not(feature = "tun"), path = "no_pair.rs")]
mod pair;

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

pub use self::pair::TunPair;

/// Name of each side's device within its namespace.
pub const DEVICE: &str = "wan";

/// One side: a namespace with an address.
#[derive(Clone, Debug)]
pub struct SideConfig {
    /// Name of the network namespace, which must not exist yet.
    pub netns: String,
    /// Address of the side.
    pub address: Ipv4Addr,
    /// Length of the common prefix.
    pub prefix_len: u8,
}

/// Errors of TUN pairs.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// This user or machine cannot create one: callers skip instead of failing.
    #[error("TUN devices need root, /dev/net/tun and the `ip` command: {reason}")]
    Unavailable {
        /// Refused operation.
        reason: String,
    },
    /// The emulator lacks the feature `tun`.
    #[error(
        "this wan-emulator was built without TUN devices: build it with `--features tun` (`cargo build --release` has all)"
    )]
    NotBuilt,
    /// The address of a side is not `A.B.C.D/LEN`.
    #[error("`{0}` is not an IPv4 address with a prefix length, such as 10.77.0.1/24")]
    BadAddress(String),
    /// A permitted command failed.
    #[error("`ip {command}`: {message}")]
    Command {
        /// Its arguments.
        command: String,
        /// Its output.
        message: String,
    },
    /// A permitted system call failed.
    #[error("TUN device")]
    Io(#[from] io::Error),
}

impl SideConfig {
    /// Creates a side from the name of its namespace and its address, `A.B.C.D/LEN`.
    ///
    /// # Errors
    /// [`TunError::BadAddress`].
    pub fn new(netns: &str, address: &str) -> Result<Self, TunError> {
        let parsed = address.split_once('/').and_then(|(address, len)| {
            Some((address.parse().ok()?, len.parse().ok().filter(|len| *len <= 30)?))
        });
        let (address, prefix_len) = parsed.ok_or_else(|| TunError::BadAddress(address.to_owned()))?;
        Ok(Self { netns: netns.to_owned(), address, prefix_len })
    }

    /// Runs `work` on a thread in the side's namespace, while a pair uses it. Sockets created there stay
    /// there, wherever they are used.
    ///
    /// # Errors
    /// The namespace does not exist, or this user may not enter it.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, TunError> {
        let run = || {
            let namespace = File::open(format!("/var/run/netns/{}", self.netns))?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(io::Error::from)?;
            Ok(work())
        };
        let worked = std::thread::scope(|scope| scope.spawn(run).join());
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

#[cfg(test)]
mod tests;
