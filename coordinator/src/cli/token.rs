//! `coordinator token …`

use std::time::Duration;

use anyhow::Context as _;

use super::{CliError, Client, TokenCommand, print};
use crate::http::TokenRequest;
use crate::inbox::{NewToken, TokenStatus};

pub(super) fn run(command: TokenCommand) -> Result<(), CliError> {
    match command {
        TokenCommand::Create { life, uses, at } => {
            let client = Client::find(&at).context("make a token")?;
            let request = TokenRequest { life_s: Some(life.as_secs()), uses };
            let token: NewToken = client.post("/api/v1/tokens", &request).context("make a token")?;
            print(&token.command);
        }
        TokenCommand::List { at } => {
            let client = Client::find(&at).context("list the tokens")?;
            let tokens: Vec<TokenStatus> = client.get("/api/v1/tokens").context("list the tokens")?;
            print("ID                USES LEFT  EXPIRES (UNIX)  STATE");
            for token in tokens {
                let uses = token.uses_left.map_or_else(|| "any".to_owned(), |uses| uses.to_string());
                let state = match &token {
                    TokenStatus { valid: true, .. } => "valid",
                    TokenStatus { revoked: true, .. } => "revoked",
                    TokenStatus { uses_left: Some(0), .. } => "used up",
                    _ => "expired",
                };
                print(&format!("{}  {uses:>9}  {:>14}  {state}", token.id, token.expires_at_unix_s));
            }
        }
        TokenCommand::Revoke { id, at } => {
            let client = Client::find(&at).context("revoke the token")?;
            let _: serde_json::Value =
                client.delete(&format!("/api/v1/tokens/{id}")).context("revoke the token")?;
            print(&format!("token {id} is revoked; workers that have joined with it stay"));
        }
    }
    Ok(())
}

/// `90s`, `30m`, `24h`, `7d`.
pub(super) fn parse_life(text: &str) -> Result<Duration, String> {
    let hint = "give a number and s, m, h or d, as in 24h";
    let unit = text.chars().last().ok_or(hint)?;
    let unit_s = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return Err(hint.to_owned()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| hint)?;
    let life_s = number.checked_mul(unit_s).filter(|&s| s > 0 && s <= crate::http::TOKEN_LIFE_S_MAX);
    life_s.map(Duration::from_secs).ok_or_else(|| "must lie between 1s and 366d".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_have_units_and_bounds() {
        assert_eq!(parse_life("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_life("2d"), Ok(Duration::from_secs(172_800)));
        for wrong in ["", "24", "h", "-1h", "1.5h", "0s", "367d", "99999999999999999999d", "1é"] {
            assert!(parse_life(wrong).is_err(), "{wrong}");
        }
    }
}
