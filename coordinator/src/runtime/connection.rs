//! One task per connection: through the door, then enrolment or control.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::{ToCoordinator, ToWorker};
use longhaul_proto::control::{
    Applicant, ControlError, Door, EnrolRefusal, EnrolReply, Guest, ServeEnrolError, accept, serve_enrol,
};
use quinn::{Connection, Incoming};
use tokio::sync::{mpsc, oneshot};

use super::input::Input;
use crate::run::ConnectionId;

/// Where connections come in.
#[derive(Clone, Debug)]
pub struct Reception {
    pub door: Door,
    pub inputs: mpsc::Sender<Input>,
    pub numbers: Arc<AtomicU64>,
}

impl Reception {
    /// Handles one connection to its end.
    pub async fn receive(self, incoming: Incoming) {
        let address = incoming.remote_address();
        match self.door.admit(incoming).await {
            Ok(Guest::Worker { worker, connection }) => self.converse(worker, connection).await,
            Ok(Guest::Applicant(applicant)) => self.enrol(address, applicant).await,
            Err(error) => tracing::debug!(%address, %error, "turned a connection away"),
        }
    }

    async fn enrol(self, address: SocketAddr, applicant: Applicant) {
        let inputs = self.inputs;
        let decide = |request, visitor| async move {
            let (reply, answer) = oneshot::channel();
            let closing =
                || EnrolReply::Refused(EnrolRefusal::BadRequest("the coordinator is stopping".to_owned()));
            if inputs.send(Input::Enrol { request, visitor, reply }).await.is_err() {
                return closing();
            }
            answer.await.unwrap_or_else(|_| closing())
        };
        match serve_enrol(applicant, decide).await {
            Ok(()) => {}
            Err(ServeEnrolError::Control(error)) if error.is_other_version() => {
                other_version(address, &error)
            }
            Err(error) => tracing::debug!(%error, "an enrolment came to nothing"),
        }
    }

    async fn converse(self, worker: WorkerId, quic: Connection) {
        let (sender, mut receiver) = match accept::<ToWorker, ToCoordinator>(&quic).await {
            Ok(halves) => halves,
            Err(error) if error.is_other_version() => return other_version(quic.remote_address(), &error),
            Err(error) => return tracing::debug!(%worker, %error, "a control connection did not come about"),
        };
        let connection = ConnectionId(self.numbers.fetch_add(1, Ordering::Relaxed));
        let address = quic.remote_address().ip().to_canonical();
        let opened = Input::Opened { connection, worker, address, sender, quic: quic.clone() };
        if self.inputs.send(opened).await.is_err() {
            return;
        }
        loop {
            match receiver.receive().await {
                // Waiting here holds this worker's messages back, and nobody else's.
                Ok(Some(message)) => {
                    if self.inputs.send(Input::Message { connection, message }).await.is_err() {
                        return;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%worker, %error, "a control connection ended");
                    break;
                }
            }
        }
        // An error means that the coordinator stops.
        let _ = self.inputs.send(Input::Closed { connection }).await;
    }
}

/// Nothing that the coordinator can mend: the person who reads its log can.
fn other_version(address: SocketAddr, error: &ControlError) {
    tracing::warn!(%address, reason = %error, "turned a worker of another release away");
}
