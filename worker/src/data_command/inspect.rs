//! `worker data inspect`: what there is, what of it is prepared, and what the model will see.

use anyhow::{Error, Result};
use indicatif::BinaryBytes;

use super::images::{Classes, Drawn};
use super::{Data, Line, Told, open};
use crate::cli::DataInspectArgs;
use crate::counted::counted;
use crate::data::{Content, Dataset, Looked, Work};

/// Looks, and prepares nothing.
pub(super) fn inspect(args: &DataInspectArgs) -> Result<()> {
    report(&Data::read(&args.run)?, args.samples)?.print()
}

/// What is printed, with so many samples.
fn report(data: &Data, samples: u64) -> Result<Told> {
    let mut told = Told::default();
    told.line_of_settings(&data.tokenizer);
    let Looked { files, passed } = Dataset::look(&data.config, &data.tokenizer, &data.cache_dir)?;
    for file in &files {
        let state = if file.is_prepared { "prepared" } else { "not prepared" };
        told.line(&format_args!("{}: {}, {state}", file.path.display(), BinaryBytes(file.bytes)));
    }
    if files.iter().all(|file| file.is_prepared) {
        let dataset = open(data, &Work::default())?;
        let sources = data.config.training();
        for (summary, source) in dataset.sources().iter().zip(sources.iter().chain(&data.config.validation)) {
            told.line(&Line(summary));
            if data.config.image.is_some() {
                told.line(&Classes::of(source, &summary.size.classes)?);
            }
        }
        told.line(&format_args!("an epoch has {}", counted(dataset.samples(), "sample")));
        show_samples(&dataset, data, samples, &mut told)?;
    } else {
        passed.iter().for_each(|(source, passed)| told.line(&format_args!("{source}: {passed}")));
        told.line(
            &"`worker data prepare` with the same arguments prepares the rest; then there are samples to see",
        );
    }
    Ok(told)
}

/// The first samples of the run's stream for a seed of 1: any other seed shuffles them otherwise.
fn show_samples(dataset: &Dataset, data: &Data, samples: u64, told: &mut Told) -> Result<()> {
    for position in 0..samples.min(dataset.samples()) {
        let sample = dataset.sample(position, 1)?;
        let title = format!("\nsample {} of {}", sample.index, sample.source);
        match (&sample.content, &data.config.image) {
            (Content::Image { pixels, class }, Some(shape)) => {
                let (channels, height, width) = (shape.channels, shape.height, shape.width);
                told.line(&format_args!("{title}, {channels} × {height} × {width}, class {class}:"));
                told.line(&Drawn { pixels, height: height as usize, width: width as usize });
            }
            (Content::Image { .. }, None) => {}
            (Content::Tokens(tokens), _) => {
                told.line(&format_args!("{title}, {}:", counted(tokens.len() as u64, "token")));
                told.line(&data.tokenizer.decode(tokens).map_err(Error::msg)?);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use longhaul_common::config::read_toml;

    use super::*;
    use crate::data::Tokenizer;

    #[test]
    fn of_images_their_shape_their_classes_and_a_drawing_are_shown() {
        let (cache, fixtures) = (
            tempfile::tempdir().unwrap(),
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images"),
        );
        let lines = "image = { height = 16, width = 20, classes = 3 }\nvalidation_share = 0.0\n\
                     sources = [{ path = \"folder\", format = \"images\" }]";
        let config: longhaul_common::config::DataConfig = read_toml(lines).unwrap();
        let data = Data {
            config: config.found_at(&fixtures),
            tokenizer: Tokenizer::Bytes,
            cache_dir: cache.path().to_owned(),
            cache_bytes_max: None,
        };
        let told = report(&data, 3).unwrap().0;
        assert!(told.contains("not prepared") && !told.contains("an epoch has"), "{told}");
        open(&data, &Work::default()).unwrap();
        let told = report(&data, 3).unwrap().0;
        for words in [
            "images of 3 classes in 1 shard, 12 samples, 100.0 % of the run's",
            "  class 0, circle: 4\n  class 1, square: 4\n  class 2, triangle: 4\n",
            "an epoch has 12 samples",
            ", 3 × 16 × 20, class ",
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
        let samples = told.split_once("an epoch has").unwrap().1;
        let drawn = samples.lines().filter(|line| line.chars().count() == 20).count();
        assert_eq!(drawn, 3 * 8, "{told}");
    }
}
