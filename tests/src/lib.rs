//! Harness of the end-to-end tests: etcd, an S3 server, a telemetry collector, a browser, programs from PyPI,
//! stored fuzzing inputs, and parsers of `deploy` and the book.
#![forbid(unsafe_code)]

pub mod browser;
pub mod chaos;
pub mod cluster;
pub mod collector;
pub mod compose;
pub mod corpora;
pub mod dockerfile;
pub mod etcd;
pub mod hostile;
pub mod interrupt;
pub mod kubernetes;
pub mod own_process;
pub mod pages;
pub mod pip;
pub mod s3;
pub mod small_run;
pub mod systemd;
pub mod terminal;
pub mod tools;
pub mod tutorial;
