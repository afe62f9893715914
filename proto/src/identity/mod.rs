//! Identities: the run's certificate authority, join tokens, and the TLS configurations. `docs/identity.md`
//! describes the design.

mod any_authority;
mod authority;
mod base32;
mod credentials;
mod fingerprint;
mod name;
mod peer;
mod pem_text;
mod pin;
mod proof;
mod request;
mod tls;
mod token;
mod token_record;
mod verifier;

pub use authority::{Authority, AuthorityError, CLOCK_SKEW_S, WORKER_CERTIFICATE_S};
pub use credentials::{Identity, IdentityError};
pub use fingerprint::Fingerprint;
pub use name::{COORDINATOR_OF_ANY_RUN, NameError, PeerName};
pub use peer::{PeerError, peer_name, peer_worker};
pub use proof::{Exporter, ExporterError, Proof, Secret};
pub use request::{REQUEST_BYTES_MAX, WorkerKey};
pub(crate) use tls::ALERT_UNKNOWN_CA;
pub use tls::{
    TlsError, control_client, coordinator_server, data_client, data_server, enrol_client, is_out_of_date,
    is_refused_as_expired, probe_client, renew_client,
};
pub use token::{TOKEN_PREFIX, Token, TokenError, TokenId};
pub use token_record::{TokenRecord, TokenRefusal};

/// ALPN protocol of enrolment: worker to coordinator, a certificate is optional.
pub const ALPN_ENROL: &[u8] = b"longhaul-enrol";
/// ALPN protocol of the control channel: worker to coordinator, certificates on both sides.
pub const ALPN_CONTROL: &[u8] = b"longhaul-control";
/// ALPN protocol of bulk data: worker to worker, certificates on both sides.
pub const ALPN_DATA: &[u8] = b"longhaul-data";
