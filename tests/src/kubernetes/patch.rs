//! Lists of operations on a JSON value (RFC 6902), as in kustomizations.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

/// An entry of a kustomization's `patches`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Patch {
    target: Target,
    /// YAML: a list of operations.
    patch: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    kind: String,
    /// All of that kind if absent.
    name: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase", tag = "op")]
enum Operation {
    Add { path: String, value: Value },
    Replace { path: String, value: Value },
    Remove { path: String },
}

/// Applies a patch to each object that matches its target. As in kustomize, none may match.
pub(super) fn apply(patch: &Patch, objects: &mut [Value]) -> Result<()> {
    let operations: Vec<Operation> = serde_saphyr::from_str(&patch.patch).context("read the operations")?;
    let Target { kind, name } = &patch.target;
    let meant = |object: &&mut Value| {
        object["kind"] == kind.as_str()
            && name.as_ref().is_none_or(|name| object["metadata"]["name"] == name.as_str())
    };
    for object in objects.iter_mut().filter(meant) {
        for operation in &operations {
            operation.apply(object).with_context(|| format!("{operation:?} on {kind} {name:?}"))?;
        }
    }
    Ok(())
}

impl Operation {
    fn apply(&self, object: &mut Value) -> Result<()> {
        match self {
            Self::Add { path, value } => {
                let (parent, key) = place(object, path)?;
                match parent {
                    Value::Array(list) if key == "-" => list.push(value.clone()),
                    Value::Array(list) => {
                        let index = key.parse::<usize>().ok().filter(|&index| index <= list.len());
                        list.insert(index.context("the list is not that long")?, value.clone());
                    }
                    parent => drop(members(parent)?.insert(key, value.clone())),
                }
            }
            Self::Replace { path, value } => {
                *object.pointer_mut(path).context("there is nothing to replace")? = value.clone();
            }
            Self::Remove { path } => {
                let (parent, key) = place(object, path)?;
                ensure!(members(parent)?.remove(&key).is_some(), "there is nothing to remove");
            }
        }
        Ok(())
    }
}

/// Returns the parent of the place that a path names, and the place's key.
fn place<'a>(object: &'a mut Value, path: &str) -> Result<(&'a mut Value, String)> {
    let (parent, key) = path.rsplit_once('/').context("a path begins with a slash")?;
    ensure!(!key.contains('~'), "escapes in a path are not supported");
    Ok((object.pointer_mut(parent).context("the place above it is not there")?, key.to_owned()))
}

fn members(value: &mut Value) -> Result<&mut serde_json::Map<String, Value>> {
    value.as_object_mut().context("what is above it is no object")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(operations: &str) -> Result<Value> {
        let patch =
            Patch { target: Target { kind: "A".to_owned(), name: None }, patch: operations.to_owned() };
        let mut objects = [json!({ "kind": "A", "list": [1, 2] }), json!({ "kind": "B" })];
        apply(&patch, &mut objects)?;
        assert_eq!(objects[1], json!({ "kind": "B" }));
        Ok(objects[0].take())
    }

    #[test]
    fn operations_do_what_rfc_6902_says() {
        let cases = [
            ("[{op: add, path: /list/-, value: 3}]", json!({ "kind": "A", "list": [1, 2, 3] })),
            ("[{op: add, path: /list/0, value: 3}]", json!({ "kind": "A", "list": [3, 1, 2] })),
            (
                "[{op: add, path: /new, value: {a: b}}]",
                json!({ "kind": "A", "list": [1, 2], "new": { "a": "b" } }),
            ),
            ("[{op: replace, path: /list/1, value: 7}]", json!({ "kind": "A", "list": [1, 7] })),
            ("[{op: remove, path: /list}]", json!({ "kind": "A" })),
        ];
        for (operations, expected) in cases {
            assert_eq!(patched(operations).unwrap(), expected, "{operations}");
        }
    }

    #[test]
    fn what_is_not_there_is_not_changed_in_silence() {
        for operations in [
            "[{op: replace, path: /lst, value: 1}]",
            "[{op: remove, path: /lst}]",
            "[{op: add, path: /lst/-, value: 1}]",
            "[{op: add, path: /list/9, value: 1}]",
            "[{op: move, path: /list, from: /kind}]",
        ] {
            assert!(patched(operations).is_err(), "{operations}");
        }
    }
}
