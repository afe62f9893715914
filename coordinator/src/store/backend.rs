//! The store's requirements for a place of records.

use std::fmt;

use super::{StoreError, StoreName};

/// A record that is replaced as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// How the run was founded: [`super::Founding`].
    Founding,
    /// The run: [`longhaul_run::RunState`].
    State,
    /// Tokens and workers: [`longhaul_proto::control::EnrolState`].
    Enrolment,
    /// Token for write calls of the HTTP API.
    ApiToken,
    /// Token for reading.
    ApiReadToken,
}

impl Key {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Founding, Self::State, Self::Enrolment, Self::ApiToken, Self::ApiReadToken];

    /// The name of its table or key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Founding => "founding",
            Self::State => "state",
            Self::Enrolment => "enrolment",
            Self::ApiToken => "api-token",
            Self::ApiReadToken => "api-read-token",
        }
    }
}

/// Keeps records as opaque bytes. `coordinator/docs/store.md` lists the guarantees of each kind.
pub trait Backend: fmt::Debug + Send {
    /// Where it is, for messages.
    fn place(&self) -> &StoreName;

    /// A record as it was last put; none if it never was.
    ///
    /// # Errors
    /// [`StoreError`]
    fn get(&self, key: Key) -> Result<Option<Vec<u8>>, StoreError>;

    /// Puts records, all of them or none. They are durable when this returns; after an error it is unknown whether they are.
    ///
    /// # Errors
    /// [`StoreError::Deposed`] where another process may write now; then nothing was put.
    fn put(&self, records: &[(Key, &[u8])]) -> Result<(), StoreError>;

    /// Keeps the metrics of a round, and forgets those of all but the newest [`super::ROUNDS_KEPT`]. They are durable with the next [`Self::put`].
    ///
    /// # Errors
    /// As [`Self::put`].
    fn push_round(&self, round: u64, metrics: &[u8]) -> Result<(), StoreError>;

    /// The metrics of the rounds that are kept, in order.
    ///
    /// # Errors
    /// [`StoreError`]
    fn rounds(&self) -> Result<Vec<Vec<u8>>, StoreError>;

    /// Whether this process may still write, as far as it knows without asking anybody.
    ///
    /// # Errors
    /// [`StoreError::Deposed`]
    fn check_lead(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
