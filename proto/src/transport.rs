//! QUIC between workers over long, lossy links: settings, congestion control, sockets, and bulk transfer.
//!
//! `docs/transport.md` of this crate describes the design and its reasons.

pub mod bulk;
mod config;
pub mod congestion;
mod endpoint;
mod nudge;
mod reset;
mod socket;
mod strangers;

pub use config::{
    ACK_ELICITING_THRESHOLD, IDLE_TIMEOUT_MS, INITIAL_WINDOW_BYTES, KEEP_ALIVE, RECEIVE_WINDOW_BYTES,
    REQUEST_STREAMS_MAX, SEND_WINDOW_BYTES, STREAM_RECEIVE_WINDOW_BYTES, site_transport_config,
    transport_config,
};
pub use endpoint::{
    client_config, delivery_rate, endpoint, endpoint_that_resets, round_trip, server_config, within_site,
};
pub use nudge::{Heard, Nudging, nudge_once};
pub use reset::ResetKey;
pub use socket::{BindError, SOCKET_BUFFER_BYTES, SocketBuffers, bind_udp, listen_tcp};
pub use strangers::{Admission, HandshakeError, Strangers};
