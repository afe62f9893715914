//! Network namespaces, and TUN devices moved into them.

use std::io;
use std::process::Command;

use tun_rs::{DeviceBuilder, SyncDevice};

use super::{DEVICE, SideConfig, TunError};

/// As in an Ethernet path.
const MTU_BYTES: u16 = 1500;

/// Packets queued by the kernel: a full TCP window written at once must not be dropped before the link, whose
/// queue is the modelled one.
const DEVICE_QUEUE_PACKETS: u32 = 10_000;

/// A network namespace of this process, deleted on drop.
#[derive(Debug)]
pub(super) struct Namespace {
    name: String,
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = ip(&["netns", "delete", &self.name]) {
            tracing::warn!(%error, "a network namespace could not be deleted");
        }
    }
}

/// Creates the namespace of a side, with a device that has the side's address.
pub(super) fn make_side(side: &SideConfig) -> Result<(Namespace, SyncDevice), TunError> {
    // The kernel numbers the names; they must only be unique until the device is in its namespace.
    let device = DeviceBuilder::new()
        .name("wan%d")
        .mtu(MTU_BYTES)
        .tx_queue_len(DEVICE_QUEUE_PACKETS)
        .enable(false)
        .build_sync()
        .map_err(unavailable_if_refused)?;
    device.set_nonblocking(true)?;
    let name = device.name()?;

    ip(&["netns", "add", &side.netns])?;
    let namespace = Namespace { name: side.netns.clone() };
    let netns = side.netns.as_str();
    let address = format!("{}/{}", side.address, side.prefix_len);
    ip(&["link", "set", &name, "netns", netns])?;
    ip(&["-n", netns, "link", "set", &name, "name", DEVICE])?;
    ip(&["-n", netns, "link", "set", "lo", "up"])?;
    // Without an IPv6 address the kernel sends only the peers' packets.
    ip(&["-n", netns, "link", "set", DEVICE, "addrgenmode", "none"])?;
    ip(&["-n", netns, "address", "add", &address, "dev", DEVICE])?;
    ip(&["-n", netns, "link", "set", DEVICE, "up"])?;
    Ok((namespace, device))
}

fn ip(arguments: &[&str]) -> Result<(), TunError> {
    let output = Command::new("ip").args(arguments).output().map_err(unavailable_if_refused)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if message.contains("Permission denied") || message.contains("not permitted") {
        return Err(TunError::Unavailable { reason: message });
    }
    Err(TunError::Command { command: arguments.join(" "), message })
}

fn unavailable_if_refused(error: io::Error) -> TunError {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound => {
            TunError::Unavailable { reason: error.to_string() }
        }
        _ => TunError::Io(error),
    }
}
