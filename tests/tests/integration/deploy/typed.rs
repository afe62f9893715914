//! Every object as a value of its kind's type: those of `k8s-openapi`, and for the Prometheus operator those
//! below.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::built;

#[test]
fn every_object_is_a_value_of_its_kind_with_nothing_left_over() {
    for (place, manifests) in built() {
        for object in &manifests.objects {
            let again = read(object).unwrap_or_else(|error| panic!("{place}: {object}: {error}"));
            assert_eq!(
                again, *object,
                "{place}: a field is not one of its kind's, or is another after reading"
            );
        }
    }
}

#[test]
fn a_field_that_a_kind_does_not_have_is_seen() {
    let service = |spec: Value| serde_json::json!({ "apiVersion": "v1", "kind": "Service", "spec": spec });
    let right = service(serde_json::json!({ "type": "NodePort" }));
    assert!(read(&right).unwrap().get("spec").is_some_and(|spec| *spec == right["spec"]));
    let misspelt = service(serde_json::json!({ "tpye": "NodePort" }));
    assert_ne!(read(&misspelt).unwrap()["spec"], misspelt["spec"]);
}

/// Reads an object by its kind, and writes it again.
fn read(object: &Value) -> Result<Value, String> {
    match (object["apiVersion"].as_str(), object["kind"].as_str()) {
        (Some("v1"), Some("ConfigMap")) => through::<ConfigMap>(object),
        (Some("v1"), Some("Namespace")) => through::<Namespace>(object),
        (Some("v1"), Some("Service")) => through::<Service>(object),
        (Some("apps/v1"), Some("StatefulSet")) => through_set(object),
        (Some("networking.k8s.io/v1"), Some("NetworkPolicy")) => through::<NetworkPolicy>(object),
        (Some("policy/v1"), Some("PodDisruptionBudget")) => through::<PodDisruptionBudget>(object),
        (Some("storage.k8s.io/v1"), Some("StorageClass")) => through::<StorageClass>(object),
        (Some("monitoring.coreos.com/v1"), Some("ServiceMonitor")) => through::<ServiceMonitor>(object),
        kind => Err(format!("{kind:?} is no kind that this knows")),
    }
}

fn through<T: DeserializeOwned + Serialize>(object: &Value) -> Result<Value, String> {
    let value: T = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    serde_json::to_value(value).map_err(|error| error.to_string())
}

/// Claim templates omit their kind, which the type writes.
fn through_set(object: &Value) -> Result<Value, String> {
    let mut again = through::<StatefulSet>(object)?;
    for template in again["spec"]["volumeClaimTemplates"].as_array_mut().into_iter().flatten() {
        let fields = template.as_object_mut().ok_or("a claim template is no object")?;
        fields.retain(|name, _| name != "apiVersion" && name != "kind");
    }
    Ok(again)
}

/// A `ServiceMonitor`, as far as ours goes: the operator's resource definition
/// `monitoring.coreos.com_servicemonitors`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ServiceMonitor {
    api_version: String,
    kind: String,
    metadata: Value,
    spec: MonitorSpec,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct MonitorSpec {
    selector: k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector,
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Endpoint {
    /// Name of a Service's port.
    port: String,
    path: String,
    /// A duration in Prometheus's notation.
    interval: String,
    authorization: Authorization,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Authorization {
    r#type: String,
    credentials: k8s_openapi::api::core::v1::SecretKeySelector,
}
