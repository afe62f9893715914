//! `deploy/kubernetes`, parsed like a cluster does, so that tests can compare it with the real command lines.
//!
//! [`Manifests::build`] works like `kubectl kustomize`, for the few fields that our kustomizations use; any
//! other field is an error. [`Container`] resolves environment, arguments and mounts as the kubelet does.

mod container;
mod expansion;
mod kustomization;
mod manifests;
mod patch;
mod validator;

pub use container::{Container, Port, Start};
pub use expansion::expand;
pub use manifests::Manifests;
pub use validator::Validator;
