//! What `deploy/kubernetes` says, read as a cluster would read it, so that tests can hold it against the real command lines.
//!
//! [`Manifests::build`] does what `kubectl kustomize` does, for the few fields that our kustomizations use; any other field is an
//! error. [`Container`] resolves environment, arguments and mounts as the kubelet does.

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
