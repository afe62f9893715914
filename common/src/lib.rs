//! The vocabulary of a run, free of clocks, sockets and tensors.
#![forbid(unsafe_code)]
