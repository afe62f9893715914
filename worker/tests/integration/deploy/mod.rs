//! The command lines of `deploy`, read by the worker's own parser.

mod compose;
mod image;
mod kubernetes;
mod launcher;
mod machines;
mod pages;
mod slurm;
mod tokens;
