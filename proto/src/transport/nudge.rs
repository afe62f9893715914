//! Speaks up where nothing is acknowledged.

use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, ConnectionStats};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::congestion::RateController;

/// Time between looks, at least: what a path that is whole again is noticed after.
const LOOK: Duration = Duration::from_millis(250);
/// Time between nudges, at least, as long as a burst of losses is as likely as an outage.
const EAGER_LOOK: Duration = Duration::from_millis(50);
/// So many nudges go then, unless one is answered: losses come some ten in a row, and a path that lost more is taken for cut.
const EAGER_NUDGES: u32 = 32;
/// The same in round trips, so that acknowledgements have time to arrive.
const LOOK_ROUND_TRIPS: u32 = 2;
/// What is said: a datagram with nothing in it would be kept by a peer that does not read, and count for nothing.
const WORD: Bytes = Bytes::from_static(&[0]);

/// Looks after a connection until it is closed, or this is dropped: while something that was sent is not acknowledged, a datagram goes now and then, and its acknowledgement shows
/// that the path is whole.
///
/// By itself QUIC asks again after a time that doubles (RFC 9002, section 6.2.1): after nine seconds without a path it may be as long again before it notices that there is one, and where ten
/// packets in a row are lost, its fifth question is due after a second.
/// What the peer says in this way is read and thrown away. The datagram goes however much is in flight, where the path has our congestion control; within a site, where it has not, a full
/// window waits for QUIC's probes.
#[derive(Debug)]
pub struct Nudging(AbortHandle);

impl Nudging {
    /// Of this connection. Call it within a tokio runtime.
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

/// When to look again, where so many nudges were not answered.
fn look_after(unanswered: u32, round_trip: Duration) -> Duration {
    let least = if (1..=EAGER_NUDGES).contains(&unanswered) { EAGER_LOOK } else { LOOK };
    least.max(round_trip * LOOK_ROUND_TRIPS)
}

/// Has the peer acknowledge something, if it is there: sends a datagram, however much is in flight where the path has our congestion control.
pub fn nudge_once(connection: &Connection) {
    if let Ok(controller) = connection.congestion_state().into_any().downcast::<RateController>() {
        controller.grant();
    }
    // A peer that takes no datagrams is of another release: it gets QUIC's probes.
    let _ = connection.send_datagram(WORD);
}

/// What has come of a connection so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Acknowledgements of the peer.
    acknowledgements: u64,
    /// Frames that matter, those that were sent again included.
    sent: u64,
    /// Datagrams of UDP that have arrived.
    arrived: u64,
}

impl Heard {
    /// On this connection.
    #[must_use]
    pub fn on(connection: &Connection) -> Self {
        Self::of(&connection.stats())
    }

    /// Whether anything has arrived since.
    #[must_use]
    pub fn is_more_than(&self, before: &Self) -> bool {
        self.arrived > before.arrived
    }

    /// Whether something was sent since that has to be acknowledged.
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
