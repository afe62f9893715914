//! Sends probes while acknowledgements are missing.

use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, ConnectionStats};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::congestion::RateController;

/// Minimum time between checks: the delay in noticing a recovered path.
const LOOK: Duration = Duration::from_millis(250);
/// Minimum time between nudges while a burst of losses is as likely as an outage.
const EAGER_LOOK: Duration = Duration::from_millis(50);
/// Number of such nudges, unless one is acknowledged. Losses come about ten in a row; a path that loses more
/// is assumed cut.
const EAGER_NUDGES: u32 = 32;
/// The same in round trips, so that acknowledgements have time to arrive.
const LOOK_ROUND_TRIPS: u32 = 2;
/// Payload of a nudge. A peer that does not read would keep an empty datagram without counting it.
const WORD: Bytes = Bytes::from_static(&[0]);

/// Monitors a connection until it is closed or this is dropped. While sent data is unacknowledged, it sends
/// datagrams, whose acknowledgement shows that the path works.
///
/// QUIC itself probes at intervals that double (RFC 9002, section 6.2.1): after nine seconds without a path
/// it may take as long again to notice the recovery. Where ten packets in a row are lost, its fifth probe is
/// due after a second. The peer reads and discards the datagrams. They bypass the window where the path has
/// our congestion control; within a site, which has not, a full window waits for QUIC's probes.
#[derive(Debug)]
pub struct Nudging(AbortHandle);

impl Nudging {
    /// Monitors this connection. Call it within a tokio runtime.
    #[must_use]
    pub fn of(connection: &Connection) -> Self {
        Self(tokio::spawn(nudge(connection.clone())).abort_handle())
    }
}

impl Drop for Nudging {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn nudge(connection: Connection) {
    let mut heard = Heard::of(&connection.stats());
    let (mut look_at, mut unanswered) = (Instant::now(), 0);
    loop {
        tokio::select! {
            said = connection.read_datagram() => match said {
                Ok(_) => continue,
                Err(_) => return,
            },
            () = sleep_until(look_at) => {}
        }
        let now = Heard::of(&connection.stats());
        if now.acknowledgements > heard.acknowledgements {
            (heard, unanswered) = (now, 0);
        } else if now.has_sent_since(&heard) {
            nudge_once(&connection);
            unanswered += 1;
        }
        look_at = Instant::now() + look_after(unanswered, connection.rtt());
    }
}

/// Returns the time to the next check after this many unacknowledged nudges.
fn look_after(unanswered: u32, round_trip: Duration) -> Duration {
    let least = if (1..=EAGER_NUDGES).contains(&unanswered) { EAGER_LOOK } else { LOOK };
    least.max(round_trip * LOOK_ROUND_TRIPS)
}

/// Elicits an acknowledgement from a reachable peer: sends a datagram, beyond the window where the path has
/// our congestion control.
pub fn nudge_once(connection: &Connection) {
    if let Ok(controller) = connection.congestion_state().into_any().downcast::<RateController>() {
        controller.grant();
    }
    // A peer that accepts no datagrams is of another release: it gets QUIC's probes.
    let _ = connection.send_datagram(WORD);
}

/// Counters of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Acknowledgements of the peer.
    acknowledgements: u64,
    /// Ack-eliciting frames sent, retransmissions included.
    sent: u64,
    /// UDP datagrams received.
    arrived: u64,
}

impl Heard {
    /// Reads the counters of this connection.
    #[must_use]
    pub fn on(connection: &Connection) -> Self {
        Self::of(&connection.stats())
    }

    /// Whether anything has arrived since `before`.
    #[must_use]
    pub fn is_more_than(&self, before: &Self) -> bool {
        self.arrived > before.arrived
    }

    /// Whether ack-eliciting frames were sent since `before`.
    #[must_use]
    pub fn has_sent_since(&self, before: &Self) -> bool {
        self.sent > before.sent
    }

    fn of(stats: &ConnectionStats) -> Self {
        let sent = &stats.frame_tx;
        let sent = sent.stream
            + sent.reset_stream
            + sent.stop_sending
            + sent.max_data
            + sent.max_stream_data
            + sent.max_streams_bidi
            + sent.max_streams_uni;
        Self { acknowledgements: stats.frame_rx.acks, sent, arrived: stats.udp_rx.datagrams }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_burst_of_losses_is_over_soon_and_an_outage_costs_four_packets_a_second() {
        assert_eq!(look_after(0, ms(20)), ms(250), "all is acknowledged");
        assert_eq!((look_after(1, ms(20)), look_after(32, ms(20))), (ms(50), ms(50)));
        assert_eq!(look_after(33, ms(20)), ms(250));
        let until_given_up: Duration = (1..=32).map(|unanswered| look_after(unanswered, ms(20))).sum();
        assert_eq!(until_given_up, ms(1600));
    }

    #[test]
    fn an_answer_has_time_for_two_round_trips() {
        assert_eq!([0, 1, 40].map(|unanswered| look_after(unanswered, ms(300))), [ms(600); 3]);
    }
}
