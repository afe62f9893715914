//! `coordinator members`

use anyhow::Context as _;

use super::show::word_for;
use super::{AskArgs, CliError, Client, print};
use crate::http::Member;

pub(super) fn run(args: &AskArgs) -> Result<(), CliError> {
    let client = Client::find(&args.at).context("ask for the workers")?;
    if args.json {
        let members: serde_json::Value = client.get("/api/v1/members").context("ask for the workers")?;
        print(&format!("{members:#}"));
        return Ok(());
    }
    let members: Vec<Member> = client.get("/api/v1/members").context("ask for the workers")?;
    table(&members).iter().for_each(|line| print(line));
    Ok(())
}

/// A table for people: the columns that vary in width come last.
fn table(members: &[Member]) -> Vec<String> {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
    let mut lines = vec![format!(
        "{:<6} {:<10} {:>8} {:>8} {:>10} {:<18} {:<16} NAME",
        "WORKER", "STATE", "HEARD", "STEP", "TOKENS/S", "ROLE", "SITE"
    )];
    for member in members {
        let why = member.why.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
        lines.push(format!(
            "{:<6} {:<10} {:>8} {:>8} {:>10} {:<18} {:<16} {}{why}",
            member.id,
            word_for(&member.state, member.health.unwrap_or_default()),
            or_dash(member.last_heard_s.map(|seconds| format!("{seconds:.1}s"))),
            or_dash(member.step.map(|step| step.to_string())),
            or_dash(member.tokens_per_s.map(|speed| format!("{speed:.0}"))),
            or_dash(member.role.clone()),
            member.site,
            member.name,
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_run::Health;

    #[test]
    fn what_is_not_known_is_a_dash_and_who_is_gone_has_a_reason() {
        let member = Member {
            id: "w3".to_owned(),
            name: "box cpu".to_owned(),
            site: "lab".to_owned(),
            role: None,
            state: "gone".to_owned(),
            health: None,
            last_heard_s: None,
            step: Some(7),
            tokens_per_s: None,
            why: Some("leaves".to_owned()),
        };
        let state = "training".to_owned();
        let slow = Member { state, health: Some(Health::Slow), why: None, ..member.clone() };
        let healing = Member { state: "healing".to_owned(), ..slow.clone() };
        let lines = table(&[member, slow, healing]);
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(words, ["w3", "gone", "–", "7", "–", "–", "lab", "box", "cpu", "(leaves)"]);
        assert_eq!(lines[2].split_whitespace().take(2).collect::<Vec<_>>(), ["w3", "slow"]);
        assert_eq!(lines[3].split_whitespace().take(2).collect::<Vec<_>>(), ["w3", "healing"]);
    }
}
