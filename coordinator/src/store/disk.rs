//! Records in one redb file: the state directory.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

use redb::{
    Database, Durability, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _,
    StorageBackend, TableDefinition, WriteTransaction,
};

use super::{Backend, Key, ROUNDS_KEPT, SCHEMA_VERSION, StoreError, StoreName};

/// The database within a state directory.
pub(super) const FILE: &str = "coordinator.redb";
/// One that is being made: a crash meanwhile would leave a file that is no database yet.
pub(super) const NEW_FILE: &str = "coordinator.redb.new";

pub(super) const SCHEMA: TableDefinition<'_, (), u64> = TableDefinition::new("schema");
const ROUNDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("rounds");

/// A table for each record, with one row.
const fn table(key: Key) -> TableDefinition<'static, (), &'static [u8]> {
    TableDefinition::new(key.name())
}

/// An open database. While it lives, no other coordinator can open it.
#[derive(Debug)]
pub struct Disk {
    database: Database,
    folder: PathBuf,
    place: StoreName,
}

impl Disk {
    /// Whether a state directory has records. Makes nothing.
    ///
    /// # Errors
    /// [`StoreError::Unwritable`]
    pub fn is_in(folder: &Path) -> Result<bool, StoreError> {
        let unwritable = |source| StoreError::Unwritable { folder: folder.to_owned(), source };
        folder.join(FILE).try_exists().map_err(unwritable)
    }

    /// Opens a state directory, and makes it if absent.
    ///
    /// # Errors
    /// [`StoreError`] names the remedy.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let unwritable = |source| StoreError::Unwritable { folder: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(unwritable)?;
        let path = folder.join(FILE);
        if !Self::is_in(folder)? {
            let new = folder.join(NEW_FILE);
            match std::fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unwritable(error)),
                _ => {}
            }
            drop(Self::open_file(folder, &new)?);
            std::fs::rename(new, &path).map_err(unwritable)?;
        }
        Self::open_file(folder, &path)
    }

    /// Removes the records of a state directory.
    ///
    /// # Errors
    /// The system's error.
    pub fn remove_in(folder: &Path) -> io::Result<()> {
        std::fs::remove_file(folder.join(FILE))
    }

    fn open_file(folder: &Path, path: &Path) -> Result<Self, StoreError> {
        // The file holds the authority's key, so it is private before anything is in it.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let unwritable = |source| StoreError::Unwritable { folder: folder.to_owned(), source };
        let file = options.open(path).map_err(unwritable)?;
        Self::begin(folder, redb::Builder::new().create_file(file))
    }

    /// The same over storage of any kind.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn over(storage: impl StorageBackend) -> Result<Self, StoreError> {
        Self::begin(Path::new("in memory"), redb::Builder::new().create_with_backend(storage))
    }

    fn begin(folder: &Path, opened: Result<Database, redb::DatabaseError>) -> Result<Self, StoreError> {
        let database = opened.map_err(|error| StoreError::of_redb(folder, error.into()))?;
        let disk = Self { database, folder: folder.to_owned(), place: StoreName::of_folder(folder) };
        disk.check_schema()?;
        Ok(disk)
    }

    fn check_schema(&self) -> Result<(), StoreError> {
        let mut found = SCHEMA_VERSION;
        self.write(Durability::Immediate, |transaction| {
            let mut schema = transaction.open_table(SCHEMA)?;
            let stored = schema.get(())?.map(|version| version.value());
            match stored {
                Some(version) => found = version,
                None => {
                    schema.insert((), SCHEMA_VERSION)?;
                }
            }
            // Reading needs them to exist.
            for key in Key::ALL {
                transaction.open_table(table(key))?;
            }
            transaction.open_table(ROUNDS)?;
            Ok(())
        })?;
        if found == SCHEMA_VERSION {
            return Ok(());
        }
        Err(StoreError::Version { place: self.place.name.clone(), found, known: SCHEMA_VERSION })
    }

    pub(super) fn write(
        &self,
        durability: Durability,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), StoreError> {
        let write = || -> Result<(), redb::Error> {
            let mut transaction = self.database.begin_write()?;
            transaction.set_durability(durability)?;
            change(&transaction)?;
            transaction.commit()?;
            Ok(())
        };
        write().map_err(|error| StoreError::of_redb(&self.folder, error))
    }
}

impl Backend for Disk {
    fn place(&self) -> &StoreName {
        &self.place
    }

    fn get(&self, key: Key) -> Result<Option<Vec<u8>>, StoreError> {
        let read = || -> Result<Option<Vec<u8>>, redb::Error> {
            let table = self.database.begin_read()?.open_table(table(key))?;
            Ok(table.get(())?.map(|bytes| bytes.value().to_vec()))
        };
        read().map_err(|error| StoreError::of_redb(&self.folder, error))
    }

    fn put(&self, records: &[(Key, &[u8])]) -> Result<(), StoreError> {
        self.write(Durability::Immediate, |transaction| {
            for (key, bytes) in records {
                transaction.open_table(table(*key))?.insert((), *bytes)?;
            }
            Ok(())
        })
    }

    fn push_round(&self, round: u64, metrics: &[u8]) -> Result<(), StoreError> {
        self.write(Durability::None, |transaction| {
            let mut rounds = transaction.open_table(ROUNDS)?;
            rounds.insert(round, metrics)?;
            while rounds.len()? > ROUNDS_KEPT {
                rounds.pop_first()?;
            }
            Ok(())
        })
    }

    fn rounds(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        let read = || -> Result<Vec<Vec<u8>>, redb::Error> {
            let table = self.database.begin_read()?.open_table(ROUNDS)?;
            let mut all = Vec::new();
            for entry in table.iter()? {
                all.push(entry?.1.value().to_vec());
            }
            Ok(all)
        };
        read().map_err(|error| StoreError::of_redb(&self.folder, error))
    }
}
