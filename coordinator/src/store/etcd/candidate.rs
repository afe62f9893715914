//! Election: the present leader, and taking a free lead.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::address::EtcdAddress;
use super::client::{CallError, Client};
use super::lead::{LEASE_TTL_S, Lead};
use super::records::{Etcd, Reader};
use super::wire::{
    CreatedAt, Done, Grant, Granted, KeyValue, OfLease, Operation, Range, Transacted, Transaction, decode,
    encode,
};
use crate::store::{Founding, Key, Store, StoreError, StoreName};

/// Time limit of etcd's answers to a waiting candidate.
const PATIENCE: Duration = Duration::from_secs(3);

/// A leader's description of itself, in its key: as JSON, so that `etcdctl get` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// Addresses for its workers to dial, its own first.
    pub advertised: String,
}

/// Result of an election.
#[derive(Debug)]
pub enum Election {
    /// This process leads while it holds this.
    Won(Box<Store>),
    /// Another process leads.
    Lost(Leader),
}

/// A coordinator that wishes to lead. Its calls wait for etcd.
#[derive(Debug)]
pub struct Candidate {
    reader: Reader,
    own: Leader,
}

impl Candidate {
    /// Creates a candidate without asking etcd yet.
    ///
    /// # Errors
    /// [`StoreError::Refused`] names a file with certificates that cannot be used.
    pub fn new(address: EtcdAddress, advertised: String) -> Result<Self, StoreError> {
        let place = StoreName {
            name: format!("the state in etcd at {address}"),
            another: "another /PREFIX in --state",
        };
        let reader = Reader { client: Arc::new(Client::new(address)?), place };
        Ok(Self { reader, own: Leader { advertised } })
    }

    /// Where the state is, for messages.
    #[must_use]
    pub fn place(&self) -> &StoreName {
        &self.reader.place
    }

    /// How the run was founded, once it was.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn founding(&self) -> Result<Option<Founding>, StoreError> {
        let Some(bytes) = self.reader.get(Key::Founding, PATIENCE)? else { return Ok(None) };
        let corrupt = |error: postcard::Error| self.reader.corrupt(&error.to_string());
        postcard::from_bytes(&bytes).map(Some).map_err(corrupt)
    }

    /// Takes the lead if it is free.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`]: try again later. Others need a person.
    pub fn stand(&self) -> Result<Election, StoreError> {
        if let Some(found) = self.reader.find(&self.reader.key("leader"), PATIENCE)? {
            return Ok(Election::Lost(self.read(&found)));
        }
        let asked = Instant::now();
        let ttl_s = LEASE_TTL_S.to_string();
        let granted: Granted = self.call("/v3/lease/grant", &Grant { ttl_s })?;
        match self.put_key(&granted)? {
            Put::At(revision) => {
                let client = Arc::clone(&self.reader.client);
                let key = encode(self.reader.key("leader"));
                let lead = Lead::begin(client, key, &granted, revision, asked);
                Ok(Election::Won(Box::new(Store::over(Etcd::begin(self.reader.clone(), lead)?))))
            }
            Put::Taken(leader) => {
                // It would run out by itself.
                let _ = self.call::<Done>("/v3/lease/revoke", &OfLease { lease: granted.lease.to_string() });
                Ok(Election::Lost(leader))
            }
        }
    }

    /// Puts the leader's key, unless it is there.
    fn put_key(&self, granted: &Granted) -> Result<Put, StoreError> {
        let key = encode(self.reader.key("leader"));
        let own =
            serde_json::to_string(&self.own).map_err(|error| self.reader.corrupt(&error.to_string()))?;
        let put = Operation::Put { key: key.clone(), value: encode(own), lease: granted.lease.to_string() };
        let transaction = Transaction {
            compare: [CreatedAt::new(key.clone(), 0)],
            success: vec![put],
            failure: vec![Operation::Range(Range { key, ..Range::default() })],
        };
        let answer: Transacted = self.call("/v3/kv/txn", &transaction)?;
        if answer.succeeded {
            return Ok(Put::At(answer.header.revision));
        }
        let found = answer.responses.into_iter().filter_map(|response| response.response_range);
        let Some(found) = found.flat_map(|range| range.kvs).next() else {
            return Err(self.reader.corrupt("the leader's key both exists and does not"));
        };
        // An answer that was lost made this process ask again.
        let own = found.lease == granted.lease;
        Ok(if own { Put::At(found.create_revision) } else { Put::Taken(self.read(&found)) })
    }

    fn read(&self, found: &KeyValue) -> Leader {
        let text = decode(&found.value).unwrap_or_default();
        // The leader's address is for people and searching workers; its existence alone decides.
        serde_json::from_slice(&text).unwrap_or(Leader { advertised: String::new() })
    }

    fn call<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, StoreError> {
        self.reader.client.call(path, body, PATIENCE).map_err(|error: CallError| self.reader.failed(error))
    }
}

enum Put {
    /// At this revision.
    At(i64),
    /// Another leader's key is present.
    Taken(Leader),
}
