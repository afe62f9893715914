//! The machines and the links between them.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::config::read_toml;
use serde::{Deserialize, Serialize};

/// A device: which site, by its place, and which of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceId {
    /// The site's place among the sites.
    pub site: usize,
    /// The device's place among those of the site.
    pub device: usize,
}

/// A worker's device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Sustained FLOPs a second in training.
    pub flops_per_s: f64,
    /// Its memory, in bytes: a GPU's own, or else the machine's.
    pub memory_bytes: f64,
    /// For a GPU: bytes of its machine's memory, for this one of its GPUs. `None`: no GPU; it computes in the machine's memory.
    pub host_memory_bytes: Option<f64>,
}

impl Device {
    /// From a worker's report: bytes of its device's memory, and, for a GPU, of its machine's.
    #[must_use]
    pub fn told(flops_per_s: f64, (memory, host_memory): (u64, Option<u64>)) -> Self {
        let host_memory_bytes = host_memory.map(|bytes| bytes as f64);
        Self { flops_per_s, memory_bytes: memory as f64, host_memory_bytes }
    }
}

/// A way between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Bandwidth in each direction, in bytes a second.
    pub bytes_per_s: f64,
    /// There and back, in seconds.
    pub round_trip_s: f64,
}

/// Devices with fast links between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Site {
    /// Name for display.
    pub name: String,
    /// Its devices.
    pub devices: Vec<Device>,
    /// Between any two of them,
    pub lan: Link,
    /// Whether that was written or measured: an assumed link carries no tensor group.
    pub knows_lan: bool,
}

/// All sites.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// In the order in which they were written.
    pub sites: Vec<Site>,
    /// By both places, the lower one first: between sites. Every pair has one.
    links: BTreeMap<(usize, usize), Link>,
    /// Of the packets that such a link is given, the part that it loses, where it is known to lose some.
    losses: BTreeMap<(usize, usize), f64>,
}

/// A topology that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// The text is not TOML, or a key is unknown, missing or of another type.
    #[error("{0}")]
    Syntax(String),
    /// A number that no machine has.
    #[error("{key} = {value}: must be a number above zero{}", if *zero { ", or zero" } else { "" })]
    Number {
        /// The key with its table.
        key: String,
        /// As written.
        value: String,
        /// Whether zero would do.
        zero: bool,
    },
    /// A link that loses more than there is, or less than nothing.
    #[error("{table}.loss_percent = {value}: must be at least 0 and below 100; write 0 if it is not known")]
    Loss {
        /// The link's table.
        table: String,
        /// As written.
        value: String,
    },
    /// No device exists.
    #[error("there is no [[site]] with workers: write one with name, workers, tflops and memory_gib")]
    Empty,
    /// Memory beside a GPU's where there is no GPU.
    #[error(
        "site `{0}` has host_memory_gib, the machine's own memory for each of its GPUs, but no GPU: write gpu = true, or leave it out"
    )]
    NoGpu(String),
    /// Two sites of one name.
    #[error("two sites are called `{0}`: give each its own name, as [[link]] refers to sites by name")]
    Twice(String),
    /// A link of a site that there is none of.
    #[error("[[link]] between = {between:?}: must name two of the sites {sites}")]
    Unknown {
        /// As written.
        between: Vec<String>,
        /// Those there are.
        sites: String,
    },
    /// Two links between the same sites.
    #[error("two [[link]] have between = [\"{0}\"]: remove one")]
    Linked(String),
    /// A pair of sites without a link.
    #[error(
        "there is no link between `{0}` and `{1}`: write [[link]] between = [\"{0}\", \"{1}\"], or [wan] for all pairs"
    )]
    Unlinked(String, String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    site: Vec<WrittenSite>,
    #[serde(default)]
    link: Vec<WrittenLink>,
    wan: Option<WrittenPath>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSite {
    name: String,
    workers: usize,
    tflops: f64,
    memory_gib: f64,
    #[serde(default)]
    gpu: bool,
    host_memory_gib: Option<f64>,
    lan_mbit: Option<f64>,
    #[serde(default = "lan_rtt_ms")]
    lan_rtt_ms: f64,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPath {
    mbit: f64,
    rtt_ms: f64,
    #[serde(default)]
    loss_percent: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLink {
    between: Vec<String>,
    mbit: f64,
    rtt_ms: f64,
    #[serde(default)]
    loss_percent: f64,
}

const GIB: f64 = 1_073_741_824.0;

/// Ten gigabits, which most machines of one cluster have between them.
const LAN_MBIT: f64 = 10_000.0;

fn lan_rtt_ms() -> f64 {
    0.1
}

/// Share of a link's nominal rate that arrives as updates when both directions are full: the rest are headers and retransmissions. The mean of the ten rows measured both
/// ways in `docs/benchmarks/transport.md` is 0.906.
const CARRIED: f64 = 0.906;

/// Sites that a topology may have, and workers of a site: more than any run has.
const SITES_MAX: usize = 100;
const WORKERS_MAX: usize = 1_000;

impl Topology {
    /// Sites of these devices, and the links between them, by both places.
    ///
    /// # Errors
    /// [`TopologyError::Empty`], [`TopologyError::Unlinked`].
    pub fn new(sites: Vec<Site>, links: BTreeMap<(usize, usize), Link>) -> Result<Self, TopologyError> {
        if sites.iter().all(|site| site.devices.is_empty()) {
            return Err(TopologyError::Empty);
        }
        let topology = Self { sites, links, losses: BTreeMap::new() };
        for a in 0..topology.sites.len() {
            for b in a + 1..topology.sites.len() {
                if !topology.links.contains_key(&(a, b)) {
                    let name = |at: usize| topology.sites[at].name.clone();
                    return Err(TopologyError::Unlinked(name(a), name(b)));
                }
            }
        }
        Ok(topology)
    }

    /// Reads a topology.
    ///
    /// # Errors
    /// The fault in it, and the remedy.
    pub fn parse(text: &str) -> Result<Self, TopologyError> {
        let written: Written = read_toml(text).map_err(|error| TopologyError::Syntax(error.to_string()))?;
        if written.site.len() > SITES_MAX {
            return Err(TopologyError::Syntax(format!("more than {SITES_MAX} sites")));
        }
        let mut sites: Vec<Site> = Vec::new();
        for site in &written.site {
            if sites.iter().any(|other| other.name == site.name) {
                return Err(TopologyError::Twice(site.name.clone()));
            }
            sites.push(site.read()?);
        }
        let place = |name: &str| sites.iter().position(|site| site.name == name);
        let (mut links, mut losses, mut named) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        if let Some(wan) = written.wan {
            let (link, loss) = (wide("wan", wan)?, lost("wan", wan)?);
            let pairs = || (0..sites.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
            links.extend(pairs().map(|pair| (pair, link)));
            losses.extend(pairs().map(|pair| (pair, loss)));
        }
        for WrittenLink { between, mbit, rtt_ms, loss_percent } in written.link {
            let places: Option<Vec<usize>> = between.iter().map(|name| place(name)).collect();
            let Some(&[a, b]) = places.as_deref().filter(|places| places.first() != places.last()) else {
                let names: Vec<&str> = sites.iter().map(|site| site.name.as_str()).collect();
                return Err(TopologyError::Unknown { between, sites: names.join(", ") });
            };
            if !named.insert((a.min(b), a.max(b))) {
                return Err(TopologyError::Linked(between.join("\", \"")));
            }
            let path = WrittenPath { mbit, rtt_ms, loss_percent };
            links.insert((a.min(b), a.max(b)), wide("link", path)?);
            losses.insert((a.min(b), a.max(b)), lost("link", path)?);
        }
        losses.retain(|_, loss| *loss > 0.0);
        Ok(Self { losses, ..Self::new(sites, links)? })
    }

    /// Of the packets that the way between two sites is given, the part that is lost there and sent again, as far as is known.
    #[must_use]
    pub fn loss(&self, a: usize, b: usize) -> f64 {
        self.losses.get(&(a.min(b), a.max(b))).copied().unwrap_or(0.0)
    }

    /// The device with this name.
    ///
    /// # Panics
    /// When it is not one of [`Self::devices`].
    #[must_use]
    pub fn device(&self, id: DeviceId) -> Device {
        self.sites[id.site].devices[id.device]
    }

    /// All devices, site by site.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> + '_ {
        let of = |(site, devices): (usize, usize)| (0..devices).map(move |device| DeviceId { site, device });
        self.sites.iter().map(|site| site.devices.len()).enumerate().flat_map(of)
    }

    /// Whether all sites' own links are known, as far as anything goes over them.
    #[must_use]
    pub fn knows_lans(&self) -> bool {
        self.sites.iter().all(|site| site.knows_lan || site.devices.len() < 2)
    }

    /// The way between two sites, or within one.
    ///
    /// # Panics
    /// When they are not among [`Self::sites`].
    #[must_use]
    pub fn link(&self, a: usize, b: usize) -> Link {
        if a == b { self.sites[a].lan } else { self.links[&(a.min(b), a.max(b))] }
    }
}

impl WrittenSite {
    fn read(&self) -> Result<Site, TopologyError> {
        if self.workers > WORKERS_MAX {
            return Err(TopologyError::Syntax(format!(
                "site.workers = {}: at most {WORKERS_MAX}",
                self.workers
            )));
        }
        let device = Device {
            flops_per_s: above_zero("site.tflops", self.tflops)? * 1e12,
            memory_bytes: above_zero("site.memory_gib", self.memory_gib)? * GIB,
            host_memory_bytes: self.host_memory_bytes()?,
        };
        let lan = WrittenPath {
            mbit: self.lan_mbit.unwrap_or(LAN_MBIT),
            rtt_ms: self.lan_rtt_ms,
            loss_percent: 0.0,
        };
        let (lan, knows_lan) = (link("site.lan", lan)?, self.lan_mbit.is_some());
        Ok(Site { name: self.name.clone(), devices: vec![device; self.workers], lan, knows_lan })
    }

    /// Of a GPU; without a description of its machine, unlimited.
    fn host_memory_bytes(&self) -> Result<Option<f64>, TopologyError> {
        match self.host_memory_gib {
            Some(_) if !self.gpu => Err(TopologyError::NoGpu(self.name.clone())),
            Some(gib) => Ok(Some(above_zero("site.host_memory_gib", gib)? * GIB)),
            None => Ok(self.gpu.then_some(u64::MAX as f64)),
        }
    }
}

/// Between sites.
fn wide(table: &str, written: WrittenPath) -> Result<Link, TopologyError> {
    let sold = link(table, written)?;
    Ok(Link { bytes_per_s: sold.bytes_per_s * CARRIED, ..sold })
}

/// The part of the packets that a link loses.
fn lost(table: &str, written: WrittenPath) -> Result<f64, TopologyError> {
    let percent = written.loss_percent;
    if (0.0..100.0).contains(&percent) {
        return Ok(percent / 100.0);
    }
    Err(TopologyError::Loss { table: table.to_owned(), value: percent.to_string() })
}

fn link(table: &str, written: WrittenPath) -> Result<Link, TopologyError> {
    let separator = if table == "site.lan" { '_' } else { '.' };
    let mbit = above_zero(&format!("{table}{separator}mbit"), written.mbit)?;
    let rtt_ms = written.rtt_ms;
    if !rtt_ms.is_finite() || rtt_ms < 0.0 {
        let key = format!("{table}{separator}rtt_ms");
        return Err(TopologyError::Number { key, value: rtt_ms.to_string(), zero: true });
    }
    Ok(Link { bytes_per_s: mbit * 1e6 / 8.0, round_trip_s: rtt_ms / 1e3 })
}

fn above_zero(key: &str, value: f64) -> Result<f64, TopologyError> {
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(TopologyError::Number { key: key.to_owned(), value: value.to_string(), zero: false })
}

#[cfg(test)]
mod tests {
    use longhaul_common::memory::Memory;

    use super::*;

    const TWO: &str = "[[site]]\nname = \"a\"\nworkers = 2\ntflops = 0.5\nmemory_gib = 4\n\
                       [[site]]\nname = \"b\"\nworkers = 1\ntflops = 2\nmemory_gib = 8\nlan_mbit = 1000\nlan_rtt_ms = 0\n";

    #[test]
    fn sites_devices_and_links_are_as_they_are_written() {
        let text = format!("{TWO}[wan]\nmbit = 100\nrtt_ms = 50\n");
        let topology = Topology::parse(&text).unwrap();
        assert_eq!(topology.devices().count(), 3);
        let last = topology.device(DeviceId { site: 1, device: 0 });
        assert_eq!((last.flops_per_s, last.memory_bytes), (2e12, 8.0 * 1024.0 * 1024.0 * 1024.0));
        assert_eq!(last.host_memory_bytes, None);
        assert_eq!(topology.link(1, 0), Link { bytes_per_s: CARRIED * 12.5e6, round_trip_s: 0.05 });
        assert_eq!(topology.link(1, 1), Link { bytes_per_s: 125e6, round_trip_s: 0.0 });
        let own = format!("{text}[[link]]\nbetween = [\"b\", \"a\"]\nmbit = 1\nrtt_ms = 7\n");
        let own = Topology::parse(&own).unwrap();
        assert_eq!((topology.loss(0, 1), own.loss(0, 1), own.loss(0, 0)), (0.0, 0.0, 0.0));
        let lossy = Topology::parse(&text.replace("rtt_ms = 50", "rtt_ms = 50\nloss_percent = 0.5")).unwrap();
        assert_eq!((lossy.loss(1, 0), lossy.loss(1, 1)), (0.005, 0.0));
        assert_eq!(own.link(0, 1), Link { bytes_per_s: CARRIED * 125e3, round_trip_s: 0.007 });
    }

    /// Without a description of a GPU's machine, its memory is no limit.
    #[test]
    fn a_gpu_has_memory_of_its_own_and_its_machine_some_besides() {
        let machine = |keys: &str| {
            let text = TWO.replace("memory_gib = 8", &format!("memory_gib = 8\n{keys}"));
            let wan = "[wan]\nmbit = 100\nrtt_ms = 50\n";
            Ok::<_, TopologyError>(
                Topology::parse(&format!("{text}{wan}"))?.device(DeviceId { site: 1, device: 0 }),
            )
        };
        let memories = |device: Device| Memory::ALL.map(|memory| device.bytes_of(memory));
        let gpu = machine("gpu = true\nhost_memory_gib = 32").unwrap();
        assert_eq!(memories(gpu), [None, Some(8.0 * GIB), Some(32.0 * GIB)]);
        assert_eq!(memories(machine("gpu = true").unwrap()), [None, Some(8.0 * GIB), Some(u64::MAX as f64)]);
        assert_eq!(memories(machine("gpu = false").unwrap()), [Some(8.0 * GIB), None, None]);
        let error = |keys: &str| machine(keys).unwrap_err().to_string();
        assert!(
            error("host_memory_gib = 32").contains("write gpu = true"),
            "{}",
            error("host_memory_gib = 32")
        );
        assert!(error("gpu = true\nhost_memory_gib = 0").contains("site.host_memory_gib = 0"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| Topology::parse(text).unwrap_err().to_string();
        assert!(error("").contains("no [[site]]"));
        assert!(error(TWO).contains("no link between `a` and `b`"));
        assert!(error(&TWO.replace("\"b\"", "\"a\"")).contains("two sites are called `a`"));
        assert!(error(&TWO.replace("tflops = 2", "tflops = -2")).contains("site.tflops = -2"));
        assert!(error(&TWO.replace("tflops", "teraflops")).contains("teraflops"));
        assert!(error(&TWO.replace("lan_rtt_ms = 0", "lan_rtt_ms = -1")).contains("site.lan_rtt_ms = -1"));
        assert!(
            error(&format!("{TWO}[wan]\nmbit = 1\nrtt_ms = 7\nloss_percent = 100\n"))
                .contains("wan.loss_percent = 100")
        );
        let link = "[[link]]\nbetween = [\"a\", \"b\"]\nmbit = 1\nrtt_ms = 7\n";
        assert!(error(&format!("{TWO}{link}{link}")).contains("remove one"));
        let odd = format!("{TWO}[[link]]\nbetween = [\"a\", \"c\"]\nmbit = 1\nrtt_ms = 7\n");
        assert!(error(&odd).contains("the sites a, b"));
        assert!(error(&odd.replace("\"c\"", "\"a\"")).contains("the sites a, b"));
        assert!(
            error(&odd.replace("\"c\"", "\"b\"").replace("\nmbit = 1\n", "\nmbit = 0\n"))
                .contains("link.mbit = 0")
        );
    }
}
