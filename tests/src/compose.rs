//! `deploy/compose/compose.yaml`, read as Compose would read it, so that tests can hold it against the real command lines.
//!
//! The fields that ours uses, of <https://github.com/compose-spec/compose-spec>; any other field is an error.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compose {
    /// What containers' names begin with.
    pub name: String,
    /// Fragments that anchors name.
    #[serde(rename = "x-confined")]
    _confined: Value,
    #[serde(rename = "x-worker")]
    _worker: Value,
    /// By name.
    pub services: BTreeMap<String, Service>,
    /// By name.
    pub networks: BTreeMap<String, Network>,
    /// Names; they have no options.
    pub volumes: BTreeMap<String, Option<()>>,
}

/// A container.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// With its tag.
    pub image: String,
    /// From what it is built.
    pub build: Build,
    /// What follows the entry point.
    pub command: Vec<String>,
    /// Variables.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// `SOURCE:TARGET[:ro]`
    #[serde(default)]
    pub volumes: Vec<String>,
    /// `ADDRESS:HOST:CONTAINER`
    #[serde(default)]
    pub ports: Vec<String>,
    /// The networks that it is in.
    pub networks: BTreeMap<String, Attachment>,
    /// Which others have to be there before it.
    #[serde(default)]
    pub depends_on: BTreeMap<String, Dependency>,
    /// Whether its own file system cannot be written to.
    #[serde(default)]
    pub read_only: bool,
    /// Folders in memory.
    #[serde(default)]
    pub tmpfs: Vec<String>,
    /// Capabilities that it does without.
    #[serde(default)]
    pub cap_drop: Vec<String>,
    /// Options of the kernel's confinement.
    #[serde(default)]
    pub security_opt: Vec<String>,
    /// Whether a first process passes signals on.
    #[serde(default)]
    pub init: bool,
    /// How long SIGTERM may take.
    pub stop_grace_period: Option<String>,
    /// When it is started again.
    pub restart: Option<String>,
}

/// From what an image is built.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// The folder that the build sees.
    pub context: PathBuf,
    /// In that folder.
    pub dockerfile: PathBuf,
    /// One of its stages.
    pub target: String,
    /// By name.
    #[serde(default)]
    pub args: BTreeMap<String, String>,
}

/// A service in a network.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attachment {
    /// Its address there.
    pub ipv4_address: Ipv4Addr,
}

/// What another service waits for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dependency {
    /// `service_started` or `service_healthy`
    pub condition: String,
}

/// A network.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Whether nothing leads out of it.
    #[serde(default)]
    pub internal: bool,
    /// Who has which address.
    pub ipam: Ipam,
}

/// The addresses of a network.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ipam {
    /// One.
    pub config: Vec<Pool>,
}

/// A range of addresses.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// `ADDRESS/BITS`
    pub subnet: String,
}

impl Compose {
    /// Reads the file of this checkout.
    ///
    /// # Errors
    /// It cannot be read, is not YAML, or has a field that this does not know.
    pub fn read() -> Result<Self> {
        let path = Self::folder().join("compose.yaml");
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        serde_saphyr::from_str(&text).with_context(|| format!("read {}", path.display()))
    }

    /// `deploy/compose` of this checkout.
    #[must_use]
    pub fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/compose")
    }

    /// The services whose image is built from a stage of the Dockerfile.
    pub fn built_from<'a>(&'a self, target: &'a str) -> impl Iterator<Item = (&'a str, &'a Service)> {
        self.services
            .iter()
            .filter(move |(_, service)| service.build.target == target)
            .map(|(name, service)| (name.as_str(), service))
    }
}

impl Service {
    /// The program and its arguments: the entry point of each image is the program that its stage is called by.
    pub fn command_line(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.build.target.as_str()).chain(self.command.iter().map(String::as_str))
    }

    /// What is mounted at a path of the container: a volume or a path from the file's folder, and whether it can be written to.
    #[must_use]
    pub fn mounted_at(&self, path: &str) -> Option<(&str, bool)> {
        self.volumes.iter().find_map(|volume| {
            let mut parts = volume.split(':');
            let (source, target) = (parts.next()?, parts.next()?);
            (target == path).then_some((source, parts.next() != Some("ro")))
        })
    }
}
