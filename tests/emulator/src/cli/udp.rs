//! Relays of `wan-emulator`.

use std::sync::Arc;

use anyhow::Context;
use longhaul_emulator::udp::{RelayConfig, Relays};
use serde_json::json;

use super::arguments::{RelayArguments, find};
use super::control::Control;
use super::session;

/// Runs the relays until the session ends.
///
/// # Errors
/// A link is missing, or an address cannot be bound.
pub fn run(arguments: &RelayArguments) -> anyhow::Result<()> {
    anyhow::ensure!(!arguments.relays.is_empty(), "give at least one --relay, or the sub-command `tun`");
    let links = arguments.common.links()?;
    let relays = Relays::start().context("start the relays")?;
    let mut started = Vec::new();
    for spec in &arguments.relays {
        let address = relays
            .add(RelayConfig {
                listen: spec.listen,
                target: spec.target,
                forward: find(&links, &spec.over.forward)?,
                reverse: find(&links, &spec.over.reverse)?,
                clients: Arc::default(),
            })
            .with_context(|| format!("listen on {}", spec.listen))?;
        started.push(json!({
            "listen": address,
            "target": spec.target,
            "forward": spec.over.forward,
            "reverse": spec.over.reverse,
        }));
    }
    let control = Control { links, relays: Some(relays) };
    session::serve(&control, &json!({ "ready": true, "relays": started }), arguments.common.exit_with_stdin)
}
