//! `kustomization.yaml`: the fields used by ours.
//!
//! Patches are limited to lists of operations (RFC 6902) on objects of a kind.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Manifests;
use super::patch::{self, Patch};

/// Name of the file in every folder.
const FILE: &str = "kustomization.yaml";

/// Kinds without a namespace.
const CLUSTER_WIDE: [&str; 2] = ["Namespace", "StorageClass"];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Kustomization {
    api_version: String,
    kind: String,
    namespace: Option<String>,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    components: Vec<String>,
    #[serde(default)]
    config_map_generator: Vec<Generator>,
    #[serde(default)]
    patches: Vec<Patch>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Generator {
    name: String,
    #[serde(default)]
    behavior: Behavior,
    #[serde(default)]
    files: Vec<String>,
    #[serde(default)]
    literals: Vec<String>,
    options: Options,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Behavior {
    #[default]
    Create,
    Replace,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Options {
    disable_name_suffix_hash: bool,
    #[serde(default)]
    immutable: bool,
}

/// Returns the output of `kubectl kustomize <folder>`, except for the order.
pub(super) fn build(folder: &Path) -> Result<Manifests> {
    let mut manifests = Manifests { objects: Vec::new() };
    read_file(folder, ("kustomize.config.k8s.io/v1beta1", "Kustomization"))?
        .add_to(&mut manifests, folder)?;
    Ok(manifests)
}

fn read_file(folder: &Path, version: (&str, &str)) -> Result<Kustomization> {
    let path = folder.join(FILE);
    let kustomization: Kustomization =
        serde_saphyr::from_str(&read(&path)?).with_context(|| format!("read {}", path.display()))?;
    let found = (kustomization.api_version.as_str(), kustomization.kind.as_str());
    ensure!(found == version, "{}: {found:?} instead of {version:?}", path.display());
    Ok(kustomization)
}

impl Kustomization {
    /// In the order of kustomize: a component sees the objects before it.
    fn add_to(&self, manifests: &mut Manifests, folder: &Path) -> Result<()> {
        for resource in &self.resources {
            let path = folder.join(resource);
            let found = if path.is_dir() { build(&path) } else { Manifests::from_yaml(&read(&path)?) };
            manifests.objects.extend(found.with_context(|| format!("read {}", path.display()))?.objects);
        }
        for component in &self.components {
            let path = folder.join(component);
            read_file(&path, ("kustomize.config.k8s.io/v1alpha1", "Component"))?.add_to(manifests, &path)?;
        }
        for generator in &self.config_map_generator {
            let generated = config_map(folder, generator)?;
            place(manifests, generator, generated)?;
        }
        for patch in &self.patches {
            patch::apply(patch, &mut manifests.objects)
                .with_context(|| format!("patch as {} says", folder.join(FILE).display()))?;
        }
        let Some(namespace) = &self.namespace else { return Ok(()) };
        let held = |object: &&mut Value| !CLUSTER_WIDE.iter().any(|kind| object["kind"] == *kind);
        for object in manifests.objects.iter_mut().filter(held) {
            object["metadata"]["namespace"] = json!(namespace);
        }
        Ok(())
    }
}

fn config_map(folder: &Path, generator: &Generator) -> Result<Value> {
    let name = &generator.name;
    ensure!(generator.options.disable_name_suffix_hash, "ConfigMap {name}: a hashed name is not supported");
    let mut data = Map::new();
    for file in &generator.files {
        ensure!(
            !file.contains(['/', '=']),
            "ConfigMap {name}: {file} is not a file beside the kustomization"
        );
        data.insert(file.clone(), read(&folder.join(file))?.into());
    }
    for literal in &generator.literals {
        let (key, value) =
            literal.split_once('=').with_context(|| format!("ConfigMap {name}: {literal} has no ="))?;
        data.insert(key.to_owned(), value.into());
    }
    let mut object =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data });
    if generator.options.immutable {
        object["immutable"] = json!(true);
    }
    Ok(object)
}

fn place(manifests: &mut Manifests, generator: &Generator, generated: Value) -> Result<()> {
    let name = generator.name.as_str();
    let there = manifests
        .objects
        .iter_mut()
        .find(|object| object["kind"] == "ConfigMap" && object["metadata"]["name"] == name);
    match (&generator.behavior, there) {
        (Behavior::Create, None) => manifests.objects.push(generated),
        (Behavior::Replace, Some(there)) => *there = generated,
        (behavior, _) => bail!("ConfigMap {name}: cannot {behavior:?} it, as kustomize could not"),
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n";

    fn build_text(rest: &str) -> Result<Manifests> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), format!("{HEAD}{rest}")).unwrap();
        build(folder.path())
    }

    #[test]
    fn a_field_that_kustomize_would_follow_and_this_would_not_is_an_error() {
        let error = build_text("resources: []\nnamePrefix: my-\n").unwrap_err();
        assert!(format!("{error:#}").contains("namePrefix"), "{error:#}");
    }

    #[test]
    fn a_config_map_can_be_created_once_and_replaced_only_if_it_is_there() {
        let generate = |behavior: &str| {
            let generator = format!(
                "  - name: site\n    behavior: {behavior}\n    literals: [SITE=a]\n    options: {{disableNameSuffixHash: true}}\n"
            );
            format!("resources: []\nconfigMapGenerator:\n{generator}")
        };
        assert_eq!(
            build_text(&generate("create")).unwrap().get("ConfigMap", "site").unwrap()["data"]["SITE"],
            "a"
        );
        let error = build_text(&generate("replace")).unwrap_err();
        assert!(error.to_string().contains("cannot Replace"), "{error}");
    }
}
