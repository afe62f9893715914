//! Kubernetes' schemas, strictly: a field that does not exist is an error.

use longhaul_tests::kubernetes::{Manifests, Validator};
use serde_json::{Value, json};

use super::built;

/// Kubernetes releases: from the oldest with extended support in clouds to the newest known to the validator.
const RELEASES: [&str; 9] = ["1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37"];

/// Kinds with schemas outside Kubernetes: `typed` reads them.
const OTHERS: [&str; 1] = ["ServiceMonitor"];

#[test]
fn the_manifests_are_valid_for_every_supported_release_of_kubernetes() {
    let Some(validator) = Validator::for_a_test() else { return };
    // Each different object once: the validator's start takes longer than the check.
    let mut objects: Vec<Value> = Vec::new();
    for object in built().flat_map(|(_, manifests)| manifests.objects) {
        if !objects.contains(&object) && !OTHERS.iter().any(|kind| object["kind"] == *kind) {
            objects.push(object);
        }
    }
    for release in RELEASES {
        validator.validate(&objects, release).unwrap_or_else(|error| panic!("on {release}: {error:#}"));
    }
}

#[test]
fn a_misspelt_field_is_found_however_deep_it_lies() {
    let Some(validator) = Validator::for_a_test() else { return };
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
    let Some(validator) = Validator::for_a_test() else { return };
    let object = |kind: &str| json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": "x" } });
    validator.validate(&[object("ConfigMap")], "1.32").unwrap();
    let error = validator.validate(&[object("ConfigMap"), object("ConfigMpa")], "1.32").unwrap_err();
    assert!(error.to_string().contains("1 of 2 objects passed"), "{error}");
    validator.validate(&[object("ConfigMap")], "1.99").unwrap_err();
}
