//! References between objects.

use std::fs;
use std::process::Command;

use longhaul_tests::kubernetes::{Manifests, Port};
use longhaul_tests::tools::skipped;
use serde_json::Value;

use super::{KUSTOMIZATIONS, built, folders};

#[test]
fn kustomize_builds_what_the_tests_read() {
    for (name, folder) in folders() {
        let output = match Command::new("kubectl").arg("kustomize").arg(&folder).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                skipped("kubectl is not installed");
                return;
            }
            output => output.unwrap(),
        };
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let theirs = Manifests::from_yaml(&String::from_utf8(output.stdout).unwrap()).unwrap();
        assert_eq!(in_one_order(theirs), in_one_order(Manifests::build(&folder).unwrap()), "{name}");
    }
}

fn in_one_order(mut manifests: Manifests) -> Vec<Value> {
    manifests.objects.sort_by_key(|object| format!("{} {}", object["kind"], object["metadata"]["name"]));
    manifests.objects
}

#[test]
fn every_service_leads_to_a_port_that_its_pods_declare() {
    for (folder, manifests) in built() {
        for service in manifests.of_kind("Service") {
            let set = manifests
                .of_kind("StatefulSet")
                .find(|set| selects(&service["spec"]["selector"], set))
                .unwrap_or_else(|| panic!("{folder}: {service} selects no pods"));
            let declared =
                manifests.container(set["metadata"]["name"].as_str().unwrap()).unwrap().ports().unwrap();
            for port in service["spec"]["ports"].as_array().unwrap() {
                let target = Port::read(port, "port").unwrap();
                assert_eq!(port["targetPort"], target.name.as_str(), "{folder}");
                assert!(declared.contains(&target), "{folder}: {target:?} is not among {declared:?}");
            }
        }
    }
}

/// Whether a Service's selector is the pods' labels, possibly with the name of one pod.
fn selects(selector: &Value, set: &Value) -> bool {
    let mut labels = selector.as_object().unwrap().clone();
    let one = labels.remove("statefulset.kubernetes.io/pod-name");
    let name = set["metadata"]["name"].as_str().unwrap();
    let is_its = |pod: &Value| pod.as_str().unwrap().rsplit_once('-').unwrap().0 == name;
    one.as_ref().is_none_or(is_its) && Value::Object(labels) == set["spec"]["template"]["metadata"]["labels"]
}

#[test]
fn selectors_select_the_pods_of_their_own_object() {
    for (folder, manifests) in built() {
        for set in manifests.of_kind("StatefulSet") {
            let labels = &set["spec"]["template"]["metadata"]["labels"];
            assert_eq!(set["spec"]["selector"]["matchLabels"], *labels, "{folder}");
            manifests.get("Service", set["spec"]["serviceName"].as_str().unwrap()).unwrap();
            let spread = &set["spec"]["template"]["spec"]["topologySpreadConstraints"];
            for constraint in spread.as_array().into_iter().flatten() {
                assert_eq!(constraint["labelSelector"]["matchLabels"], *labels, "{folder}");
            }
        }
        for budget in manifests.of_kind("PodDisruptionBudget") {
            let of = budget["metadata"]["name"].as_str().unwrap();
            let set = manifests.get("StatefulSet", of).unwrap();
            assert_eq!(budget["spec"]["selector"], set["spec"]["selector"], "{folder}: {of}");
        }
        manifests.get("PodDisruptionBudget", "workers").unwrap();
    }
}

#[test]
fn every_mount_has_its_volume_and_every_volume_its_mount() {
    for (folder, manifests) in built() {
        for set in manifests.of_kind("StatefulSet") {
            let pod = &set["spec"]["template"]["spec"];
            let names = |list: &Value, name: &str| -> Vec<String> {
                let entries = list.as_array().into_iter().flatten();
                entries.map(|entry| entry.pointer(name).unwrap().as_str().unwrap().to_owned()).collect()
            };
            let mut volumes = names(&pod["volumes"], "/name");
            volumes.extend(names(&set["spec"]["volumeClaimTemplates"], "/metadata/name"));
            let mut mounted = names(&pod["containers"][0]["volumeMounts"], "/name");
            volumes.sort();
            mounted.sort();
            assert_eq!(volumes, mounted, "{folder}");
        }
    }
}

#[test]
fn images_are_of_this_release() {
    for (folder, manifests) in built() {
        for set in manifests.of_kind("StatefulSet") {
            let image = set["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap();
            assert_eq!(image.split_once(':').unwrap().1, env!("CARGO_PKG_VERSION"), "{folder}: {image}");
        }
    }
}

#[test]
fn what_the_manifests_expect_from_outside_is_made_by_the_commands_of_the_readme() {
    let readme = fs::read_to_string(Manifests::root().join("README.md")).unwrap();
    for (folder, manifests) in built() {
        let worker = manifests.container("workers").unwrap();
        let (name, key) = worker.secret_key("/run/secrets/longhaul/token".as_ref()).unwrap();
        assert_eq!(manifests.of_kind("Secret").count(), 0, "{folder}: a token is not kept in a repository");
        assert!(readme.contains(&format!("create secret generic {name} --from-file={key}=")), "{folder}");
        let (text, key) = worker.config_map_key("/data/text.zst".as_ref()).unwrap();
        assert!(manifests.get("ConfigMap", text).is_err(), "{folder}");
        assert!(readme.contains(&format!("create configmap {text} --from-file={key}=")), "{folder}");
    }
}

#[test]
fn the_folder_of_the_readme_needs_no_kind_that_a_cluster_may_not_know() {
    let readme = fs::read_to_string(Manifests::root().join("README.md")).unwrap();
    let (_, rest) = readme.split_once("longhaul-here/kustomization.yaml <<END\n").unwrap();
    let (text, _) = rest.split_once("END\n").unwrap();
    let folder: Value = serde_saphyr::from_str(text).unwrap();
    assert_eq!(folder["components"], serde_json::json!([]), "what an operator brings comes later");
    let base = folder["resources"][0].as_str().unwrap().strip_prefix("../deploy/kubernetes/").unwrap();
    let images = folder["images"].as_array().unwrap();
    for set in Manifests::build(base).unwrap().of_kind("StatefulSet") {
        let image = set["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap();
        let name = image.split_once(':').unwrap().0;
        assert!(images.iter().any(|image| image["name"] == name), "{name}");
    }
}

#[test]
fn the_training_text_of_the_readme_fits_a_config_map() {
    // The API server rejects more data than that.
    const CONFIG_MAP_BYTES_MAX: u64 = 1 << 20;
    let text = Manifests::root().join("../../examples/data/bible.en.txt.zst");
    assert!(fs::metadata(text).unwrap().len() < CONFIG_MAP_BYTES_MAX);
    let readme = fs::read_to_string(Manifests::root().join("README.md")).unwrap();
    assert!(readme.contains("=examples/data/bible.en.txt.zst"));
}

#[test]
fn a_monitor_finds_the_one_port_that_answers_and_the_token_that_reads() {
    let readme = fs::read_to_string(Manifests::root().join("README.md")).unwrap();
    let mut seen = 0;
    for (place, manifests) in built() {
        for monitor in manifests.of_kind("ServiceMonitor") {
            let [endpoint] = monitor["spec"]["endpoints"].as_array().unwrap().as_slice() else {
                panic!("{place}")
            };
            let labels = &monitor["spec"]["selector"]["matchLabels"];
            let services =
                manifests.of_kind("Service").filter(|service| service["metadata"]["labels"] == *labels);
            let mut ports = services.flat_map(|service| service["spec"]["ports"].as_array().unwrap());
            let port = ports.find(|port| port["name"] == endpoint["port"]).unwrap();
            assert_eq!(port["protocol"], "TCP", "{place}");
            let credentials = &endpoint["authorization"]["credentials"];
            let (name, key) = (credentials["name"].as_str().unwrap(), credentials["key"].as_str().unwrap());
            assert!(readme.contains(&format!("create secret generic {name} --from-file={key}=")), "{place}");
            seen += 1;
        }
    }
    assert!(seen > 1, "{seen} monitors");
}

#[test]
fn node_ports_are_in_the_range_that_clusters_have_and_each_is_given_once() {
    for (place, manifests) in built() {
        let mut numbers: Vec<u64> = manifests
            .of_kind("Service")
            .flat_map(|service| service["spec"]["ports"].as_array().unwrap())
            .filter_map(|port| port["nodePort"].as_u64())
            .collect();
        assert!(numbers.iter().all(|number| (30_000..=32_767).contains(number)), "{place}: {numbers:?}");
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count, "{place}: {numbers:?}");
    }
}

#[test]
fn the_page_names_every_overlay_and_component() {
    let readme = fs::read_to_string(Manifests::root().join("README.md")).unwrap();
    for kind in ["overlays", "components"] {
        for entry in fs::read_dir(Manifests::root().join(kind)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(readme.contains(&format!("`{kind}/{name}`")), "{kind}/{name}");
            let is_tested = |(overlay, components): &(&str, &[&str])| {
                *overlay == format!("{kind}/{name}") || components.contains(&name.as_str())
            };
            assert!(KUSTOMIZATIONS.iter().any(is_tested), "{kind}/{name}");
        }
    }
}
