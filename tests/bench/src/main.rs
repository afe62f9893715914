//! Runs one benchmark: `longhaul-bench NAME`.

use anyhow::Result;

fn main() -> Result<()> {
    benchmarks::run()
}
