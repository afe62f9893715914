use quinn::{ConnectionError, ReadError};
use tokio::time::timeout_at;

use super::acceptor::Applicant;
use super::probe_server::serve_probe;
use super::{CloseCode, ControlError, EnrolReply, EnrolRequest, FromDesk, ToDesk, Visitor, accept};
use crate::identity::{Exporter, ExporterError};

/// Reasons why an applicant left without a reply.
#[derive(Debug, thiserror::Error)]
pub enum ServeEnrolError {
    /// The exchange failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The stream ended before the request.
    #[error("the applicant sent no request")]
    NoRequest,
    /// The exchange timed out.
    #[error("the applicant took too long")]
    Slow,
    /// A probe exceeds its bounds.
    #[error("the peer requested or sent more than a probe may")]
    Excess,
    /// An upload broke off.
    #[error("the upload broke off: {0}")]
    Upload(#[from] ReadError),
    /// The session has no exporter to bind a proof to.
    #[error(transparent)]
    Exporter(#[from] ExporterError),
}

/// Receives one request and sends the result of `decide`: one attempt per connection, which is then closed. A
/// probe is served without `decide`.
///
/// # Errors
/// [`ServeEnrolError`] if no request came or no reply could be sent.
pub async fn serve_enrol<F>(
    applicant: Applicant,
    decide: impl FnOnce(EnrolRequest, Visitor) -> F,
) -> Result<(), ServeEnrolError>
where
    F: Future<Output = EnrolReply>,
{
    let served = timeout_at(applicant.deadline, serve(&applicant, decide)).await;
    let (code, reason) = match &served {
        Ok(Ok(())) => (CloseCode::Done, String::new()),
        Ok(Err(error)) => (CloseCode::Protocol, error.to_string()),
        Err(_) => (CloseCode::TooSlow, ServeEnrolError::Slow.to_string()),
    };
    code.close(&applicant.connection, &reason);
    served.unwrap_or(Err(ServeEnrolError::Slow))
}

impl From<ConnectionError> for ServeEnrolError {
    fn from(error: ConnectionError) -> Self {
        Self::Control(error.into())
    }
}

async fn serve<F>(
    applicant: &Applicant,
    decide: impl FnOnce(EnrolRequest, Visitor) -> F,
) -> Result<(), ServeEnrolError>
where
    F: Future<Output = EnrolReply>,
{
    let visitor = Visitor { exporter: Exporter::of(&applicant.connection)?, worker: applicant.worker };
    let (sender, mut receiver) = accept::<FromDesk, ToDesk>(&applicant.connection).await?;
    match receiver.receive().await?.ok_or(ServeEnrolError::NoRequest)? {
        ToDesk::Enrol(request) => {
            let reply = decide(request, visitor).await;
            // An error means that the applicant has closed, which `finish` ignores.
            let _ = sender.send(&FromDesk::Enrol(reply));
        }
        ToDesk::Probe(request) => serve_probe(applicant, request, &sender, &mut receiver).await?,
    }
    sender.finish().await;
    Ok(())
}
