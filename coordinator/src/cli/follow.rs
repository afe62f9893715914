//! Asking a coordinator again and again, also over its restart.

use std::time::Duration;

use serde::de::DeserializeOwned;

use super::{Client, ClientError, Where};

/// Between attempts to reach a coordinator that was there a moment ago.
const RETRY: Duration = Duration::from_secs(1);
/// How long a coordinator may be away before following it ends: a restart takes less.
const ATTEMPTS_MAX: u32 = 60;

/// The HTTP API of a coordinator that may be started again meanwhile.
#[derive(Debug)]
pub(super) struct Follower<'a> {
    at: &'a Where,
    client: Client,
    /// It has answered.
    heard: bool,
}

impl<'a> Follower<'a> {
    /// Finds the coordinator.
    ///
    /// # Errors
    /// [`ClientError::Unknown`], or [`ClientError::Over`]
    pub fn find(at: &'a Where) -> Result<Self, ClientError> {
        Ok(Self { at, client: Client::find(at)?, heard: false })
    }

    /// Reads something that the coordinator may wait for. Where it has answered before and cannot be reached, that is told to `away` once, and it is tried
    /// again for a minute.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn ask<T: DeserializeOwned>(
        &mut self,
        path: &str,
        mut away: impl FnMut(&ClientError),
    ) -> Result<T, ClientError> {
        let mut attempts = 0;
        loop {
            match self.client.wait_for(path) {
                Err(error @ ClientError::Unreachable { .. }) if self.heard && attempts < ATTEMPTS_MAX => {
                    if attempts == 0 {
                        away(&error);
                    }
                    attempts += 1;
                    // A person waits here, and nothing else is done in this thread.
                    #[allow(clippy::disallowed_methods, reason = "another process may be started again")]
                    std::thread::sleep(RETRY);
                    // On another port, perhaps, which the state directory then says.
                    if let Ok(client) = Client::find(self.at) {
                        self.client = client;
                    }
                }
                answer => {
                    self.heard |= answer.is_ok();
                    return answer;
                }
            }
        }
    }
}
