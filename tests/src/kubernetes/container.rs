//! A container as started by the kubelet.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{Manifests, expand};

/// A container of a pod template.
#[derive(Clone, Copy, Debug)]
pub struct Container<'a> {
    manifests: &'a Manifests,
    /// Name of the StatefulSet.
    set: &'a str,
    /// The template's `spec`.
    pub pod: &'a Value,
    /// Entry of the container in it.
    pub spec: &'a Value,
}

/// Values known only to the cluster at the start of a container.
#[derive(Clone, Debug)]
pub struct Start {
    /// Address of the pod.
    pub pod_ip: IpAddr,
    /// Address of its node.
    pub node_ip: IpAddr,
    /// Number of the pod in its StatefulSet.
    pub index: u32,
    /// Values of Secrets, by name and key.
    pub secrets: BTreeMap<(String, String), String>,
}

/// A port of a container or a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name for probes and Services.
    pub name: String,
    /// `UDP` or `TCP`.
    pub protocol: String,
    /// Number.
    pub number: u64,
}

impl<'a> Container<'a> {
    pub(super) fn only_one_of(manifests: &'a Manifests, stateful_set: &'a Value) -> Result<Self> {
        let (set, pod) =
            (text(&stateful_set["metadata"]["name"])?, &stateful_set["spec"]["template"]["spec"]);
        match elements(&pod["containers"]) {
            [spec] => Ok(Self { manifests, set, pod, spec }),
            containers => bail!("{} containers instead of one", containers.len()),
        }
    }

    /// Returns program and arguments, with references expanded.
    ///
    /// # Errors
    /// A command or a variable cannot be resolved.
    pub fn command_line(&self, start: &Start) -> Result<Vec<String>> {
        let variables = self.environment(start)?;
        let words = elements(&self.spec["command"]).iter().chain(elements(&self.spec["args"]));
        let words: Vec<String> =
            words.map(|word| Ok(expand(text(word)?, &variables))).collect::<Result<_>>()?;
        if let Some(word) = words.iter().find(|word| word.contains("$(")) {
            bail!("{word} refers to a variable that is not there");
        }
        Ok(words)
    }

    /// Returns the variables set by the manifest.
    ///
    /// # Errors
    /// A source is missing or not supported.
    pub fn environment(&self, start: &Start) -> Result<BTreeMap<String, String>> {
        let mut variables = BTreeMap::new();
        for source in elements(&self.spec["envFrom"]) {
            let name =
                text(&source["configMapRef"]["name"]).context("only ConfigMaps are known in envFrom")?;
            for (key, value) in self.config_map(name)? {
                variables.insert(key.clone(), text(value)?.to_owned());
            }
        }
        for variable in elements(&self.spec["env"]) {
            let name = text(&variable["name"])?;
            let value = match variable.get("value") {
                Some(value) => expand(text(value)?, &variables),
                None => {
                    self.resolve(&variable["valueFrom"], start).with_context(|| format!("variable {name}"))?
                }
            };
            variables.insert(name.to_owned(), value);
        }
        Ok(variables)
    }

    fn resolve(&self, source: &Value, start: &Start) -> Result<String> {
        if let Some(secret) = source.get("secretKeyRef") {
            let place = (text(&secret["name"])?.to_owned(), text(&secret["key"])?.to_owned());
            return start.secrets.get(&place).cloned().with_context(|| format!("no Secret has {place:?}"));
        }
        match source["fieldRef"]["fieldPath"].as_str() {
            Some("status.podIP") => return Ok(start.pod_ip.to_string()),
            Some("status.hostIP") => return Ok(start.node_ip.to_string()),
            Some("metadata.name") => return Ok(format!("{}-{}", self.set, start.index)),
            Some("metadata.labels['apps.kubernetes.io/pod-index']") => return Ok(start.index.to_string()),
            _ => {}
        }
        let resource = source["resourceFieldRef"]["resource"].as_str().and_then(|name| name.split_once('.'));
        if let Some((list @ ("limits" | "requests"), "cpu")) = resource {
            return whole_cpus(text(&self.spec["resources"][list]["cpu"])?).map(|cpus| cpus.to_string());
        }
        bail!("unknown source {source}")
    }

    /// Returns the declared ports.
    ///
    /// # Errors
    /// An entry is incomplete.
    pub fn ports(&self) -> Result<Vec<Port>> {
        elements(&self.spec["ports"]).iter().map(|port| Port::read(port, "containerPort")).collect()
    }

    /// Returns the port and path of an HTTP probe.
    ///
    /// # Errors
    /// The probe is missing, or names no declared port.
    pub fn http_probe(&self, probe: &str) -> Result<(Port, &'a str)> {
        let get = &self.spec[probe]["httpGet"];
        let name = text(&get["port"]).with_context(|| format!("{probe} has no named port"))?;
        let port = self.ports()?.into_iter().find(|port| port.name == name);
        Ok((port.with_context(|| format!("{probe}: no port {name}"))?, text(&get["path"])?))
    }

    /// Whether the container can write to a path: it is on a writable volume.
    #[must_use]
    pub fn can_write(&self, path: &Path) -> bool {
        self.mount(path).is_some_and(|(mount, _)| mount["readOnly"] != true)
    }

    /// Whether files at a path outlive the pod: it is on a claim of the StatefulSet.
    #[must_use]
    pub fn keeps(&self, path: &Path) -> bool {
        let Some((mount, _)) = self.mount(path) else { return false };
        // Volumes of claim templates are not in the pod's own list.
        self.can_write(path) && !elements(&self.pod["volumes"]).iter().any(|v| v["name"] == mount["name"])
    }

    /// Returns the Secret whose volume contains a path, and the key in the path.
    ///
    /// # Errors
    /// The path is elsewhere.
    pub fn secret_key<'p>(&self, path: &'p Path) -> Result<(&'a str, &'p str)> {
        let (volume, key) = self.volume_key(path)?;
        Ok((text(&volume["secret"]["secretName"]).context("it is not a Secret's volume")?, key))
    }

    /// Returns the ConfigMap whose volume contains a path, and the key in the path.
    ///
    /// # Errors
    /// The path is elsewhere.
    pub fn config_map_key<'p>(&self, path: &'p Path) -> Result<(&'a str, &'p str)> {
        let (volume, key) = self.volume_key(path)?;
        Ok((text(&volume["configMap"]["name"]).context("it is not a ConfigMap's volume")?, key))
    }

    fn volume_key<'p>(&self, path: &'p Path) -> Result<(&'a Value, &'p str)> {
        let (mount, key) =
            self.mount(path).with_context(|| format!("nothing is mounted at {}", path.display()))?;
        let volume = elements(&self.pod["volumes"]).iter().find(|volume| volume["name"] == mount["name"]);
        let volume = volume.with_context(|| format!("no volume {}", mount["name"]))?;
        Ok((volume, key.to_str().context("a key is UTF-8")?))
    }

    /// Returns a file from a ConfigMap of the same manifests.
    ///
    /// # Errors
    /// It is missing.
    pub fn file(&self, path: &Path) -> Result<&'a str> {
        let (name, key) = self.config_map_key(path)?;
        let value = self.config_map(name)?.get(key);
        text(value.with_context(|| format!("ConfigMap {name} has no {key}"))?)
    }

    fn mount<'p>(&self, path: &'p Path) -> Option<(&'a Value, &'p Path)> {
        let mounts = elements(&self.spec["volumeMounts"]).iter();
        let below = mounts.filter_map(|mount| {
            let rest = path.strip_prefix(mount["mountPath"].as_str()?).ok()?;
            Some((mount, rest))
        });
        below.min_by_key(|(_, rest)| rest.components().count())
    }

    fn config_map(&self, name: &str) -> Result<&'a serde_json::Map<String, Value>> {
        let data = &self.manifests.get("ConfigMap", name)?["data"];
        data.as_object().with_context(|| format!("ConfigMap {name} has no data"))
    }
}

impl Port {
    /// Parses an entry of `ports`, whose number is under `key`.
    ///
    /// # Errors
    /// A field is missing, including the protocol, whose default is easily forgotten.
    pub fn read(port: &Value, key: &str) -> Result<Self> {
        let number = port[key].as_u64().with_context(|| format!("{port} has no {key}"))?;
        let (name, protocol) = (text(&port["name"])?.to_owned(), text(&port["protocol"])?.to_owned());
        Ok(Self { name, protocol, number })
    }
}

/// Returns a quantity of CPUs, rounded up as `resourceFieldRef` does with its default divisor.
fn whole_cpus(quantity: &str) -> Result<u64> {
    let cpus = match quantity.strip_suffix('m') {
        Some(thousandths) => thousandths.parse::<u64>().map(|thousandths| thousandths.div_ceil(1000)),
        None => quantity.parse(),
    };
    let cpus = cpus.with_context(|| format!("{quantity} is not a number of CPUs"))?;
    ensure!(cpus > 0, "{quantity} is no CPU at all");
    Ok(cpus)
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().with_context(|| format!("{value} is not a string"))
}

fn elements(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
