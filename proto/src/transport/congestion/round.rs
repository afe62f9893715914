//! Packet-timed round trips.

/// Counts rounds: one ends when a packet is acknowledged that was sent after the round began.
#[derive(Debug, Clone, Default)]
pub(super) struct RoundCounter {
    /// Deliveries that a packet's snapshot must have seen for its acknowledgement to end the round.
    ends_at_delivered: u64,
}

impl RoundCounter {
    /// Whether a round ended with a packet sent when `delivered_at_send` bytes had been delivered; `delivered`
    /// is the count now.
    pub(super) fn handle_ack(&mut self, delivered_at_send: u64, delivered: u64) -> bool {
        if delivered_at_send < self.ends_at_delivered {
            return false;
        }
        self.ends_at_delivered = delivered;
        true
    }
}
