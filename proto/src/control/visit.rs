//! Messages of the enrolment protocol: the first one starts an enrolment or a probe.

use serde::{Deserialize, Serialize};

use super::{ControlMessage, EnrolReply, EnrolRequest, ProbeReply, ProbeRequest};

/// From the peer. The number of a variant is its place, so append new ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDesk {
    /// Once, as the only message.
    Enrol(EnrolRequest),
    /// Up to [`super::PROBE_REQUESTS_MAX`] times.
    Probe(ProbeRequest),
}

/// Replies to the peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromDesk {
    /// Reply to [`ToDesk::Enrol`].
    Enrol(EnrolReply),
    /// Reply to [`ToDesk::Probe`].
    Probe(ProbeReply),
}

impl ControlMessage for ToDesk {
    /// The longest enrolment, and the number before it.
    const BYTES_MAX: usize = EnrolRequest::BYTES_MAX + 1;
}

impl ControlMessage for FromDesk {
    /// The longest enrolment, and the number before it.
    const BYTES_MAX: usize = EnrolReply::BYTES_MAX + 1;
}
