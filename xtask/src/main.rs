//! Plain automation: set-up, demo, test, bench.
fn main() {}
