//! QUIC settings for long links; `docs/transport.md` derives the values.

use std::sync::Arc;
use std::time::Duration;

use quinn::congestion::CubicConfig;
use quinn::{AckFrequencyConfig, IdleTimeout, TransportConfig, VarInt};

use super::bulk::{BULK_IN_FLIGHT_BYTES_MAX, BULK_STREAMS_MAX};
use super::congestion::RateControllerConfig;

/// Bytes in flight before the path is known: a first burst skips start-up's first four rounds.
pub const INITIAL_WINDOW_BYTES: u64 = 256 * 1024;
/// Unread bytes of one stream. quinn-proto closes a connection at more than 1,024 gaps in one stream; 2 MiB
/// are 1,450 packets, of which a path would have to lose every other one to reach that.
pub const STREAM_RECEIVE_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// Unread bytes of one connection: all bulk in flight, and as much again for control.
pub const RECEIVE_WINDOW_BYTES: u32 = 64 * 1024 * 1024;
/// Unacknowledged bytes of one connection kept for retransmission: all bulk in flight, six times the product
/// of 500 Mbit/s and 80 ms, and space for control.
pub const SEND_WINDOW_BYTES: u64 = BULK_IN_FLIGHT_BYTES_MAX as u64 + (1 << 20);
/// Request streams that a peer may have open at a time: control, and pulls, which are many if small.
pub const REQUEST_STREAMS_MAX: u32 = 512;
/// Silence after which a connection is lost. Long enough for a route change.
pub const IDLE_TIMEOUT_MS: u32 = 15_000;
/// Packets that a peer may receive without acknowledging (draft-ietf-quic-ack-frequency). Each
/// acknowledgement wakes both ends; at 10 Mbit/s eight packets are 9 ms, which the pacer bridges.
pub const ACK_ELICITING_THRESHOLD: u32 = 7;
/// Unread bytes of datagrams, which carry no data ([`Nudging`](super::Nudging)).
const DATAGRAM_BYTES: usize = 1024;
/// Interval of keep-alives, three within [`IDLE_TIMEOUT_MS`]; they also keep NAT bindings.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Returns the transport settings of our connections: windows for long links, and our congestion controller.
/// Path MTU discovery keeps quinn's defaults, as does the round robin among streams of one priority: without
/// it quinn-proto lets no stream of a higher priority pass until the current one is sent.
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

/// Returns the same for connections within a site, with quinn's CUBIC (RFC 9438). There loss means a full
/// buffer, and a round trip consists mostly of thread scheduling delays, which would mislead a model of the
/// path.
pub fn site_transport_config() -> TransportConfig {
    let mut cubic = CubicConfig::default();
    cubic.initial_window(INITIAL_WINDOW_BYTES);
    let mut config = transport_config();
    config.congestion_controller_factory(Arc::new(cubic));
    config
}
