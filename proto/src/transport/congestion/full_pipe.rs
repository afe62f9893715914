//! The end of start-up: a larger window no longer raises the rate.

/// A round with less growth than this is flat. Start-up doubles the window each round, so a pipe that is not
/// full shows far more (BBRv3's FullBwThresh).
const GROWTH_MIN: f64 = 1.25;
/// Flat rounds in a row that end start-up: one may be chance, and the receive window may lag a round
/// (BBRv3's FullBwCountThresh).
const FLAT_ROUNDS: u32 = 3;

/// Detects that the delivery rate has stopped growing.
#[derive(Debug, Clone, Default)]
pub(super) struct FullPipe {
    reference_rate: f64,
    flat_rounds: u32,
}

impl FullPipe {
    /// Counts a round whose largest sample so far is `rate`; returns true once the pipe is full.
    pub(super) fn handle_round(&mut self, rate: f64, app_limited: bool) -> bool {
        if rate >= self.reference_rate * GROWTH_MIN {
            self.reference_rate = rate;
            self.flat_rounds = 0;
        } else if !app_limited {
            self.flat_rounds += 1;
        }
        self.flat_rounds >= FLAT_ROUNDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_flat_rounds_fill_the_pipe_and_growth_starts_the_count_again() {
        let mut pipe = FullPipe::default();
        let rounds = [(1.0, false), (2.0, false), (2.1, false), (2.2, false), (3.0, false), (3.1, false)];
        for (rate, full) in rounds {
            assert_eq!(pipe.handle_round(rate, false), full);
        }
        assert!(!pipe.handle_round(3.1, false));
        assert!(pipe.handle_round(3.2, false));
    }

    #[test]
    fn rounds_short_of_data_do_not_count_as_flat() {
        let mut pipe = FullPipe::default();
        for _ in 0..10 {
            assert!(!pipe.handle_round(1.0, true));
        }
    }
}
