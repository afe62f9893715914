//! The control protocol between a worker and the coordinator. `docs/identity.md` describes its design, except
//! for the messages.

mod acceptor;
mod certificate_issuer;
mod channel;
mod close;
mod data;
mod enrol;
mod enrol_client;
mod enrol_server;
mod frame;
mod heartbeat;
mod hello;
pub mod message;
mod probe;
mod probe_client;
mod probe_server;
mod report;
mod settlement;
mod visit;
mod wire;

pub use acceptor::{
    Acceptor, AcceptorError, Applicant, AuthenticatedPeer, STRANGER_WINDOW_BYTES,
    UNAUTHENTICATED_CONNECTIONS_MAX,
};
pub use certificate_issuer::{
    CertificateIssuer, EnrolState, TOKENS_MAX, TooManyTokens, Visitor, WORKERS_MAX, WorkerRecord,
};
pub use channel::{
    ControlError, ControlReceiver, ControlSender, Ear, QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX, SendError,
    accept, open,
};
pub use close::{CloseCode, NotLeader};
pub use enrol::{ENROL_DEADLINE, EnrolRefusal, EnrolReply, EnrolRequest, Grounds, SITE_NAME_BYTES_MAX};
pub use enrol_client::{EnrolError, enrol, renew};
pub use enrol_server::{ServeEnrolError, serve_enrol};
pub use frame::{FRAME_GRACE, FRAME_RATE_BYTES_PER_S_MIN, FrameError};
pub use hello::{HELLO_DEADLINE, Hello, HelloError, SOFTWARE_BYTES_MAX};
pub use probe::{
    PROBE_BYTES_MAX, PROBE_REQUESTS_MAX, PROBE_STREAMS, PROBE_UPLOAD_MAX, PROBE_UPLOADS_MAX, ProbeReply,
    ProbeRequest,
};
pub use probe_client::{Echo, PROBE_DIAL_MAX, Probe, ProbeError, Upload};
pub use visit::{FromDesk, ToDesk};
pub use wire::{
    CONTROL_FRAME_BYTES_MAX, ControlMessage, DecodeError, REPORT_FRAME_BYTES_MAX, decode, encode,
};
