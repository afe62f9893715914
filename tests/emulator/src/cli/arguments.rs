//! Command-line arguments.

use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use longhaul_emulator::tun::SideConfig;
use longhaul_emulator::{Link, LinkConfig};

const LINK_HELP: &str = "\
LINKS
  Each --link is one direction. NAME is yours to choose; the rest is KEY=VALUE,… with the keys
    rate_mbit        rate in Mbit/s, IP and UDP headers included          [1000]
    delay_ms         one-way delay                                        [0]
    jitter_ms        wandering extra delay, 0 to this, never reorders     [0]
    loss_percent     share of packets lost                                [0]
    loss_burst       mean number of packets lost in a row                 [independent losses]
    reorder_percent  share of packets held back                           [0]
    reorder_ms       longest time that one is held back                   [5]
    queue_kib        drop-tail queue                                      [rate × 2 × delay, at least 64]
    burst_kib        what an idle link passes on at once, as a shaper     [0]
    mtu              longest IP packet                                    [1500]

CONTROL
  Standard input takes one command a line, and each is answered by one line of JSON on standard output:
    set LINK KEY VALUE     partition LINK…     heal LINK…     stats
  The first line of output says that all is ready, and the last one holds the final counters.

EXAMPLE
  Two sites, 50 Mbit/s and 20 ms each way; what is sent to port 7001 reaches 127.0.0.1:7000 over the link:
    wan-emulator --link a-b:rate_mbit=50,delay_ms=20 --link b-a:rate_mbit=50,delay_ms=20,loss_percent=0.1 \\
                 --relay 127.0.0.1:7001=127.0.0.1:7000@a-b/b-a";

/// Emulates WAN links in user space: rate, delay, jitter, loss, reordering, queues and partitions.
///
/// Without a sub-command it relays UDP and needs no privileges.
#[derive(Debug, Parser)]
#[command(name = "wan-emulator", version, after_long_help = LINK_HELP, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub mode: Option<Mode>,
    #[command(flatten)]
    pub relays: RelayArguments,
}

#[derive(Debug, Subcommand)]
pub enum Mode {
    /// Joins two new network namespaces by a pair of TUN devices, for peers that speak TCP (needs root)
    #[command(after_long_help = LINK_HELP)]
    Tun(TunArguments),
}

#[derive(Debug, Args)]
pub struct RelayArguments {
    #[command(flatten)]
    pub common: CommonArguments,
    /// A relay; LISTEN is a port or an address, port 0 picks a free one (repeatable)
    #[arg(long = "relay", value_name = "LISTEN=TARGET@FORWARD/REVERSE")]
    pub relays: Vec<RelaySpec>,
}

#[derive(Debug, Args)]
pub struct TunArguments {
    #[command(flatten)]
    pub common: CommonArguments,
    /// Network namespace of side A; made, and deleted at the end
    #[arg(long, default_value = "wan-a")]
    pub netns_a: String,
    /// Network namespace of side B; made, and deleted at the end
    #[arg(long, default_value = "wan-b")]
    pub netns_b: String,
    /// Address of side A within its namespace, with the prefix length that both sides share
    #[arg(long, default_value = "10.77.0.1/24")]
    pub address_a: String,
    /// Address of side B within its namespace
    #[arg(long, default_value = "10.77.0.2/24")]
    pub address_b: String,
    /// The links from A to B and from B to A
    #[arg(long, value_name = "FORWARD/REVERSE", default_value = "a-b/b-a")]
    pub over: Over,
}

#[derive(Debug, Args)]
pub struct CommonArguments {
    /// A link, one direction (repeatable; see LINKS in --help)
    #[arg(long = "link", value_name = "NAME:KEY=VALUE,…")]
    pub links: Vec<LinkSpec>,
    /// Seed of losses, jitter and reordering
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// End when standard input does
    #[arg(long)]
    pub exit_with_stdin: bool,
}

/// `NAME:KEY=VALUE,…`
#[derive(Clone, Debug)]
pub struct LinkSpec {
    name: String,
    config: LinkConfig,
}

/// `FORWARD/REVERSE`
#[derive(Clone, Debug)]
pub struct Over {
    pub forward: String,
    pub reverse: String,
}

/// `LISTEN=TARGET@FORWARD/REVERSE`
#[derive(Clone, Debug)]
pub struct RelaySpec {
    pub listen: SocketAddr,
    pub target: SocketAddr,
    pub over: Over,
}

impl CommonArguments {
    /// Creates the links.
    ///
    /// # Errors
    /// A name is given twice.
    pub fn links(&self) -> anyhow::Result<Vec<Link>> {
        let mut links: Vec<Link> = Vec::new();
        for LinkSpec { name, config } in &self.links {
            anyhow::ensure!(find(&links, name).is_err(), "two links are called `{name}`");
            links.push(Link::new(name, config.clone(), self.seed)?);
        }
        Ok(links)
    }
}

impl TunArguments {
    /// Returns sides A and B.
    ///
    /// # Errors
    /// An address cannot be parsed.
    pub fn sides(&self) -> anyhow::Result<[SideConfig; 2]> {
        Ok([
            SideConfig::new(&self.netns_a, &self.address_a)?,
            SideConfig::new(&self.netns_b, &self.address_b)?,
        ])
    }
}

/// Returns the link of this name.
///
/// # Errors
/// No such link exists.
pub fn find(links: &[Link], name: &str) -> anyhow::Result<Link> {
    links
        .iter()
        .find(|link| link.name() == name)
        .cloned()
        .with_context(|| format!("there is no link called `{name}`"))
}

impl FromStr for LinkSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (name, config) = text.split_once(':').unwrap_or((text, ""));
        anyhow::ensure!(
            !name.is_empty() && !name.contains(['/', ' ', '@']),
            "`{name}` is not a valid link name"
        );
        Ok(Self { name: name.to_owned(), config: config.parse()? })
    }
}

impl FromStr for Over {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (forward, reverse) = text.split_once('/').context("name two links: FORWARD/REVERSE")?;
        Ok(Self { forward: forward.to_owned(), reverse: reverse.to_owned() })
    }
}

impl FromStr for RelaySpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let parts = text.split_once('=').and_then(|(listen, rest)| Some((listen, rest.split_once('@')?)));
        let (listen, (target, over)) = parts.context("a relay is LISTEN=TARGET@FORWARD/REVERSE")?;
        let listen = match listen.parse() {
            Ok(port) => (Ipv4Addr::LOCALHOST, port).into(),
            Err(_) => listen.parse().with_context(|| format!("`{listen}` is no port and no address"))?,
        };
        let target = target.parse().with_context(|| format!("`{target}` is no address"))?;
        Ok(Self { listen, target, over: over.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use longhaul_tests::compose::{Compose, Service};

    use super::*;

    #[test]
    fn a_command_line_with_links_and_relays_is_read() {
        let arguments = Arguments::try_parse_from([
            "wan-emulator",
            "--link",
            "a-b:rate_mbit=50,delay_ms=20",
            "--link",
            "b-a",
            "--relay",
            "0=127.0.0.1:7000@a-b/b-a",
            "--seed",
            "9",
        ])
        .unwrap();
        let links = arguments.relays.common.links().unwrap();
        assert_eq!(links[0].config().rate_bytes_per_s, 6_250_000);
        let relay = &arguments.relays.relays[0];
        assert_eq!(relay.listen, (Ipv4Addr::LOCALHOST, 0).into());
        assert_eq!(find(&links, &relay.over.reverse).unwrap().name(), "b-a");
        assert!(find(&links, "c-a").is_err());
    }

    #[test]
    fn the_emulator_of_the_compose_file_relays_between_addresses_that_are_there() {
        let compose = Compose::read().unwrap();
        let service = &compose.services["wan"];
        let arguments = Arguments::try_parse_from(service.command_line()).unwrap();
        let links = arguments.relays.common.links().unwrap();
        let networks = |service: &Service| -> Vec<(String, IpAddr)> {
            let networks = service.networks.iter();
            networks.map(|(name, attachment)| (name.clone(), attachment.ipv4_address.into())).collect()
        };
        let all: Vec<_> = compose.services.values().flat_map(networks).collect();
        let network_of = |address: IpAddr| {
            let found = all.iter().find(|(_, there)| *there == address);
            found.unwrap_or_else(|| panic!("nobody is {address}")).0.clone()
        };
        assert!(!arguments.relays.relays.is_empty());
        for RelaySpec { listen, target, over } in arguments.relays.relays {
            let (from, to) = (network_of(listen.ip()), network_of(target.ip()));
            assert!(networks(service).contains(&(from.clone(), listen.ip())), "{listen} is another's");
            assert_ne!(from, to, "{listen}");
            assert_eq!((over.forward, over.reverse), (format!("{from}-{to}"), format!("{to}-{from}")));
            find(&links, &format!("{from}-{to}")).unwrap();
        }
    }

    #[test]
    fn the_help_tells_of_every_key_of_a_link() {
        for key in LinkConfig::KEYS {
            assert!(LINK_HELP.contains(&format!("\n    {key} ")), "{key}");
        }
    }

    #[test]
    fn broken_links_and_relays_are_refused() {
        for link in [":rate_mbit=1", "a/b", "a:rate=1"] {
            assert!(link.parse::<LinkSpec>().is_err(), "{link}");
        }
        for relay in ["7000", "0=127.0.0.1@a/b", "0=127.0.0.1:1@a", "here=127.0.0.1:1@a/b"] {
            assert!(relay.parse::<RelaySpec>().is_err(), "{relay}");
        }
    }
}
