//! What is said on a connection of the enrolment protocol: the first message says whether somebody enrols or probes.

use serde::{Deserialize, Serialize};

use super::{ControlMessage, EnrolReply, EnrolRequest, ProbeReply, ProbeRequest};

/// From a visitor. A variant's number is its place, so new ones go to the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDesk {
    /// Once, and nothing after it.
    Enrol(EnrolRequest),
    /// Up to [`super::PROBE_REQUESTS_MAX`] times.
    Probe(ProbeRequest),
}

/// To a visitor, in kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromDesk {
    /// Answers [`ToDesk::Enrol`].
    Enrol(EnrolReply),
    /// Answers [`ToDesk::Probe`].
    Probe(ProbeReply),
}

impl ControlMessage for ToDesk {
    /// An enrolment, the longest, and the number before it.
    const BYTES_MAX: usize = EnrolRequest::BYTES_MAX + 1;
}

impl ControlMessage for FromDesk {
    /// An enrolment, the longest, and the number before it.
    const BYTES_MAX: usize = EnrolReply::BYTES_MAX + 1;
}
