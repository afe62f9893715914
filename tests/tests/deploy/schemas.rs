//! Kubernetes' schemas, strictly: a field that does not exist is an error.

use longhaul_tests::kubernetes::{Manifests, Unavailable, Validator};
use serde_json::{Value, json};

use crate::built;

/// Releases of Kubernetes: the oldest that clouds still sell extended support for, to the newest that the validator knows.
const RELEASES: [&str; 9] = ["1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37"];

/// None, with a notice, where there is no package index.
fn validator() -> Option<Validator> {
    match Validator::install() {
        Ok(validator) => Some(validator),
        Err(Unavailable::Offline) => {
            println!("notice: skipped, as pip reaches no index with kubernetes-validate");
            None
        }
        Err(Unavailable::Broken(error)) => panic!("install kubernetes-validate: {error:#}"),
    }
}

#[test]
fn the_manifests_are_valid_for_every_supported_release_of_kubernetes() {
    let Some(validator) = validator() else { return };
    for (folder, manifests) in built() {
        for release in RELEASES {
            validator
                .validate(&manifests.objects, release)
                .unwrap_or_else(|error| panic!("{folder} on {release}: {error:#}"));
        }
    }
}

#[test]
fn a_misspelt_field_is_found_however_deep_it_lies() {
    let Some(validator) = validator() else { return };
    let spoil = |change: fn(&mut Value)| {
        let mut manifests = Manifests::build("base").unwrap();
        let set = manifests.objects.iter_mut().find(|object| object["kind"] == "StatefulSet").unwrap();
        change(set);
        validator.validate(&manifests.objects, "1.32").unwrap_err().to_string()
    };
    let error = spoil(|set| set["spec"]["replica"] = json!(1));
    assert!(error.contains("'replica' was unexpected"), "{error}");
    let error = spoil(|set| {
        set["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["httpGet"]["prot"] = json!("http");
    });
    assert!(error.contains("'prot' was unexpected"), "{error}");
    let error = spoil(|set| set["spec"]["replicas"] = json!("one"));
    assert!(error.contains("'one' is not of type"), "{error}");
}

#[test]
fn an_unknown_kind_and_an_unknown_release_are_failures() {
    let Some(validator) = validator() else { return };
    let object = |kind: &str| json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": "x" } });
    validator.validate(&[object("ConfigMap")], "1.32").unwrap();
    let error = validator.validate(&[object("ConfigMap"), object("ConfigMpa")], "1.32").unwrap_err();
    assert!(error.to_string().contains("1 of 2 objects passed"), "{error}");
    validator.validate(&[object("ConfigMap")], "1.99").unwrap_err();
}

#[test]
fn where_no_index_has_the_validator_it_is_unavailable_and_nothing_half_made_counts_as_installed() {
    let cache = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let missing = Validator::install_in(cache.path(), &["--no-index", "--find-links", "."]).unwrap_err();
        assert!(matches!(missing, Unavailable::Offline), "{missing:?}");
    }
}
