//! The objects of a kustomization.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Container, kustomization};

/// The objects sent by `kubectl apply -k`.
#[derive(Clone, Debug)]
pub struct Manifests {
    /// In the order of the files.
    pub objects: Vec<Value>,
}

impl Manifests {
    /// Builds the kustomization in a folder, relative to `deploy/kubernetes` of this checkout.
    ///
    /// # Errors
    /// A file cannot be read, is not YAML, or uses an unsupported field of kustomize.
    pub fn build(folder: impl AsRef<Path>) -> Result<Self> {
        kustomization::build(&Self::root().join(folder))
    }

    /// Returns `deploy/kubernetes` of this checkout.
    #[must_use]
    pub fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes")
    }

    /// Parses a stream of YAML documents.
    ///
    /// # Errors
    /// The location of invalid YAML, or of a duplicate key.
    pub fn from_yaml(text: &str) -> Result<Self> {
        Ok(Self { objects: serde_saphyr::from_multiple(text).context("read YAML")? })
    }

    /// Returns the objects of a kind.
    pub fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |object| object["kind"] == kind)
    }

    /// Returns one object.
    ///
    /// # Errors
    /// It is missing.
    pub fn get(&self, kind: &str, name: &str) -> Result<&Value> {
        let found = self.of_kind(kind).find(|object| object["metadata"]["name"] == name);
        found.with_context(|| format!("there is no {kind} {name}"))
    }

    /// Returns the single container of a StatefulSet's pods.
    ///
    /// # Errors
    /// The StatefulSet is missing, or has another number of containers.
    pub fn container(&self, stateful_set: &str) -> Result<Container<'_>> {
        Container::only_one_of(self, self.get("StatefulSet", stateful_set)?)
    }
}
