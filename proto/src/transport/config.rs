//! QUIC settings for long links; the figures behind them are in `docs/transport.md`.

use std::sync::Arc;
use std::time::Duration;

use quinn::congestion::CubicConfig;
use quinn::{AckFrequencyConfig, IdleTimeout, TransportConfig, VarInt};

use super::bulk::{BULK_IN_FLIGHT_BYTES_MAX, BULK_STREAMS_MAX};
use super::congestion::RateControllerConfig;

/// Bytes in flight before the path is known: a first burst need not wait for start-up's first four rounds.
pub const INITIAL_WINDOW_BYTES: u64 = 256 * 1024;
/// Unread bytes of one stream. quinn-proto closes a connection at more than 1,024 gaps in one stream; 2 MiB
/// are 1,450 packets, of which a path would have to lose every other one to get there.
pub const STREAM_RECEIVE_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// Unread bytes of one connection: all the bulk that is on its way over it, and as much again for control.
pub const RECEIVE_WINDOW_BYTES: u32 = 64 * 1024 * 1024;
/// Unacknowledged bytes of one connection held for retransmission: all the bulk that is on its way, six times the product of 500 Mbit/s and
/// 80 ms, and room for control.
pub const SEND_WINDOW_BYTES: u64 = BULK_IN_FLIGHT_BYTES_MAX as u64 + (1 << 20);
/// Request streams that a peer may have open at once: control, and pulls, of which small ones are many.
pub const REQUEST_STREAMS_MAX: u32 = 512;
/// Silence after which a connection is lost. Long enough for a route to change.
pub const IDLE_TIMEOUT_MS: u32 = 15_000;
/// Packets that a peer may receive without acknowledging (draft-ietf-quic-ack-frequency). Each acknowledgement
/// costs both ends a wake-up; at 10 Mbit/s eight packets are 9 ms, which the pacer bridges.
pub const ACK_ELICITING_THRESHOLD: u32 = 7;
/// Unread bytes of datagrams, which say nothing ([`Nudging`](super::Nudging)).
const DATAGRAM_BYTES: usize = 1024;
/// Sent when nothing else is, three times within [`IDLE_TIMEOUT_MS`]; it keeps NAT bindings, too.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The transport settings of our connections: windows for long links, and our congestion controller.
/// Path MTU discovery keeps quinn's defaults, and so does the round robin among streams of one priority: without
/// it quinn-proto lets no stream of a higher priority by until the current one is sent.
pub fn transport_config() -> TransportConfig {
    let mut ack_frequency = AckFrequencyConfig::default();
    ack_frequency.ack_eliciting_threshold(VarInt::from_u32(ACK_ELICITING_THRESHOLD));
    let mut config = TransportConfig::default();
    config
        .congestion_controller_factory(Arc::new(RateControllerConfig {
            initial_window_bytes: INITIAL_WINDOW_BYTES,
        }))
        .stream_receive_window(VarInt::from_u32(STREAM_RECEIVE_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(RECEIVE_WINDOW_BYTES))
        .send_window(SEND_WINDOW_BYTES)
        .max_concurrent_uni_streams(VarInt::from_u32(BULK_STREAMS_MAX))
        .max_concurrent_bidi_streams(VarInt::from_u32(REQUEST_STREAMS_MAX))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_TIMEOUT_MS))))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .ack_frequency_config(Some(ack_frequency))
        .datagram_receive_buffer_size(Some(DATAGRAM_BYTES))
        .enable_segmentation_offload(true);
    config
}

/// The same for connections within a site, with quinn's CUBIC (RFC 9438): there loss means a full buffer, and what a round trip takes is
/// mostly the wait of threads for their turn, from which a model of the path would learn the wrong things.
pub fn site_transport_config() -> TransportConfig {
    let mut cubic = CubicConfig::default();
    cubic.initial_window(INITIAL_WINDOW_BYTES);
    let mut config = transport_config();
    config.congestion_controller_factory(Arc::new(cubic));
    config
}
