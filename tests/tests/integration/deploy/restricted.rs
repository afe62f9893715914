//! The restricted profile of the Pod Security Standards, which the namespace asks the API server to enforce.

use longhaul_tests::kubernetes::Container;
use serde_json::{Value, json};

use super::built;

#[test]
fn the_namespace_enforces_the_restricted_profile_and_holds_everything_else() {
    for (folder, manifests) in built() {
        let namespace = manifests.of_kind("Namespace").next().unwrap();
        assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
        let held = |object: &&Value| object["kind"] != "Namespace" && object["kind"] != "StorageClass";
        for object in manifests.objects.iter().filter(held) {
            assert_eq!(object["metadata"]["namespace"], namespace["metadata"]["name"], "{folder}: {object}");
        }
    }
}

#[test]
fn every_pod_keeps_to_the_restricted_profile() {
    for (folder, manifests) in built() {
        for set in manifests.of_kind("StatefulSet") {
            let name = set["metadata"]["name"].as_str().unwrap();
            assert_restricted(&manifests.container(name).unwrap(), &format!("{folder}/{name}"));
        }
    }
}

/// The profile's controls, one by one, and further restrictions.
fn assert_restricted(container: &Container<'_>, place: &str) {
    let Container { pod, spec, .. } = *container;
    for shared in ["hostNetwork", "hostPID", "hostIPC", "initContainers", "ephemeralContainers"] {
        assert!(pod.get(shared).is_none(), "{place}: {shared}");
    }
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{place}");
    assert!(pod["securityContext"]["runAsUser"].as_u64().unwrap() > 0, "{place}");
    assert_eq!(pod["securityContext"]["seccompProfile"], json!({ "type": "RuntimeDefault" }), "{place}");
    for volume in pod["volumes"].as_array().unwrap() {
        let mut sources = volume.as_object().unwrap().keys().filter(|key| *key != "name");
        let source = sources.next().unwrap();
        assert!(["configMap", "emptyDir", "secret"].contains(&source.as_str()), "{place}: {volume}");
    }
    let context = &spec["securityContext"];
    assert_eq!(
        *context,
        json!({
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "readOnlyRootFilesystem": true,
        }),
        "{place}"
    );
    for port in spec["ports"].as_array().unwrap() {
        assert!(port.get("hostPort").is_none(), "{place}: {port}");
    }
    assert_eq!(pod["automountServiceAccountToken"], false, "{place}");
    for list in ["requests", "limits"] {
        assert!(spec["resources"][list]["memory"].is_string(), "{place}: {list}");
    }
}
