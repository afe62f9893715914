//! Calls of the HTTP API to the owner: tokens, dismissals, and pauses.

use std::collections::BTreeSet;
use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_proto::control::CloseCode;
use longhaul_proto::identity::{Token, TokenRecord};
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::owner::{Owner, OwnerError};
use crate::inbox::{Answered, ApiCall, CallRefusal, Kicked, NewToken, TokenStatus};
use longhaul_run::{Event, Phase};

/// How long a worker that is taken out may take to hear why, in milliseconds: everybody is to be rid of it within a second.
const KICKED_HEARS_MS: u64 = 500;
/// Workers listed in an answer about an unknown worker.
const NAMED_MAX: usize = 32;

impl Owner {
    pub(super) fn call(&mut self, call: ApiCall) -> Result<(), OwnerError> {
        match call {
            ApiCall::Stop(reply) => {
                self.step(Event::Drain)?;
                self.publish();
                let _ = reply.send(());
            }
            ApiCall::Suspend(reply) => self.operate(Event::Suspend, reply)?,
            ApiCall::Checkpoint(reply) => self.operate(Event::Checkpoint, reply)?,
            ApiCall::Pause(reply) => self.operate(Event::Pause, reply)?,
            ApiCall::Resume(reply) => self.operate(Event::Resume, reply)?,
            ApiCall::Dismiss(worker, reply) => {
                let answer = self.dismiss(worker)?;
                let _ = reply.send(answer);
            }
            ApiCall::Kick(worker, reply) => {
                let answer = self.kick(worker)?;
                let _ = reply.send(answer);
            }
            ApiCall::CreateToken { life_s, uses, reply } => {
                let created = self.create_token(life_s, uses)?;
                let _ = reply.send(created);
            }
            ApiCall::ListTokens(reply) => {
                let now = self.clock.unix_s();
                let _ = reply.send(self.issuer.tokens().map(|record| token_status(record, now)).collect());
            }
            ApiCall::RevokeToken(id, reply) => {
                let known = self.issuer.revoke_token(id);
                if known {
                    block_in_place(|| self.store.put_enrolment(self.issuer.state()))?;
                }
                let _ = reply.send(known);
            }
        }
        Ok(())
    }

    /// Carries out a call for the whole run, or answers why it is of no use.
    fn operate(&mut self, event: Event, reply: Answered<()>) -> Result<(), OwnerError> {
        let state = self.run.state();
        let why = match (&event, state.phase) {
            (_, Phase::Finished) => Some("the run is finished"),
            (Event::Pause, _) if state.requests.drain => {
                Some("the run is already stopping: it ends by itself, and cannot be paused")
            }
            (Event::Checkpoint, _) if state.requests.pause => Some(
                "the run is paused and writes no checkpoint until it resumes: use `coordinator resume`, or `coordinator stop --resumable`, with which all workers write one and leave",
            ),
            (Event::Checkpoint, phase) if phase != Phase::Training || state.requests.drain => {
                Some("no worker trains, or the run ends and writes a checkpoint anyway")
            }
            (Event::Suspend, _) if state.requests.drain => {
                Some("the run is already stopping for good: it ends by itself")
            }
            _ => None,
        };
        let answer = match why {
            Some(why) => Err(CallRefusal::Untimely(why.to_owned())),
            None => {
                self.step(event)?;
                self.publish();
                Ok(())
            }
        };
        // The caller may have hung up.
        let _ = reply.send(answer);
        Ok(())
    }

    fn dismiss(&mut self, worker: WorkerId) -> Result<Result<(), CallRefusal>, OwnerError> {
        let here = self.here();
        if !here.contains(&worker) {
            return Ok(Err(unknown(worker, &here, "is not here")));
        }
        self.step(Event::Dismiss { worker })?;
        self.publish();
        Ok(Ok(()))
    }

    fn kick(&mut self, worker: WorkerId) -> Result<Result<Kicked, CallRefusal>, OwnerError> {
        let Some((_, record)) = self.issuer.workers().find(|(known, _)| *known == worker) else {
            return Ok(Err(unknown(worker, &self.here(), "has never enrolled")));
        };
        let token = record.token;
        self.issuer.revoke_worker(worker);
        block_in_place(|| self.store.put_enrolment(self.issuer.state()))?;
        let open = self.open.values().filter(|open| open.worker == worker);
        let connections: Vec<quinn::Connection> = open.map(|open| open.quic.clone()).collect();
        self.step(Event::Kick { worker })?;
        for quic in connections {
            // It receives the reason, but nothing waits for that.
            self.farewells.spawn(async move {
                sleep(Duration::from_millis(KICKED_HEARS_MS)).await;
                CloseCode::Stranger.close(&quic, "this worker was taken out of the run");
            });
        }
        self.publish();
        let now = self.clock.unix_s();
        let token_is_valid =
            self.issuer.tokens().any(|record| record.id == token && token_status(record, now).valid);
        Ok(Ok(Kicked { id: worker.to_string(), token: token.to_string(), token_is_valid }))
    }

    /// A coordinator that was killed while it took a worker out goes on with that.
    pub(super) fn take_up_revocations(&mut self) -> Result<(), OwnerError> {
        let revoked = self.issuer.workers().filter(|(_, record)| record.revoked);
        let revoked: Vec<WorkerId> = revoked.map(|(worker, _)| worker).collect();
        for worker in revoked {
            if !self.run.state().roster.revoked.contains(&worker) {
                self.step(Event::Kick { worker })?;
            }
        }
        Ok(())
    }

    /// Workers with a connection.
    fn here(&self) -> BTreeSet<WorkerId> {
        self.open.values().map(|open| open.worker).collect()
    }

    /// Makes a join token and writes it down.
    ///
    /// # Errors
    /// The store's; inside, why there is no token.
    pub fn create_token(
        &mut self,
        life_s: u64,
        uses: Option<u32>,
    ) -> Result<Result<NewToken, String>, OwnerError> {
        let now = self.clock.unix_s();
        let token = match Token::create(self.issuer.authority().fingerprint()) {
            Ok(token) => token,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let expires_at_unix_s = now.saturating_add(life_s);
        if let Err(error) = self.issuer.add_token(TokenRecord::new(&token, expires_at_unix_s, uses), now) {
            return Ok(Err(error.to_string()));
        }
        block_in_place(|| self.store.put_enrolment(self.issuer.state()))?;
        Ok(Ok(self.describe(&token, expires_at_unix_s, uses)))
    }

    /// A token that is still good for at least `life_s`, if there is one: a restarted coordinator prints it again.
    #[must_use]
    pub fn reusable_token(&self, life_s: u64) -> Option<NewToken> {
        let good_until = self.clock.unix_s().saturating_add(life_s);
        let good =
            |record: &&TokenRecord| token_status(record, good_until).valid && record.uses_left.is_none();
        let record = self.issuer.tokens().filter(good).max_by_key(|record| record.expires_at_unix_s)?;
        let authority = self.issuer.authority().fingerprint();
        let token = Token { id: record.id, secret: record.secret.clone(), authority };
        Some(self.describe(&token, record.expires_at_unix_s, record.uses_left))
    }

    fn describe(&self, token: &Token, expires_at_unix_s: u64, uses_left: Option<u32>) -> NewToken {
        NewToken {
            id: token.id.to_string(),
            command: format!("worker join {} --token {token}", self.advertised),
            token: token.to_string(),
            expires_at_unix_s,
            uses_left,
        }
    }
}

fn token_status(record: &TokenRecord, now_unix_s: u64) -> TokenStatus {
    TokenStatus {
        id: record.id.to_string(),
        expires_at_unix_s: record.expires_at_unix_s,
        uses_left: record.uses_left,
        revoked: record.revoked,
        valid: !record.revoked && now_unix_s < record.expires_at_unix_s && record.uses_left != Some(0),
    }
}

/// Reports an unknown worker, and the present ones.
fn unknown(worker: WorkerId, here: &BTreeSet<WorkerId>, what: &str) -> CallRefusal {
    let mut names: Vec<String> = here.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    if here.len() > NAMED_MAX {
        names.push(format!("and {} more", here.len() - NAMED_MAX));
    }
    let who = if names.is_empty() {
        "no worker is here".to_owned()
    } else {
        format!("here are {}", names.join(", "))
    };
    CallRefusal::Unknown(format!("{worker} {what}; {who} (`coordinator members` shows all)"))
}
