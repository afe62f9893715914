//! `worker data inspect`: what there is, what of it is prepared, and what the model will see.

use anyhow::{Error, Result};
use indicatif::{BinaryBytes, HumanCount};

use super::{Data, Line, Told, open};
use crate::cli::DataInspectArgs;
use crate::data::{Dataset, Tokenizer, Work};

/// Looks, and prepares nothing.
pub(super) fn inspect(args: &DataInspectArgs) -> Result<()> {
    let data = Data::read(&args.run)?;
    let mut told = Told::default();
    let files = Dataset::look(&data.config, &data.tokenizer, &data.cache_dir)?;
    for file in &files {
        let state = if file.is_prepared { "prepared" } else { "not prepared" };
        told.line(&format_args!("{}: {}, {state}", file.path.display(), BinaryBytes(file.bytes)));
    }
    if files.iter().all(|file| file.is_prepared) {
        let dataset = open(&data, &Work::default())?;
        for source in dataset.sources() {
            told.line(&Line(&source));
        }
        told.line(&format_args!("an epoch has {} samples", HumanCount(dataset.samples())));
        show_samples(&dataset, &data.tokenizer, args.samples, &mut told)?;
    } else {
        told.line(
            &"`worker data prepare` with the same arguments prepares the rest; then there are samples to see",
        );
    }
    told.print()
}

/// The first samples of the run's stream for a seed of 1: any other seed shuffles them otherwise.
fn show_samples(dataset: &Dataset, tokenizer: &Tokenizer, samples: u64, told: &mut Told) -> Result<()> {
    for position in 0..samples.min(dataset.samples()) {
        let sample = dataset.sample(position, 1)?;
        let text = tokenizer.decode(&sample.tokens).map_err(Error::msg)?;
        told.line(&format_args!(
            "\nsample {} of {}, {} tokens:",
            sample.index,
            sample.source,
            sample.tokens.len()
        ));
        told.line(&text);
    }
    Ok(())
}
