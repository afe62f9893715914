//! The WAN emulator, the harness of the end-to-end tests, a real etcd, a server that speaks S3, and a reader of the manifests for Kubernetes.
#![forbid(unsafe_code)]

pub mod chaos;
pub mod cluster;
pub mod etcd;
pub mod hostile;
pub mod interrupt;
pub mod kubernetes;
pub mod s3;
pub mod wan;
