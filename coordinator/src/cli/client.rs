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
        "no coordinator was started on the state directory {state_dir}: name its --state-dir, or its HTTP API with --http ADDR:PORT"
    )]
    Unknown {
        /// Where it was looked for.
        state_dir: String,
        /// The run, as its records there have it all the same.
        recorded: Option<Box<RecordedRun>>,
    },
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
        /// The run, as its records there have it.
        recorded: Option<Box<RecordedRun>>,
    },
    /// Nobody answers any more: the run is over.
    #[error("{}", .0.refusal())]
    Over(Box<RecordedRun>),
    /// It refused.
    #[error("{0}")]
    Refused(String),
    /// It says something else than this release expects.
    #[error("the server at {address} does not answer like a coordinator of this release: {reason}")]
    Foreign {
        /// Where.
        address: String,
        /// What was odd.
        reason: String,
    },
}

impl ClientError {
    /// The run that the call was about, as its state directory has it. None where a coordinator has answered, where nothing is recorded, and where `--http` names a coordinator.
    #[must_use]
    pub fn recorded(&self) -> Option<&RecordedRun> {
        match self {
            Self::Over(run) => Some(run),
            Self::Unknown { recorded, .. } | Self::Unreachable { recorded, .. } => recorded.as_deref(),
            Self::Refused(_) | Self::Foreign { .. } => None,
        }
    }
}

/// The HTTP API of a running coordinator.
#[derive(Debug)]
pub struct Client {
    agent: ureq::Agent,
    address: String,
    token: Option<String>,
    at: Where,
    /// The run of the state directory, if it was over before the first call. Its records do not change any more, so they are read once.
    over: Option<Box<RecordedRun>>,
}

impl Client {
    /// Finds the coordinator.
    ///
    /// # Errors
    /// [`ClientError::Unknown`], or [`ClientError::Over`]
    pub fn find(at: &Where) -> Result<Self, ClientError> {
        // What cannot be read is as good as not there; the message names the directory.
        let stored = |file| read_small(&at.state_dir.join(file)).ok().flatten();
        let recorded = RecordedRun::newest(at).map(Box::new);
        let Some(address) = at.http.clone().or_else(|| stored(HTTP_ADDRESS_FILE)) else {
            let state_dir = at.state_dir.display().to_string();
            return Err(unless_over(recorded, |recorded| ClientError::Unknown { state_dir, recorded }));
        };
        let token = std::env::var("LONGHAUL_API_TOKEN").ok().or_else(|| stored(API_TOKEN_FILE));
        let token = token.or_else(|| stored(API_READ_TOKEN_FILE));
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .proxy(None)
            .build();
        let over = recorded.filter(|run| run.is_over());
        let client = Self { agent: config.into(), address, token, at: at.clone(), over };
        client.is_of_this_run()?;
        Ok(client)
    }

    /// The address of a run that is over may be that of another one's coordinator now.
    fn is_of_this_run(&self) -> Result<(), ClientError> {
        let Some(run) = &self.over else { return Ok(()) };
        match self.get::<serde_json::Value>("/api/v1/status") {
            Ok(status) if status["run"].as_str() != Some(&run.status.run.id) => {
                Err(ClientError::Over(run.clone()))
            }
            Err(over @ ClientError::Over(_)) => Err(over),
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
            unless_over(self.recorded(), |recorded| ClientError::Unreachable {
                address: address(),
                reason,
                state_dir,
                recorded,
            })
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

    /// The run as it is recorded now: one that was not over when the coordinator was looked for may have ended since.
    fn recorded(&self) -> Option<Box<RecordedRun>> {
        self.over.clone().or_else(|| RecordedRun::newest(&self.at).map(Box::new))
    }
}

/// Why nobody answers: the state directory may say that the run is over.
fn unless_over(
    recorded: Option<Box<RecordedRun>>,
    error: impl FnOnce(Option<Box<RecordedRun>>) -> ClientError,
) -> ClientError {
    match recorded {
        Some(run) if run.is_over() => ClientError::Over(run),
        recorded => error(recorded),
    }
}
