//! `deploy/compose/compose.yaml`, parsed like Compose does, so that tests can compare it with the real
//! command lines.
//!
//! Supports the fields of <https://github.com/compose-spec/compose-spec> that ours uses; any other field is
//! an error.

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
    /// Prefix of containers' names.
    pub name: String,
    /// Fragments for anchors.
    #[serde(rename = "x-confined")]
    _confined: Value,
    #[serde(rename = "x-worker")]
    _worker: Value,
    /// Services by name.
    pub services: BTreeMap<String, Service>,
    /// Networks by name.
    pub networks: BTreeMap<String, Network>,
    /// Volume names, without options.
    pub volumes: BTreeMap<String, Option<()>>,
}

/// A container.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Image with its tag.
    pub image: String,
    /// Build of the image.
    pub build: Build,
    /// Arguments after the entry point.
    pub command: Vec<String>,
    /// Environment variables.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// `SOURCE:TARGET[:ro]`
    #[serde(default)]
    pub volumes: Vec<String>,
    /// `ADDRESS:HOST:CONTAINER`
    #[serde(default)]
    pub ports: Vec<String>,
    /// Networks.
    pub networks: BTreeMap<String, Attachment>,
    /// Services that must precede it.
    #[serde(default)]
    pub depends_on: BTreeMap<String, Dependency>,
    /// Whether its root file system is read-only.
    #[serde(default)]
    pub read_only: bool,
    /// In-memory folders.
    #[serde(default)]
    pub tmpfs: Vec<String>,
    /// Dropped capabilities.
    #[serde(default)]
    pub cap_drop: Vec<String>,
    /// Options of the kernel's confinement.
    #[serde(default)]
    pub security_opt: Vec<String>,
    /// Whether an init process forwards signals.
    #[serde(default)]
    pub init: bool,
    /// Timeout after SIGTERM.
    pub stop_grace_period: Option<String>,
    /// Restart policy.
    pub restart: Option<String>,
}

/// Build of an image.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// Context folder.
    pub context: PathBuf,
    /// Dockerfile within the context.
    pub dockerfile: PathBuf,
    /// Stage.
    pub target: String,
    /// Arguments by name.
    #[serde(default)]
    pub args: BTreeMap<String, String>,
}

/// A service's attachment to a network.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attachment {
    /// Address of the service.
    pub ipv4_address: Ipv4Addr,
}

/// Condition on another service.
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
    /// Whether it has no route outside.
    #[serde(default)]
    pub internal: bool,
    /// Address ranges.
    pub ipam: Ipam,
}

/// Address ranges of a network.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ipam {
    /// A single range.
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
    /// It cannot be read, is not YAML, or has an unknown field.
    pub fn read() -> Result<Self> {
        let path = Self::folder().join("compose.yaml");
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        serde_saphyr::from_str(&text).with_context(|| format!("read {}", path.display()))
    }

    /// Returns `deploy/compose` of this checkout.
    #[must_use]
    pub fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/compose")
    }

    /// Returns the services whose image is built from a stage of the Dockerfile.
    pub fn built_from<'a>(&'a self, target: &'a str) -> impl Iterator<Item = (&'a str, &'a Service)> {
        self.services
            .iter()
            .filter(move |(_, service)| service.build.target == target)
            .map(|(name, service)| (name.as_str(), service))
    }
}

impl Service {
    /// Returns the program and its arguments: each image's entry point is the program named like its stage.
    pub fn command_line(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.build.target.as_str()).chain(self.command.iter().map(String::as_str))
    }

    /// Returns the source mounted at a path of the container (a volume or a path relative to the file), and
    /// whether it is writable.
    #[must_use]
    pub fn mounted_at(&self, path: &str) -> Option<(&str, bool)> {
        self.volumes.iter().find_map(|volume| {
            let mut parts = volume.split(':');
            let (source, target) = (parts.next()?, parts.next()?);
            (target == path).then_some((source, parts.next() != Some("ro")))
        })
    }
}
