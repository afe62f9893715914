//! The objects that a kustomization stands for.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Container, kustomization};

/// The objects that `kubectl apply -k` would send.
#[derive(Clone, Debug)]
pub struct Manifests {
    /// In the order of the files.
    pub objects: Vec<Value>,
}

impl Manifests {
    /// Builds the kustomization in a folder, whose path counts from `deploy/kubernetes` of this checkout.
    ///
    /// # Errors
    /// A file that cannot be read, is not YAML, or uses a field of kustomize that this does not know.
    pub fn build(folder: impl AsRef<Path>) -> Result<Self> {
        kustomization::build(&Self::root().join(folder))
    }

    /// `deploy/kubernetes` of this checkout.
    #[must_use]
    pub fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes")
    }

    /// Reads a stream of YAML documents.
    ///
    /// # Errors
    /// The place that is not YAML, or has a key twice.
    pub fn from_yaml(text: &str) -> Result<Self> {
        Ok(Self { objects: serde_saphyr::from_multiple(text).context("read YAML")? })
    }

    /// The objects of a kind.
    pub fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |object| object["kind"] == kind)
    }

    /// One object.
    ///
    /// # Errors
    /// When it is not there.
    pub fn get(&self, kind: &str, name: &str) -> Result<&Value> {
        let found = self.of_kind(kind).find(|object| object["metadata"]["name"] == name);
        found.with_context(|| format!("there is no {kind} {name}"))
    }

    /// The only container of a StatefulSet's pods.
    ///
    /// # Errors
    /// When the StatefulSet is not there, or has another number of containers.
    pub fn container(&self, stateful_set: &str) -> Result<Container<'_>> {
        Container::only_one_of(self, self.get("StatefulSet", stateful_set)?)
    }
}
