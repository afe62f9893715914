//! The content of `deploy`: valid, restricted, and consistent. The programs' own tests check that they accept
//! their arguments.

mod compose;
mod consistency;
mod dist;
mod images;
mod network;
mod python;
mod restricted;
mod schemas;
mod scripts;
mod typed;

use std::path::PathBuf;

use longhaul_tests::kubernetes::Manifests;

/// Every folder to apply, and combinations with components.
const KUSTOMIZATIONS: [(&str, &[&str]); 10] = [
    ("base", &[]),
    ("overlays/ha", &[]),
    ("overlays/second-site", &[]),
    ("base", &["cpu"]),
    ("base", &["gpu", "worker-node-ports", "monitoring"]),
    ("base", &["node-ports", "worker-node-ports", "monitoring", "local-disks"]),
    ("overlays/ha", &["gpu", "monitoring", "local-disks"]),
    ("overlays/second-site", &["gpu", "worker-node-ports"]),
    ("overlays/second-site", &["cpu"]),
    ("overlays/second-site", &["worker-node-ports", "local-disks"]),
];

/// Builds all of them, by folder.
fn built() -> impl Iterator<Item = (String, Manifests)> {
    folders().into_iter().map(|(name, folder)| {
        let manifests = Manifests::build(&folder).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        (name, manifests)
    })
}

/// Returns the folders to build. A combination gets its own folder, like a user's.
fn folders() -> Vec<(String, PathBuf)> {
    let root = Manifests::root().canonicalize().unwrap();
    let folder = |&(overlay, components): &(&str, &[&str])| {
        if components.is_empty() {
            return (overlay.to_owned(), root.join(overlay));
        }
        let name = format!("{overlay} with {}", components.join(", "));
        (name, combined(&root, overlay, components))
    };
    KUSTOMIZATIONS.iter().map(folder).collect()
}

fn combined(root: &std::path::Path, overlay: &str, components: &[&str]) -> PathBuf {
    let temporary = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).canonicalize().unwrap();
    let folder = temporary.join(format!("{}-{}", overlay.replace('/', "-"), components.join("-")));
    std::fs::create_dir_all(&folder).unwrap();
    // kustomize accepts no absolute paths.
    let up = "../".repeat(folder.components().count() - 1);
    let from_here = |path: String| format!("{up}{}", root.join(path).strip_prefix("/").unwrap().display());
    let kustomization = serde_json::json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [from_here(overlay.to_owned())],
        "components": components.iter().map(|name| from_here(format!("components/{name}"))).collect::<Vec<_>>(),
    });
    // Tests run in parallel, and each must find a complete file.
    let file = folder.join(format!("{:?}.new", std::thread::current().id()));
    std::fs::write(&file, kustomization.to_string()).unwrap();
    std::fs::rename(file, folder.join("kustomization.yaml")).unwrap();
    folder
}
