//! The line protocol on standard input.

use anyhow::{Context, bail};
use longhaul_emulator::udp::Relays;
use longhaul_emulator::{Link, LinkStats};
use serde_json::{Map, Value, json};

use super::arguments::find;

/// Objects that the commands act on.
pub struct Control {
    pub links: Vec<Link>,
    /// `None` in TUN mode.
    pub relays: Option<Relays>,
}

impl Control {
    /// Executes one line and returns its reply: the requested data, `{"ok":true}` or `{"error":…}`.
    pub fn answer(&self, line: &str) -> Value {
        self.execute(line).unwrap_or_else(|error| json!({ "error": format!("{error:#}") }))
    }

    /// Returns the counters of all links, and of errors outside them.
    pub fn stats(&self) -> Value {
        let links: Map<String, Value> =
            self.links.iter().map(|link| (link.name().to_owned(), json!(LinkReport::of(link)))).collect();
        match &self.relays {
            Some(relays) => json!({ "links": links, "relays": relays.stats() }),
            None => json!({ "links": links }),
        }
    }

    fn execute(&self, line: &str) -> anyhow::Result<Value> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["stats"] => return Ok(self.stats()),
            ["set", link, key, value] => self.set(link, key, value)?,
            ["partition", ref links @ ..] => self.each(links, Link::partition)?,
            ["heal", ref links @ ..] => self.each(links, Link::heal)?,
            _ => bail!("commands: set LINK KEY VALUE, partition LINK…, heal LINK…, stats"),
        }
        Ok(json!({ "ok": true }))
    }

    fn set(&self, link: &str, key: &str, value: &str) -> anyhow::Result<()> {
        let link = find(&self.links, link)?;
        let mut config = link.config();
        config.set(key, value)?;
        link.reconfigure(config)?;
        Ok(())
    }

    /// Finds all links first, so that a misspelt one changes none.
    fn each(&self, names: &[&str], change: impl Fn(&Link)) -> anyhow::Result<()> {
        anyhow::ensure!(!names.is_empty(), "name at least one link");
        let links = names.iter().map(|name| find(&self.links, name)).collect::<anyhow::Result<Vec<_>>>();
        links.context("nothing was changed")?.iter().for_each(change);
        Ok(())
    }
}

/// One link in the reply to `stats`.
#[derive(serde::Serialize)]
struct LinkReport {
    partitioned: bool,
    #[serde(flatten)]
    stats: LinkStats,
}

impl LinkReport {
    fn of(link: &Link) -> Self {
        Self { partitioned: link.is_partitioned(), stats: link.stats() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control() -> Control {
        let link = |name| Link::new(name, "rate_mbit=10".parse().unwrap(), 1).unwrap();
        Control { links: vec![link("a-b"), link("b-a")], relays: None }
    }

    #[test]
    fn commands_change_the_links_that_they_name() {
        let control = control();
        assert_eq!(control.answer("set a-b rate_mbit 20"), json!({ "ok": true }));
        assert_eq!(control.answer("partition a-b b-a"), json!({ "ok": true }));
        assert_eq!(control.answer("heal b-a"), json!({ "ok": true }));
        assert_eq!(control.links[0].config().rate_bytes_per_s, 2_500_000);
        assert_eq!(control.links[1].config().rate_bytes_per_s, 1_250_000);
        let stats = control.answer("stats");
        assert_eq!(stats["links"]["a-b"]["partitioned"], true);
        assert_eq!(stats["links"]["b-a"]["partitioned"], false);
        assert_eq!(stats["links"]["a-b"]["offered"], json!({ "packets": 0, "bytes": 0 }));
    }

    #[test]
    fn a_wrong_command_says_why_and_changes_nothing() {
        let control = control();
        for line in [
            "",
            "partition",
            "partition a-b c-d",
            "set a-b rate 5",
            "set a-b rate_mbit 0",
            "set a-b rate_mbit",
        ] {
            assert!(control.answer(line)["error"].is_string(), "{line}");
        }
        assert!(!control.links[0].is_partitioned());
        assert_eq!(control.links[0].config(), "rate_mbit=10".parse().unwrap());
    }
}
