//! Identity and the control channel over real QUIC endpoints on the loopback interface.

mod control;
mod enrolment;
mod net;
mod probe;
mod strangers;
