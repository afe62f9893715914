//! What is tried.

use std::fmt;

use anyhow::Result;
use rand_chacha::ChaCha12Rng;

use super::arms::Arms;
use super::{http, quic};

/// A kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Datagrams of random bytes, to the coordinator or a worker.
    Garbage,
    /// The first datagram of a handshake that does not go on.
    HalfHandshake,
    /// The first datagram of somebody else's handshake, from another address.
    ReplayedHandshake,
    /// A protocol that nobody speaks.
    WrongAlpn,
    /// No certificate, where one is asked for.
    NoCertificate,
    /// The certificate of another run, by an authority of its own.
    OtherRun,
    /// The certificate of a worker that was kicked.
    Kicked,
    /// A guess of a join token.
    GuessedToken,
    /// Who is let in to enrol, and says nothing for as long as it may.
    SilentApplicant,
    /// A member that announces a message longer than any.
    OversizedMessage,
    /// A member that sends other members what is no frame, and no request.
    BadFrames,
    /// A member that takes no part, and sends frames of generations that are or were.
    ForeignFrames,
    /// Headers that never end.
    SlowHeaders,
    /// Bytes that are no HTTP.
    NoHttp,
    /// Many calls one after the other.
    ManyCalls,
    /// A guess of the API's token.
    GuessedApiToken,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Garbage,
        Self::HalfHandshake,
        Self::ReplayedHandshake,
        Self::WrongAlpn,
        Self::NoCertificate,
        Self::OtherRun,
        Self::Kicked,
        Self::GuessedToken,
        Self::SilentApplicant,
        Self::OversizedMessage,
        Self::BadFrames,
        Self::ForeignFrames,
        Self::SlowHeaders,
        Self::NoHttp,
        Self::ManyCalls,
        Self::GuessedApiToken,
    ];

    /// Tries it once. An error is a door that stayed open.
    pub(super) async fn strike(self, arms: &Arms, random: ChaCha12Rng) -> Result<()> {
        match self {
            Self::Garbage => quic::garbage(arms, random).await,
            Self::HalfHandshake => quic::half_handshake(arms, random).await,
            Self::ReplayedHandshake => quic::replayed_handshake(arms, random).await,
            Self::WrongAlpn => quic::wrong_alpn(arms, random).await,
            Self::NoCertificate => quic::no_certificate(arms, random).await,
            Self::OtherRun => quic::other_run(arms, random).await,
            Self::Kicked => quic::kicked(arms, random).await,
            Self::GuessedToken => quic::guessed_token(arms, random).await,
            Self::SilentApplicant => quic::silent_applicant(arms, random).await,
            Self::OversizedMessage => quic::oversized_message(arms, random).await,
            Self::BadFrames => quic::bad_frames(arms, random).await,
            Self::ForeignFrames => quic::foreign_frames(arms, random).await,
            Self::SlowHeaders => http::slow_headers(arms, random).await,
            Self::NoHttp => http::no_http(arms, random).await,
            Self::ManyCalls => http::many_calls(arms).await,
            Self::GuessedApiToken => http::guessed_token(arms, random).await,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Garbage => "garbage datagrams",
            Self::HalfHandshake => "half a handshake",
            Self::ReplayedHandshake => "a replayed handshake",
            Self::WrongAlpn => "an unknown protocol",
            Self::NoCertificate => "no certificate",
            Self::OtherRun => "another run's certificate",
            Self::Kicked => "a kicked worker's certificate",
            Self::GuessedToken => "a guessed join token",
            Self::SilentApplicant => "a silent applicant",
            Self::OversizedMessage => "an oversized message",
            Self::BadFrames => "bad frames of a member",
            Self::ForeignFrames => "frames of who takes no part",
            Self::SlowHeaders => "HTTP headers that never end",
            Self::NoHttp => "bytes that are no HTTP",
            Self::ManyCalls => "many HTTP calls",
            Self::GuessedApiToken => "a guessed API token",
        })
    }
}
