//! The command line's side of the HTTP API.

use std::time::Duration;

use serde::de::DeserializeOwned;

use super::{RecordedRun, Where};
use crate::http::WAIT_S_MAX;
use crate::store::{API_READ_TOKEN_FILE, API_TOKEN_FILE, HTTP_ADDRESS_FILE, read_small};

/// The coordinator answers at once; what takes longer is lost.
const TIMEOUT: Duration = Duration::from_secs(10);
/// But for events, which are waited for.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(WAIT_S_MAX + 10);

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody said where the coordinator is.
    #[error(
        "no coordinator was started on the state directory {0}: name its --state-dir, or its HTTP API with --http ADDR:PORT"
    )]
    Unknown(String),
    /// Nobody answers there.
    #[error(
        "no coordinator answers at {address} ({reason}): is it running? `coordinator up` continues an unfinished run; `coordinator view --state-dir {state_dir}` shows the records of any run"
    )]
    Unreachable {
        /// Where.
        address: String,
        /// What the system says.
        reason: String,
        /// Where its records may be.
        state_dir: String,
    },
    /// Nobody answers any more: the run is over.
    #[error("{}", .0.refusal())]
    Over(Box<RecordedRun>),
    /// It refused.
    #[error("{0}")]
    Refused(String),
    /// It says something else than this release expects.
    #[error("what answers at {address} does not speak as a coordinator of this release does: {reason}")]
    Foreign {
        /// Where.
        address: String,
        /// What was odd.
        reason: String,
    },
}

/// The HTTP API of a running coordinator.
#[derive(Debug)]
pub struct Client {
    agent: ureq::Agent,
    address: String,
    token: Option<String>,
    at: Where,
}

impl Client {
    /// Finds the coordinator.
    ///
    /// # Errors
    /// [`ClientError::Unknown`], or [`ClientError::Over`]
    pub fn find(at: &Where) -> Result<Self, ClientError> {
        // What cannot be read is as good as not there; the message names the directory.
        let stored = |file| read_small(&at.state_dir.join(file)).ok().flatten();
        let unknown = || unless_over(at, ClientError::Unknown(at.state_dir.display().to_string()));
        let address = at.http.clone().or_else(|| stored(HTTP_ADDRESS_FILE)).ok_or_else(unknown)?;
        let token = std::env::var("LONGHAUL_API_TOKEN").ok().or_else(|| stored(API_TOKEN_FILE));
        let token = token.or_else(|| stored(API_READ_TOKEN_FILE));
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .proxy(None)
            .build();
        let client = Self { agent: config.into(), address, token, at: at.clone() };
        client.is_of_this_run()?;
        Ok(client)
    }

    /// The address of a run that is over may be that of another one's coordinator now.
    fn is_of_this_run(&self) -> Result<(), ClientError> {
        let Some(run) = RecordedRun::newest(&self.at).filter(RecordedRun::is_over) else { return Ok(()) };
        match self.get::<serde_json::Value>("/api/v1/status") {
            Ok(status) if status["run"].as_str() != Some(&run.status.run) => {
                Err(ClientError::Over(Box::new(run)))
            }
            // Whoever asks hears why.
            _ => Ok(()),
        }
    }

    /// Reads something.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.read(self.with_token(self.agent.get(self.url(path))).call())
    }

    /// Reads something that the coordinator may wait for.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn wait_for<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let request = self.agent.get(self.url(path)).config().timeout_global(Some(FOLLOW_TIMEOUT)).build();
        self.read(self.with_token(request).call())
    }

    /// Changes something.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Result<T, ClientError> {
        self.read(self.with_token(self.agent.post(self.url(path))).send_json(body))
    }

    /// Takes something away.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.read(self.with_token(self.agent.delete(self.url(path))).call())
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn with_token<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    fn read<T: DeserializeOwned>(
        &self,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<T, ClientError> {
        let address = || self.address.clone();
        let mut answer = answer.map_err(|error| {
            let (reason, state_dir) = (error.to_string(), self.at.state_dir.display().to_string());
            unless_over(&self.at, ClientError::Unreachable { address: address(), reason, state_dir })
        })?;
        let foreign = |reason: String| ClientError::Foreign { address: address(), reason };
        if answer.status().is_success() {
            return answer.body_mut().read_json().map_err(|error| foreign(error.to_string()));
        }
        let status = answer.status();
        let refusal: serde_json::Value = answer.body_mut().read_json().unwrap_or_default();
        match refusal["error"].as_str() {
            Some(reason) => Err(ClientError::Refused(reason.to_owned())),
            None => Err(foreign(format!("it answers {status}"))),
        }
    }
}

/// Why nobody answers: the state directory may say that the run is over.
fn unless_over(at: &Where, error: ClientError) -> ClientError {
    match RecordedRun::newest(at).filter(RecordedRun::is_over) {
        Some(run) => ClientError::Over(Box::new(run)),
        None => error,
    }
}
