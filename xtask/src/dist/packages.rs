//! The Rust packages in the released programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::checkout::Checkout;

/// The packages of the programs.
pub const SHIPPED: [&str; 5] = [
    "longhaul-coordinator",
    "longhaul-worker",
    "longhaul-worker-launch",
    "longhaul-emulator",
    "longhaul-demo",
];

/// A package.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// Cargo's identifier.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its licence as an SPDX expression, or nearly.
    pub license: Option<String>,
    /// Its own licence file, if it has one.
    pub license_file: Option<PathBuf>,
    /// Its repository.
    pub repository: Option<String>,
    /// Its authors.
    pub authors: Vec<String>,
    /// Its registry; `None`: a package of Longhaul.
    pub source: Option<String>,
    manifest_path: PathBuf,
    /// The SHA-256 of its archive at the registry, in hexadecimal.
    #[serde(skip)]
    pub checksum: Option<String>,
    /// The ids of its dependencies.
    #[serde(skip)]
    pub needs: BTreeSet<String>,
    /// Whether it is needed only to build the programs.
    #[serde(skip)]
    pub builds_only: bool,
}

impl Package {
    /// The folder with its sources.
    pub fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(&self.manifest_path)
    }

    /// Name and version.
    pub fn reference(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }
}

/// All dependencies of the programs, ordered by name and version.
pub struct Packages {
    packages: Vec<Package>,
}

/// The parts of `cargo metadata` used here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Need>,
}

#[derive(Deserialize)]
struct Need {
    pkg: String,
    dep_kinds: Vec<NeedKind>,
}

#[derive(Deserialize)]
struct NeedKind {
    /// `None`: an ordinary dependency.
    kind: Option<String>,
}

/// The parts of Cargo.lock used here.
#[derive(Deserialize)]
struct Lock {
    package: Vec<LockedPackage>,
}

#[derive(Deserialize)]
struct LockedPackage {
    name: String,
    version: String,
    checksum: Option<String>,
}

impl Packages {
    /// Returns the dependencies of a checkout's programs on a platform.
    ///
    /// # Errors
    /// Returns an error if cargo does not list them.
    pub fn shipped(checkout: &Checkout, platform: &str) -> Result<Self> {
        let output = checkout
            .cargo()
            .args(["metadata", "--locked", "--format-version", "1", "--filter-platform", platform])
            .output()
            .context("run cargo metadata")?;
        if !output.status.success() {
            bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        let lock = fs::read_to_string(checkout.root().join("Cargo.lock")).context("read Cargo.lock")?;
        Self::read(&output.stdout, &lock, &SHIPPED)
    }

    /// Reads the dependencies of the named packages from cargo's output.
    fn read(metadata: &[u8], lock: &str, names: &[&str]) -> Result<Self> {
        let metadata: Metadata =
            serde_json::from_slice(metadata).context("read what cargo metadata printed")?;
        let lock: Lock = toml::from_str(lock).context("read Cargo.lock")?;
        let checksums: BTreeMap<(String, String), Option<String>> =
            lock.package.into_iter().map(|it| ((it.name, it.version), it.checksum)).collect();
        let nodes: BTreeMap<&str, &Node> =
            metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let ours = |package: &&Package| package.source.is_none() && names.contains(&package.name.as_str());
        let roots: Vec<&str> = metadata.packages.iter().filter(ours).map(|it| it.id.as_str()).collect();
        if roots.len() != names.len() {
            bail!("cargo metadata does not name all of {}", names.join(", "));
        }
        let inside = reached(&nodes, &roots, |kind| kind.is_none());
        let needed = reached(&nodes, &roots, |kind| kind != Some("dev"));
        let needs = |id: &str| -> BTreeSet<String> {
            let of_node = nodes.get(id).into_iter().flat_map(|node| &node.deps);
            of_node
                .filter(|need| has(need, |kind| kind != Some("dev")))
                .map(|need| need.pkg.clone())
                .collect()
        };
        let mut packages: Vec<Package> = Vec::new();
        for mut package in metadata.packages {
            if needed.contains(&package.id) {
                let named = (package.name.clone(), package.version.clone());
                package.checksum = checksums.get(&named).cloned().flatten();
                package.needs = needs(&package.id);
                package.builds_only = !inside.contains(&package.id);
                packages.push(package);
            }
        }
        packages.sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
        Ok(Self { packages })
    }

    /// Returns all packages.
    pub fn iter(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter()
    }

    /// Returns Longhaul's version.
    ///
    /// # Errors
    /// Returns an error if none of its packages is present.
    pub fn version(&self) -> Result<&str> {
        let ours = self.iter().find(|package| package.name == SHIPPED[0]);
        Ok(&ours.with_context(|| format!("there is no {}", SHIPPED[0]))?.version)
    }
}

fn has(need: &Need, wanted: impl Fn(Option<&str>) -> bool) -> bool {
    need.dep_kinds.iter().any(|it| wanted(it.kind.as_deref()))
}

/// Returns the ids of all direct and indirect dependencies of the wanted kinds.
fn reached(
    nodes: &BTreeMap<&str, &Node>,
    roots: &[&str],
    wanted: impl Fn(Option<&str>) -> bool,
) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = roots.to_vec();
    while let Some(id) = open.pop() {
        if reached.insert(id.to_owned())
            && let Some(node) = nodes.get(id)
        {
            open.extend(node.deps.iter().filter(|need| has(need, &wanted)).map(|need| need.pkg.as_str()));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, source: Option<&str>) -> serde_json::Value {
        serde_json::json!({
            "id": format!("id of {name}"), "name": name, "version": "1.0.0", "license": "MIT", "license_file": null,
            "repository": null, "authors": [], "source": source, "manifest_path": format!("/{name}/Cargo.toml"),
        })
    }

    #[test]
    fn what_only_tests_need_is_left_out_and_what_only_builds_is_told_apart() {
        let need = |name: &str, kinds: &[Option<&str>]| {
            let kinds: Vec<_> = kinds.iter().map(|kind| serde_json::json!({ "kind": kind })).collect();
            serde_json::json!({ "pkg": format!("id of {name}"), "dep_kinds": kinds })
        };
        let metadata = serde_json::json!({
            "packages": [named("worker", None), named("cc", Some("r")), named("serde", Some("r")), named("proptest", Some("r"))],
            "resolve": { "nodes": [
                { "id": "id of worker", "deps": [
                    need("cc", &[Some("build")]), need("serde", &[Some("dev"), None]), need("proptest", &[Some("dev")]),
                ] },
                { "id": "id of cc", "deps": [] }, { "id": "id of serde", "deps": [] }, { "id": "id of proptest", "deps": [] },
            ] },
        });
        let lock = "[[package]]\nname = \"cc\"\nversion = \"1.0.0\"\nchecksum = \"c0ffee\"\n";
        let read = Packages::read(metadata.to_string().as_bytes(), lock, &["worker"]).unwrap();
        let told: Vec<_> = read.iter().map(|it| (it.reference(), it.builds_only, it.needs.len())).collect();
        assert_eq!(
            told,
            [
                ("cc@1.0.0".to_owned(), true, 0),
                ("serde@1.0.0".to_owned(), false, 0),
                ("worker@1.0.0".to_owned(), false, 2)
            ]
        );
        assert_eq!(read.iter().next().unwrap().checksum.as_deref(), Some("c0ffee"));
        assert!(Packages::read(metadata.to_string().as_bytes(), lock, &["serde"]).is_err(), "it is not ours");
    }
}
