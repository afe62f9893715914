//! Inputs of the task that owns the run.

use std::net::IpAddr;

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::ToWorker;
use longhaul_proto::control::{ControlSender, EnrolReply, EnrolRequest, Visitor};
use longhaul_proto::identity::TokenId;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use longhaul_run::{ConnectionId, Event};

/// Inputs that wait for the owner. When it is full, connections wait with reading, so that QUIC's flow control slows
/// their workers down; nothing is lost.
pub const INPUTS_MAX: usize = 1024;

/// One input.
#[derive(Debug)]
pub enum Input {
    /// Something that the run handles.
    Event(Event),
    /// The same, where a worker's control connection is ready.
    Opened {
        /// Its number.
        connection: ConnectionId,
        /// From its certificate.
        worker: WorkerId,
        /// Its address.
        address: IpAddr,
        /// The way back.
        sender: ControlSender<ToWorker>,
        /// To close it.
        quic: quinn::Connection,
    },
    /// A request for a certificate.
    Enrol {
        /// Its content.
        request: EnrolRequest,
        /// Facts about its connection.
        visitor: Visitor,
        /// The answer.
        reply: oneshot::Sender<EnrolReply>,
    },
    /// A write call of the HTTP API.
    Call(ApiCall),
}

/// Calls of the HTTP API with effects. An answer without receiver is dropped.
#[derive(Debug)]
pub enum ApiCall {
    /// End the run in an orderly way.
    Stop(oneshot::Sender<()>),
    /// Have all write a checkpoint and leave, and stop; or why that is of no use.
    Suspend(Answered<()>),
    /// Have all write a checkpoint soon, and train on; or why that is of no use.
    Checkpoint(Answered<()>),
    /// Pause training until [`ApiCall::Resume`]; the error is the reason why that is of no use.
    Pause(Answered<()>),
    /// Let training go on.
    Resume(Answered<()>),
    /// Ask a worker to leave in an orderly way.
    Dismiss(WorkerId, Answered<()>),
    /// Take a worker out of the run for good.
    Kick(WorkerId, Answered<Kicked>),
    /// Make a join token.
    CreateToken {
        /// How long it is good for, in seconds.
        life_s: u64,
        /// How many workers it lets in; none: any number.
        uses: Option<u32>,
        /// The token, or why there is none.
        reply: oneshot::Sender<Result<NewToken, String>>,
    },
    /// List the join tokens.
    ListTokens(oneshot::Sender<Vec<TokenStatus>>),
    /// Revoke a join token; workers enrolled with it stay. Answers whether it existed.
    RevokeToken(TokenId, oneshot::Sender<bool>),
}

/// The answer, or the reason for a refusal.
pub type Answered<T> = oneshot::Sender<Result<T, CallRefusal>>;

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallRefusal {
    /// There is no such worker.
    Unknown(String),
    /// It makes no sense now.
    Untimely(String),
}

/// A worker that was taken out of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kicked {
    /// Its number.
    pub id: String,
    /// The worker's join token, and perhaps others: a holder can enrol as another worker.
    pub token: String,
    /// Whether that token is still good.
    pub token_is_valid: bool,
}

/// A join token that was just made: the only time that its secret is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewToken {
    /// Its public name.
    pub id: String,
    /// The token for a worker.
    pub token: String,
    /// The whole command for a worker's machine.
    pub command: String,
    /// From this second on (Unix time) it is refused.
    pub expires_at_unix_s: u64,
    /// Workers that may enrol with it; null: any number.
    pub uses_left: Option<u32>,
}

/// A join token without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenStatus {
    /// Its public name.
    pub id: String,
    /// From this second on (Unix time) it is refused.
    pub expires_at_unix_s: u64,
    /// Workers that may still enrol with it; null: any number.
    pub uses_left: Option<u32>,
    /// Whether it was taken back.
    pub revoked: bool,
    /// Whether a worker could enrol with it now.
    pub valid: bool,
}
