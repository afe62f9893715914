//! The command lines of workers in `deploy`, parsed with the worker's own parser.

mod compose;
mod image;
mod kubernetes;
mod launcher;
mod machines;
mod pages;
mod slurm;
mod tokens;
