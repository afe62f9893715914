//! Policies permit exactly the connections of ports, Services and probes.

use longhaul_tests::kubernetes::Manifests;
use serde_json::{Value, json};

use super::built;

#[test]
fn nothing_is_let_through_that_no_policy_names() {
    for (place, manifests) in built() {
        let policy = manifests.get("NetworkPolicy", "nothing-else").unwrap();
        assert_eq!(
            policy["spec"],
            json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }),
            "{place}"
        );
    }
}

#[test]
fn every_declared_port_is_let_in_and_no_other() {
    for (place, manifests) in built() {
        for set in manifests.of_kind("StatefulSet") {
            let name = set["metadata"]["name"].as_str().unwrap();
            let declared = manifests.container(name).unwrap().ports().unwrap();
            let mut declared: Vec<_> = declared
                .into_iter()
                .map(|port| json!({ "port": port.name, "protocol": port.protocol }))
                .collect();
            let mut let_in: Vec<Value> = policies_of(&manifests, set)
                .flat_map(|policy| policy["spec"]["ingress"].as_array().into_iter().flatten())
                .flat_map(|rule| rule["ports"].as_array().unwrap().clone())
                .collect();
            declared.sort_by_key(Value::to_string);
            let_in.sort_by_key(Value::to_string);
            assert_eq!(let_in, declared, "{place}: {name}");
        }
    }
}

#[test]
fn only_quic_is_let_in_from_outside_the_cluster() {
    for (place, manifests) in built() {
        for rule in manifests
            .of_kind("NetworkPolicy")
            .flat_map(|policy| policy["spec"]["ingress"].as_array().into_iter().flatten())
            .filter(|rule| rule.get("from").is_none())
        {
            let ports = rule["ports"].as_array().unwrap();
            assert!(ports.iter().all(|port| port["protocol"] == "UDP"), "{place}: {rule}");
        }
    }
}

/// Returns those whose selector is the pods' labels.
fn policies_of<'a>(manifests: &'a Manifests, set: &'a Value) -> impl Iterator<Item = &'a Value> {
    let labels = &set["spec"]["template"]["metadata"]["labels"];
    manifests
        .of_kind("NetworkPolicy")
        .filter(move |policy| policy["spec"]["podSelector"]["matchLabels"] == *labels)
}
