//! The pair, with its forwarding thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

use super::engine::Engine;
use super::netns::{self, Namespace};
use super::{SideConfig, TunError};
use crate::Link;

/// Two namespaces joined by two links. Dropping it deletes them, which ends connections through them.
#[derive(Debug)]
pub struct TunPair {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    _namespaces: [Namespace; 2],
}

impl TunPair {
    /// Creates the namespaces and devices and starts forwarding: `a` to `b` over `forward`, back over
    /// `reverse`.
    ///
    /// # Errors
    /// [`TunError::Unavailable`] without the privileges or means; otherwise the failure. Nothing is left
    /// behind.
    pub fn start(a: &SideConfig, b: &SideConfig, forward: Link, reverse: Link) -> Result<Self, TunError> {
        let (namespace_a, device_a) = netns::make_side(a)?;
        let (namespace_b, device_b) = netns::make_side(b)?;
        let stop =
            Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?);
        let engine = Engine::new([device_a, device_b], [forward, reverse], &stop)?;
        let thread = std::thread::Builder::new().name("wan-tun".to_owned()).spawn(move || {
            if let Err(error) = engine.run() {
                tracing::error!(%error, "the TUN link has stopped");
            }
        })?;
        Ok(Self { stop, thread: Some(thread), _namespaces: [namespace_a, namespace_b] })
    }
}

impl Drop for TunPair {
    fn drop(&mut self) {
        let stopped = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let (Ok(_), Some(thread)) = (stopped, self.thread.take()) {
            let _ = thread.join();
        }
    }
}
