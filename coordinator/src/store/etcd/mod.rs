//! Records in etcd, for a coordinator that another one can replace.
//!
//! | file | holds |
//! | --- | --- |
//! | `address` | `etcd://host:port,host:port/prefix`, and who asks |
//! | `wire` | the requests and answers of etcd's JSON gateway that are used |
//! | `client` | one request, to whichever member of the cluster answers |
//! | `candidate` | who leads, and taking the lead when nobody does |
//! | `lead` | the lease that is the right to write, and its renewal |
//! | `tls` | certificates on the way, and what it means when one is not taken |
//! | `records` | the records, each write under the condition that this process leads |

mod address;
mod candidate;
mod client;
mod lead;
mod records;
mod tls;
mod wire;

pub use address::{AddressError, EtcdAddress, Login, TlsFiles};
pub use candidate::{Candidate, Election, Leader};
pub use lead::LEASE_TTL_S;
pub use records::{Etcd, PART_BYTES_MAX};

#[cfg(test)]
mod tests;
