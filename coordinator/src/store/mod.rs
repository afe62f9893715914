//! What a coordinator that is killed needs to go on, in one of two places: a file in the state directory ([`Disk`]), or etcd, which another coordinator reads as
//! well ([`etcd`]). `coordinator/docs/store.md` is the design.
//!
//! The state directory also has small files for the command line on that machine:
//!
//! | file | what | mode |
//! | --- | --- | --- |
//! | `coordinator.redb` | all records, unless they are in etcd | 0600 |
//! | `api-token` | a copy of what write calls to the HTTP API must show | 0600 |
//! | `api-read-token` | a copy of what suffices to read: for a monitor on another machine | 0600 |
//! | `http-address` | where this machine's coordinator answers HTTP | 0644 |
//! | `history/` | what the dashboard shows over time ([`history`](crate::history)) | 0600 |
//! | `decisions/` | what was decided here, for `coordinator replay` ([`record`](crate::record)) | 0600 |

mod backend;
mod disk;
mod error;
pub mod etcd;
mod files;
mod store_name;

pub use backend::{Backend, Key};
pub use disk::Disk;
pub use error::StoreError;
pub use files::{
    API_READ_TOKEN_FILE, API_TOKEN_FILE, HTTP_ADDRESS_FILE, read_small, write_private, write_public,
};
pub use store_name::StoreName;

use std::path::Path;

use longhaul_common::id::RunId;
use longhaul_proto::control::EnrolState;
use serde::Serialize;
use serde::de::DeserializeOwned;

use longhaul_run::{RoundSummary, RunState};

/// The layout of the records and of the postcard values in them. A change that old code would misread raises it.
const SCHEMA_VERSION: u64 = 25;
/// Rounds with kept metrics: a few hundred kilobytes.
pub const ROUNDS_KEPT: u64 = 4096;

/// Records written once, when a run begins.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Founding {
    /// Which run.
    pub run: RunId,
    /// Its effective configuration, as TOML.
    pub config: String,
    /// Its certificate authority: certificate and key, in PEM.
    pub authority: String,
}

/// The authority's key is in it.
impl std::fmt::Debug for Founding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Founding").field("run", &self.run).finish_non_exhaustive()
    }
}

/// The run's records, in their types.
#[derive(Debug)]
pub struct Store {
    backend: Box<dyn Backend>,
}

impl Store {
    /// Whether a state directory has records. Creates nothing.
    ///
    /// # Errors
    /// [`StoreError`] names the remedy.
    pub fn is_in(folder: &Path) -> Result<bool, StoreError> {
        Disk::is_in(folder)
    }

    /// Opens a state directory, and makes it if absent. While it lives, no other coordinator can open it.
    ///
    /// # Errors
    /// [`StoreError`] names the remedy.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        Ok(Self::over(Disk::open(folder)?))
    }

    /// Removes the records of a state directory that this has open.
    ///
    /// # Errors
    /// The system's error.
    pub fn remove(self, folder: &Path) -> std::io::Result<()> {
        let removed = Disk::remove_in(folder);
        // Until then no other process could begin a run on them.
        drop(self);
        removed
    }

    /// The records that something keeps.
    #[must_use]
    pub fn over(backend: impl Backend + 'static) -> Self {
        Self { backend: Box::new(backend) }
    }

    /// Where it is, for messages.
    #[must_use]
    pub fn place(&self) -> &StoreName {
        self.backend.place()
    }

    /// How the run was founded; none before that.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn founding(&self) -> Result<Option<Founding>, StoreError> {
        self.get(Key::Founding)
    }

    /// The run and its register, as of the last write; none before the run was founded.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn load(&self) -> Result<Option<(RunState, EnrolState)>, StoreError> {
        Ok(self.get(Key::State)?.zip(self.get(Key::Enrolment)?))
    }

    /// A token of the HTTP API, [`Key::ApiToken`] or [`Key::ApiReadToken`]; none before it was put.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn api_token(&self, key: Key) -> Result<Option<String>, StoreError> {
        self.get(key)
    }

    /// Writes down a new run, all of it or nothing.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn found(
        &self,
        founding: &Founding,
        state: &RunState,
        enrolment: &EnrolState,
    ) -> Result<(), StoreError> {
        let (founding, state, enrolment) =
            (self.encode(founding)?, self.encode(state)?, self.encode(enrolment)?);
        self.backend.put(&[(Key::Founding, &founding), (Key::State, &state), (Key::Enrolment, &enrolment)])
    }

    /// Replaces the run's state, durably.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn put_state(&self, state: &RunState) -> Result<(), StoreError> {
        self.put(Key::State, state)
    }

    /// Replaces the register of tokens and workers, durably.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn put_enrolment(&self, enrolment: &EnrolState) -> Result<(), StoreError> {
        self.put(Key::Enrolment, enrolment)
    }

    /// Replaces a token of the HTTP API, durably.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn put_api_token(&self, key: Key, token: &str) -> Result<(), StoreError> {
        self.put(key, &token)
    }

    /// Keeps a round's metrics; they become durable with the next durable write. Old ones go.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn push_round(&self, summary: &RoundSummary) -> Result<(), StoreError> {
        self.backend.push_round(summary.round.0, &self.encode(summary)?)
    }

    /// The metrics of the newest rounds, in order.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn rounds(&self) -> Result<Vec<RoundSummary>, StoreError> {
        self.backend.rounds()?.iter().map(|bytes| self.decode(bytes)).collect()
    }

    /// Whether this coordinator may still decide and write. Cheap, so it is asked before each step.
    ///
    /// # Errors
    /// [`StoreError::Deposed`]
    pub fn check_lead(&self) -> Result<(), StoreError> {
        self.backend.check_lead()
    }

    fn get<T: DeserializeOwned>(&self, key: Key) -> Result<Option<T>, StoreError> {
        self.backend.get(key)?.map(|bytes| self.decode(&bytes)).transpose()
    }

    fn put<T: Serialize>(&self, key: Key, value: &T) -> Result<(), StoreError> {
        self.backend.put(&[(key, &self.encode(value)?)])
    }

    fn encode<T: Serialize>(&self, value: &T) -> Result<Vec<u8>, StoreError> {
        postcard::to_stdvec(value).map_err(|error| self.corrupt(error))
    }

    fn decode<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, StoreError> {
        postcard::from_bytes(bytes).map_err(|error| self.corrupt(error))
    }

    fn corrupt(&self, error: postcard::Error) -> StoreError {
        StoreError::Corrupt { place: self.place().name.clone(), what: error.to_string() }
    }
}

#[cfg(test)]
mod crashes;
#[cfg(test)]
mod tests;
