use tokio::time::timeout_at;

use super::door::Applicant;
use super::{CloseCode, ControlError, EnrolReply, EnrolRequest, Visitor, accept};
use crate::identity::{Exporter, ExporterError};

/// Why an applicant left without an answer.
#[derive(Debug, thiserror::Error)]
pub enum ServeEnrolError {
    /// The conversation.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// It ended before the request.
    #[error("the applicant asked for nothing")]
    NoRequest,
    /// It took too long.
    #[error("the applicant took too long")]
    Slow,
    /// There is nothing to bind a proof to.
    #[error(transparent)]
    Exporter(#[from] ExporterError),
}

/// Hears one request and answers it with what `decide` says: one attempt a connection, then it is closed.
///
/// # Errors
/// [`ServeEnrolError`] if there was nothing to answer, or no way to.
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

async fn serve<F>(
    applicant: &Applicant,
    decide: impl FnOnce(EnrolRequest, Visitor) -> F,
) -> Result<(), ServeEnrolError>
where
    F: Future<Output = EnrolReply>,
{
    let visitor = Visitor { exporter: Exporter::of(&applicant.connection)?, worker: applicant.worker };
    let (sender, mut receiver) = accept::<EnrolReply, EnrolRequest>(&applicant.connection).await?;
    let request = receiver.receive().await?.ok_or(ServeEnrolError::NoRequest)?;
    let reply = decide(request, visitor).await;
    // An error means that the applicant has hung up, which `finish` does not mind.
    let _ = sender.send(&reply);
    sender.finish().await;
    Ok(())
}
