//! One task per connection: through the door, then enrolment or control.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::{ToCoordinator, ToWorker};
use longhaul_proto::control::{
    Acceptor, Applicant, AuthenticatedPeer, ControlError, EnrolRefusal, EnrolReply, ServeEnrolError, accept,
    serve_enrol,
};
use longhaul_proto::identity::TokenRefusal;
use quinn::{Connection, Incoming};
use tokio::sync::{mpsc, oneshot};

use crate::inbox::Input;
use crate::slowdown::Slowdown;
use longhaul_run::{ConnectionId, Event};

/// Time between looks at a worker's address: quinn does not report a move.
const ADDRESS_LOOK: Duration = Duration::from_secs(1);
/// So many in a row have to find it at the same new address: quinn goes by one from which a packet has come before it has made sure of it, and back again where it was not the peer's.
const ADDRESS_LOOKS: u32 = 4;

/// Where connections come in.
#[derive(Clone, Debug)]
pub struct Reception {
    pub acceptor: Acceptor,
    pub inputs: mpsc::Sender<Input>,
    pub numbers: Arc<AtomicU64>,
    /// Queue of callers with wrong tokens.
    pub slowdown: Slowdown,
}

impl Reception {
    /// Handles one connection to its end.
    pub async fn receive(self, incoming: Incoming) {
        let address = incoming.remote_address();
        match self.acceptor.admit(incoming).await {
            Ok(AuthenticatedPeer::Worker { worker, connection }) => self.converse(worker, connection).await,
            Ok(AuthenticatedPeer::Applicant(applicant)) => self.enrol(address, applicant).await,
            Err(error) => tracing::debug!(%address, %error, "rejected a connection"),
        }
    }

    async fn enrol(self, address: SocketAddr, applicant: Applicant) {
        let (inputs, slowdown) = (self.inputs, self.slowdown);
        let decide = |request, visitor| async move {
            let (reply, answer) = oneshot::channel();
            let closing =
                || EnrolReply::Refused(EnrolRefusal::BadRequest("the coordinator is stopping".to_owned()));
            if inputs.send(Input::Enrol { request, visitor, reply }).await.is_err() {
                return closing();
            }
            let reply = answer.await.unwrap_or_else(|_| closing());
            if is_wrong(&reply) {
                // With too many waiting, it has waited as long and gets the same answer.
                let _ = slowdown.wait().await;
            }
            reply
        };
        match serve_enrol(applicant, decide).await {
            Ok(()) => {}
            Err(ServeEnrolError::Control(error)) if error.is_other_version() => {
                other_version(address, &error)
            }
            Err(error) => tracing::debug!(%error, "an enrolment failed"),
        }
    }

    async fn converse(self, worker: WorkerId, quic: Connection) {
        let (sender, mut receiver) = match accept::<ToWorker, ToCoordinator>(&quic).await {
            Ok(halves) => halves,
            Err(error) if error.is_other_version() => return other_version(quic.remote_address(), &error),
            Err(error) => {
                return tracing::debug!(%worker, %error, "a control connection could not be established");
            }
        };
        let connection = ConnectionId(self.numbers.fetch_add(1, Ordering::Relaxed));
        let address = quic.remote_address().ip().to_canonical();
        let opened = Input::Opened { connection, worker, address, sender, quic: quic.clone() };
        if self.inputs.send(opened).await.is_err() {
            return;
        }
        let talk = async {
            loop {
                match receiver.receive().await {
                    // Waiting here holds back this worker's messages alone.
                    Ok(Some(message)) => {
                        if self
                            .inputs
                            .send(Input::Event(Event::Message { connection, message }))
                            .await
                            .is_err()
                        {
                            return;
                        }
                    }
                    Ok(None) => return,
                    Err(error) => return tracing::debug!(%worker, %error, "a control connection ended"),
                }
            }
        };
        tokio::select! {
            () = talk => {}
            () = self.watch_address(connection, &quic, address) => {}
        }
        // An error means that the coordinator stops.
        let _ = self.inputs.send(Input::Event(Event::Closed { connection })).await;
    }

    /// Says so when a worker goes on from another address, for as long as anybody listens.
    async fn watch_address(&self, connection: ConnectionId, quic: &Connection, address: IpAddr) {
        let (mut known, mut seen, mut looks) = (address, address, 0);
        loop {
            tokio::time::sleep(ADDRESS_LOOK).await;
            let now_at = quic.remote_address().ip().to_canonical();
            looks = if now_at == seen { looks + 1 } else { 1 };
            seen = now_at;
            if seen != known && looks >= ADDRESS_LOOKS {
                known = seen;
                let moved = Event::Moved { connection, address: known };
                if self.inputs.send(Input::Event(moved)).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Whether the request had an unknown token, or a wrong secret.
fn is_wrong(reply: &EnrolReply) -> bool {
    use TokenRefusal::{Unknown, WrongSecret};
    matches!(reply, EnrolReply::Refused(EnrolRefusal::Token(Unknown | WrongSecret)))
}

/// Only the reader of the log can mend this.
fn other_version(address: SocketAddr, error: &ControlError) {
    tracing::warn!(%address, reason = %error, "rejected a worker of another release");
}
