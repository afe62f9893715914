//! All benchmarks. `cargo xtask bench NAME` runs them; `docs/benchmarks` contains their results.
//!
//! Each prints one JSON line per figure, and its progress to standard error.

mod kit;
mod runs;

#[cfg(feature = "torch")]
mod bubble;
#[cfg(feature = "data")]
mod cases;
mod codec;
mod collective;
#[cfg(feature = "torch")]
mod data;
mod elastic;
#[cfg(feature = "torch")]
mod gpu;
#[cfg(feature = "torch")]
mod images;
#[cfg(feature = "torch")]
mod models;
mod pipeline;
mod plan;
mod record;
#[cfg(feature = "member")]
mod round;
#[cfg(feature = "torch")]
mod selection;
#[cfg(feature = "torch")]
mod selective;
mod site;
mod sync;
#[cfg(feature = "torch")]
mod train;
mod transport;
mod wan;

use anyhow::Result;
use clap::Parser;

/// Longhaul's benchmarks: one JSON line for each figure
#[derive(Parser)]
#[command(name = "longhaul-bench")]
enum Benchmark {
    #[cfg(feature = "torch")]
    Bubble(bubble::Args),
    #[cfg(feature = "data")]
    Cases(cases::Args),
    Codec(codec::Args),
    Collective(collective::Args),
    #[cfg(feature = "torch")]
    Data(data::Args),
    Elastic(elastic::Args),
    #[cfg(feature = "torch")]
    Gpu(gpu::Args),
    #[cfg(feature = "torch")]
    Images(images::Args),
    #[cfg(feature = "torch")]
    Models(models::Args),
    #[cfg(feature = "torch")]
    #[command(hide = true)]
    ModelsOwn(models::own::Args),
    Pipeline(pipeline::Args),
    Plan(plan::Args),
    Record(record::Args),
    #[cfg(feature = "member")]
    Round(round::Args),
    #[cfg(feature = "torch")]
    Selection(selection::Args),
    #[cfg(feature = "torch")]
    Selective(selective::Args),
    Simulate(plan::SimulateArgs),
    Site(site::Args),
    Sync(sync::Args),
    #[cfg(feature = "torch")]
    Train(train::Args),
    Transport(transport::Args),
    Wan(wan::Args),
}

/// Runs the benchmark named on the command line.
///
/// # Errors
/// The benchmark cannot measure, or its result is invalid.
pub fn run() -> Result<()> {
    match Benchmark::parse() {
        #[cfg(feature = "torch")]
        Benchmark::Bubble(args) => bubble::run(&args),
        #[cfg(feature = "data")]
        Benchmark::Cases(args) => cases::run(&args),
        Benchmark::Codec(args) => codec::run(&args),
        Benchmark::Collective(args) => collective::run(&args),
        #[cfg(feature = "torch")]
        Benchmark::Data(args) => data::run(&args),
        Benchmark::Elastic(args) => elastic::run(args),
        #[cfg(feature = "torch")]
        Benchmark::Gpu(args) => gpu::run(&args),
        #[cfg(feature = "torch")]
        Benchmark::Images(args) => images::run(&args),
        #[cfg(feature = "torch")]
        Benchmark::Models(args) => models::run(&args),
        #[cfg(feature = "torch")]
        Benchmark::ModelsOwn(args) => models::own::run(&args),
        Benchmark::Pipeline(args) => pipeline::run(&args),
        Benchmark::Plan(args) => plan::run(&args),
        Benchmark::Record(args) => record::run(&args),
        #[cfg(feature = "member")]
        Benchmark::Round(args) => round::run(&args),
        #[cfg(feature = "torch")]
        Benchmark::Selection(args) => selection::run(&args),
        #[cfg(feature = "torch")]
        Benchmark::Selective(args) => selective::run(&args),
        Benchmark::Simulate(args) => plan::simulate(&args),
        Benchmark::Site(args) => site::run(&args),
        Benchmark::Sync(args) => sync::run(args),
        #[cfg(feature = "torch")]
        Benchmark::Train(args) => train::run(&args),
        Benchmark::Transport(args) => transport::run(&args),
        Benchmark::Wan(args) => wan::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        Benchmark::command().debug_assert();
    }
}
