//! The records, each write under the condition that this process leads.
//!
//! | key under the prefix | holds |
//! | --- | --- |
//! | `/leader` | who leads; bound to the leader's lease |
//! | `/schema` | the layout |
//! | `/records/NAME` | a record, or in how many parts it is and where |
//! | `/parts/NAME/SLOT/NNNN` | a part of a record that is too long for one request |
//! | `/rounds/N` | the metrics of a round |

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::client::{CallError, Client};
use super::lead::Lead;
use super::wire::{KeyValue, Operation, Range, Ranged, decode, encode};
use crate::store::{Backend, Key, ROUNDS_KEPT, SCHEMA_VERSION, StoreError, StoreName};

/// Longer records are split into parts. etcd takes requests of 1.5 MiB by default, and one request has a few records and rounds.
pub const PART_BYTES_MAX: usize = 256 << 10;
/// The longest record: ten times that of ten thousand workers.
const RECORD_BYTES_MAX: usize = 16 << 20;
/// Rounds that wait for the next write. A transaction of etcd has at most 128 operations.
const ROUNDS_PENDING_MAX: usize = 64;
/// Rounds in one answer.
const ROUNDS_IN_A_PAGE: usize = 512;

/// Content of a record's key.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Stored {
    /// The record.
    Whole(Vec<u8>),
    /// It is in so many parts, in one of two slots: a new one is written into the other, and this key is put last.
    Parts { slot: u8, parts: u32, bytes: u64 },
}

/// The records of a run, for its leader.
#[derive(Debug)]
pub struct Etcd {
    reader: Reader,
    lead: Lead,
    /// Rounds that become durable with the next put.
    pending: Mutex<BTreeMap<u64, Vec<u8>>>,
}

/// Reading, which anybody may.
#[derive(Clone, Debug)]
pub struct Reader {
    pub client: Arc<Client>,
    pub place: StoreName,
}

impl Reader {
    /// A key of the run.
    pub fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.client.address().prefix)
    }

    /// Reads a key.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn find(&self, key: &str, patience: Duration) -> Result<Option<KeyValue>, StoreError> {
        let range = Range { key: encode(key), ..Range::default() };
        let found: Result<Ranged, CallError> = self.client.call("/v3/kv/range", &range, patience);
        Ok(found.map_err(|error| self.failed(error))?.kvs.into_iter().next())
    }

    /// A record.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn get(&self, key: Key, patience: Duration) -> Result<Option<Vec<u8>>, StoreError> {
        match self.head(key, patience)? {
            None => Ok(None),
            Some(Stored::Whole(bytes)) => Ok(Some(bytes)),
            Some(Stored::Parts { slot, parts, bytes }) => {
                if bytes > RECORD_BYTES_MAX as u64 {
                    return Err(self.corrupt("a record's length is above the limit"));
                }
                let mut record = Vec::with_capacity(bytes as usize);
                for part in 0..parts {
                    let missing = || self.corrupt("a part of a record is missing");
                    let found = self.find(&self.part(key, slot, part), patience)?.ok_or_else(missing)?;
                    record.extend(self.value(&found)?);
                    if record.len() as u64 > bytes {
                        break;
                    }
                }
                let whole = record.len() as u64 == bytes;
                if whole { Ok(Some(record)) } else { Err(self.corrupt("a record's parts do not add up")) }
            }
        }
    }

    fn head(&self, key: Key, patience: Duration) -> Result<Option<Stored>, StoreError> {
        let Some(found) = self.find(&self.record(key), patience)? else { return Ok(None) };
        let stored = postcard::from_bytes(&self.value(&found)?);
        stored.map(Some).map_err(|error| self.corrupt(&error.to_string()))
    }

    fn record(&self, key: Key) -> String {
        self.key(&format!("records/{}", key.name()))
    }

    fn part(&self, key: Key, slot: u8, part: u32) -> String {
        self.key(&format!("parts/{}/{slot}/{part:04}", key.name()))
    }

    fn round(&self, round: u64) -> String {
        self.key(&format!("rounds/{round:020}"))
    }

    fn value(&self, found: &KeyValue) -> Result<Vec<u8>, StoreError> {
        decode(&found.value).ok_or_else(|| self.corrupt("etcd's answer is not base64"))
    }

    /// A record is not as written.
    pub fn corrupt(&self, what: &str) -> StoreError {
        StoreError::Corrupt { place: self.place.name.clone(), what: what.to_owned() }
    }

    /// A call that came to nothing.
    pub fn failed(&self, error: CallError) -> StoreError {
        let place = self.place.name.clone();
        match error {
            CallError::Unreachable(why) => StoreError::Unreachable { place, why },
            CallError::Refused(why) => StoreError::Refused { place, why },
        }
    }
}

impl Etcd {
    /// The records, for a process that leads from now on.
    ///
    /// # Errors
    /// [`StoreError::Version`] if another release wrote them.
    pub fn begin(reader: Reader, lead: Lead) -> Result<Self, StoreError> {
        let key = reader.key("schema");
        let found = match reader.find(&key, lead.remaining()?)? {
            None => None,
            Some(found) => {
                let text = String::from_utf8(reader.value(&found)?).ok();
                let version = text.and_then(|text| text.parse::<u64>().ok());
                Some(version.ok_or_else(|| reader.corrupt("the layout's number is not a number"))?)
            }
        };
        match found {
            Some(SCHEMA_VERSION) => {}
            Some(found) => {
                let place = reader.place.name.clone();
                return Err(StoreError::Version { place, found, known: SCHEMA_VERSION });
            }
            None => lead.transact(vec![put(&key, SCHEMA_VERSION.to_string())])?,
        }
        Ok(Self { reader, lead, pending: Mutex::default() })
    }

    /// Prepares the content of a record's key; the parts of a long one are written first, where no reader looks yet.
    fn prepare(&self, key: Key, bytes: &[u8]) -> Result<Operation, StoreError> {
        if bytes.len() > RECORD_BYTES_MAX {
            let place = self.reader.place.name.clone();
            let (record, bytes, bytes_max) = (key.name(), bytes.len(), RECORD_BYTES_MAX);
            return Err(StoreError::TooLong { place, record, bytes, bytes_max });
        }
        let stored = if bytes.len() <= PART_BYTES_MAX {
            Stored::Whole(bytes.to_vec())
        } else {
            let head = self.reader.head(key, self.lead.remaining()?);
            let slot = match head.map_err(|error| self.lead.judge(error))? {
                Some(Stored::Parts { slot: 0, .. }) => 1,
                _ => 0,
            };
            let mut parts = 0;
            for piece in bytes.chunks(PART_BYTES_MAX) {
                self.lead.transact(vec![put(&self.reader.part(key, slot, parts), piece)])?;
                parts += 1;
            }
            Stored::Parts { slot, parts, bytes: bytes.len() as u64 }
        };
        let head = postcard::to_stdvec(&stored).map_err(|error| self.reader.corrupt(&error.to_string()))?;
        Ok(put(&self.reader.record(key), head))
    }

    /// Takes the waiting rounds as operations, with the deletion of those that are too old by then.
    fn take_rounds(&self) -> Vec<Operation> {
        let pending = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        let Some((&newest, _)) = pending.last_key_value() else { return Vec::new() };
        let oldest = (newest + 1).saturating_sub(ROUNDS_KEPT);
        let mut operations = Vec::with_capacity(pending.len() + 1);
        if oldest > 0 {
            let (key, range_end) = (encode(self.reader.round(0)), encode(self.reader.round(oldest)));
            operations.push(Operation::Delete { key, range_end });
        }
        // etcd refuses a transaction that puts a key that it deletes.
        let kept = pending.range(oldest..);
        operations.extend(kept.map(|(&round, metrics)| put(&self.reader.round(round), metrics)));
        operations
    }

    fn flush(&self) -> Result<(), StoreError> {
        let operations = self.take_rounds();
        if operations.is_empty() { Ok(()) } else { self.lead.transact(operations) }
    }
}

impl Backend for Etcd {
    fn place(&self) -> &StoreName {
        &self.reader.place
    }

    fn get(&self, key: Key) -> Result<Option<Vec<u8>>, StoreError> {
        self.reader.get(key, self.lead.remaining()?).map_err(|error| self.lead.judge(error))
    }

    fn put(&self, records: &[(Key, &[u8])]) -> Result<(), StoreError> {
        let mut operations = Vec::new();
        for (key, bytes) in records {
            operations.push(self.prepare(*key, bytes)?);
        }
        operations.extend(self.take_rounds());
        self.lead.transact(operations)
    }

    fn push_round(&self, round: u64, metrics: &[u8]) -> Result<(), StoreError> {
        let waiting = {
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.insert(round, metrics.to_vec());
            pending.len()
        };
        if waiting < ROUNDS_PENDING_MAX { self.check_lead() } else { self.flush() }
    }

    fn rounds(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        self.flush()?;
        let (mut from, mut all) = (self.reader.round(0), Vec::new());
        let end = encode(self.reader.key("rounds0"));
        loop {
            let range = Range { key: encode(&from), range_end: end.clone(), limit: ROUNDS_IN_A_PAGE as i64 };
            let found: Result<Ranged, CallError> =
                self.reader.client.call("/v3/kv/range", &range, self.lead.remaining()?);
            let page = found.map_err(|error| self.lead.judge(self.reader.failed(error)))?.kvs;
            for round in &page {
                all.push(self.reader.value(round)?);
            }
            let Some(last) = page.last().filter(|_| page.len() == ROUNDS_IN_A_PAGE) else { return Ok(all) };
            let odd = || self.reader.corrupt("a round's key is not text");
            from = decode(&last.key).and_then(|key| String::from_utf8(key).ok()).ok_or_else(odd)?;
            from.push('\0');
        }
    }

    fn check_lead(&self) -> Result<(), StoreError> {
        self.lead.remaining().map(drop)
    }
}

fn put(key: &str, value: impl AsRef<[u8]>) -> Operation {
    Operation::Put { key: encode(key), value: encode(value), lease: String::new() }
}
