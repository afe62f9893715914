//! The `wan-emulator` binary.
fn main() {}
