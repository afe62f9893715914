//! Kinds of attacks.

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
    /// The first datagram of an incomplete handshake.
    HalfHandshake,
    /// The first datagram of another's handshake, from another address.
    ReplayedHandshake,
    /// An unknown protocol.
    WrongAlpn,
    /// A missing certificate.
    NoCertificate,
    /// The certificate of another run, by its own authority.
    OtherRun,
    /// The certificate of a kicked worker.
    Kicked,
    /// A guessed join token.
    GuessedToken,
    /// An admitted applicant that stays silent until the timeout.
    SilentApplicant,
    /// A member that announces an oversized message.
    OversizedMessage,
    /// A member that sends malformed frames and requests to other members.
    BadFrames,
    /// A non-participating member that sends frames of present and past generations.
    ForeignFrames,
    /// Endless headers.
    SlowHeaders,
    /// Bytes that are not HTTP.
    NoHttp,
    /// Many requests in sequence.
    ManyCalls,
    /// A guessed API token.
    GuessedApiToken,
}

impl Kind {
    /// All kinds.
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

    /// Tries it once; an error is a breach.
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
