//! The state directory: what a coordinator that is killed needs to go on.
//!
//! | file | what | mode |
//! | --- | --- | --- |
//! | `coordinator.redb` | everything below, in typed tables | 0600 |
//! | `api-token` | what write calls to the HTTP API must show: the command line reads it | 0600 |
//! | `http-address` | where the HTTP API listens, for the command line | 0644 |

mod error;
mod files;

pub use error::StoreError;
pub use files::{API_TOKEN_FILE, HTTP_ADDRESS_FILE, read_small, write_private, write_public};

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use longhaul_common::id::RunId;
use longhaul_proto::control::EnrolState;
use redb::{
    Database, Durability, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _,
    TableDefinition,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::run::{RoundSummary, State};

/// The layout of the tables and of the postcard values in them. A change that old code would misread raises it.
const SCHEMA_VERSION: u64 = 9;
const FILE: &str = "coordinator.redb";
/// Rounds whose metrics are kept: a few hundred kilobytes.
pub const ROUNDS_KEPT: u64 = 4096;

const SCHEMA: TableDefinition<'_, (), u64> = TableDefinition::new("schema");
/// How the run was founded: [`Founding`].
const FOUNDING: TableDefinition<'_, (), &[u8]> = TableDefinition::new("founding");
/// The run: [`State`].
const STATE: TableDefinition<'_, (), &[u8]> = TableDefinition::new("state");
/// Tokens and workers: [`EnrolState`].
const ENROLMENT: TableDefinition<'_, (), &[u8]> = TableDefinition::new("enrolment");
/// By round: [`RoundSummary`].
const ROUNDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("rounds");

/// What is written once, when a run begins.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Founding {
    /// Which run.
    pub run: RunId,
    /// Its effective configuration, as TOML.
    pub config: String,
    /// Its certificate authority: certificate and key, in PEM.
    pub authority: String,
}

/// An open state directory. While it lives, no other coordinator can open it.
#[derive(Debug)]
pub struct Store {
    database: Database,
    folder: PathBuf,
}

impl Store {
    /// Opens a state directory, and makes it if there is none.
    ///
    /// # Errors
    /// [`StoreError`] says what to do.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let unwritable = |source| StoreError::Unwritable { folder: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(unwritable)?;
        let path = folder.join(FILE);
        // The file holds the authority's key, so it is private before anything is in it.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path).map_err(unwritable)?;
        let database = redb::Builder::new()
            .create_file(file)
            .map_err(|error| StoreError::opening(folder, error.into()))?;
        let store = Self { database, folder: folder.to_owned() };
        store.check_schema()?;
        Ok(store)
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How the run was founded; none in a new directory.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn founding(&self) -> Result<Option<Founding>, StoreError> {
        self.get(FOUNDING)
    }

    /// The run and its register, as of the last write; none in a new directory.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn load(&self) -> Result<Option<(State, EnrolState)>, StoreError> {
        Ok(self.get(STATE)?.zip(self.get(ENROLMENT)?))
    }

    /// Writes down a new run, all of it or nothing.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn found(
        &self,
        founding: &Founding,
        state: &State,
        enrolment: &EnrolState,
    ) -> Result<(), StoreError> {
        self.write(Durability::Immediate, |transaction| {
            put(transaction, FOUNDING, founding)?;
            put(transaction, STATE, state)?;
            put(transaction, ENROLMENT, enrolment)
        })
    }

    /// Replaces the run's state, durably.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn put_state(&self, state: &State) -> Result<(), StoreError> {
        self.write(Durability::Immediate, |transaction| put(transaction, STATE, state))
    }

    /// Replaces the register of tokens and workers, durably.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn put_enrolment(&self, enrolment: &EnrolState) -> Result<(), StoreError> {
        self.write(Durability::Immediate, |transaction| put(transaction, ENROLMENT, enrolment))
    }

    /// Keeps a round's metrics; they become durable with the next durable write. Old ones go.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn push_round(&self, summary: &RoundSummary) -> Result<(), StoreError> {
        let bytes = postcard::to_stdvec(summary).map_err(|error| self.corrupt(error))?;
        self.write(Durability::None, |transaction| {
            let mut table = transaction.open_table(ROUNDS)?;
            table.insert(summary.round.0, bytes.as_slice())?;
            while table.len()? > ROUNDS_KEPT {
                table.pop_first()?;
            }
            Ok(())
        })
    }

    /// The metrics of the newest rounds, in order.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn rounds(&self) -> Result<Vec<RoundSummary>, StoreError> {
        let read = || -> Result<Vec<Vec<u8>>, redb::Error> {
            let table = self.database.begin_read()?.open_table(ROUNDS)?;
            let mut all = Vec::new();
            for entry in table.iter()? {
                all.push(entry?.1.value().to_vec());
            }
            Ok(all)
        };
        let all = read().map_err(|error| StoreError::opening(&self.folder, error))?;
        all.iter().map(|bytes| postcard::from_bytes(bytes).map_err(|error| self.corrupt(error))).collect()
    }

    fn check_schema(&self) -> Result<(), StoreError> {
        let mut found = SCHEMA_VERSION;
        self.write(Durability::Immediate, |transaction| {
            let mut table = transaction.open_table(SCHEMA)?;
            let stored = table.get(())?.map(|version| version.value());
            match stored {
                Some(version) => found = version,
                None => {
                    table.insert((), SCHEMA_VERSION)?;
                }
            }
            // Reading needs them to exist.
            transaction.open_table(FOUNDING)?;
            transaction.open_table(STATE)?;
            transaction.open_table(ENROLMENT)?;
            transaction.open_table(ROUNDS)?;
            Ok(())
        })?;
        if found == SCHEMA_VERSION {
            return Ok(());
        }
        Err(StoreError::Version { folder: self.folder.clone(), found, known: SCHEMA_VERSION })
    }

    fn get<T: DeserializeOwned>(
        &self,
        table: TableDefinition<'_, (), &'static [u8]>,
    ) -> Result<Option<T>, StoreError> {
        let read = || -> Result<Option<Vec<u8>>, redb::Error> {
            let table = self.database.begin_read()?.open_table(table)?;
            Ok(table.get(())?.map(|bytes| bytes.value().to_vec()))
        };
        let bytes = read().map_err(|error| StoreError::opening(&self.folder, error))?;
        bytes.map(|bytes| postcard::from_bytes(&bytes).map_err(|error| self.corrupt(error))).transpose()
    }

    fn write(
        &self,
        durability: Durability,
        change: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), StoreError> {
        let write = || -> Result<(), redb::Error> {
            let mut transaction = self.database.begin_write()?;
            transaction.set_durability(durability)?;
            change(&transaction)?;
            transaction.commit()?;
            Ok(())
        };
        write().map_err(|error| StoreError::opening(&self.folder, error))
    }

    fn corrupt(&self, error: postcard::Error) -> StoreError {
        StoreError::Corrupt { folder: self.folder.clone(), what: error.to_string() }
    }
}

fn put<T: Serialize>(
    transaction: &redb::WriteTransaction,
    table: TableDefinition<'_, (), &'static [u8]>,
    value: &T,
) -> Result<(), redb::Error> {
    let bytes = postcard::to_stdvec(value).map_err(|error| redb::Error::Corrupted(error.to_string()))?;
    transaction.open_table(table)?.insert((), bytes.as_slice())?;
    Ok(())
}

#[cfg(test)]
mod tests;
