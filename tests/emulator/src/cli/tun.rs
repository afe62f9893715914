//! TUN mode of `wan-emulator`.

use longhaul_emulator::tun::{DEVICE, TunPair};
use serde_json::json;

use super::arguments::{TunArguments, find};
use super::control::Control;
use super::session;

/// Runs the pair of devices until the session ends, then deletes their namespaces.
///
/// # Errors
/// A link is missing, or devices and namespaces cannot be created.
pub fn run(arguments: &TunArguments) -> anyhow::Result<()> {
    let links = arguments.common.links()?;
    let forward = find(&links, &arguments.over.forward)?;
    let reverse = find(&links, &arguments.over.reverse)?;
    let [a, b] = arguments.sides()?;
    let ready = json!({
        "ready": true,
        "device": DEVICE,
        "a": { "netns": a.netns, "address": a.address },
        "b": { "netns": b.netns, "address": b.address },
    });
    // Dropping it deletes the namespaces.
    let _pair = TunPair::start(&a, &b, forward, reverse)?;
    session::serve(&Control { links, relays: None }, &ready, arguments.common.exit_with_stdin)
}
