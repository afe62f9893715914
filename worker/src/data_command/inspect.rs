//! `worker data inspect`: the data, its preparation state, and samples as the model sees them.

use anyhow::{Error, Result};
use indicatif::BinaryBytes;
use longhaul_data::counted::{counted, were};
use longhaul_data::{Content, DataError, Dataset, Defects, Looked, Work};

use super::conversations::Marked;
use super::images::{Classes, Drawn};
use super::{Data, Epoch, Line, Told, open};
use crate::cli::DataInspectArgs;
use crate::epochs::times;

/// Inspects without preparing. Fails on defects that would fail a preparation.
pub(super) fn inspect(args: &DataInspectArgs) -> Result<()> {
    let refused = report(&Data::read(&args.run)?, args.samples, Told::print)?;
    refused.map_or(Ok(()), |refused| Err(refused.into()))
}

/// Shows the files before reading them, the data, and `samples` samples. Returns the reason of a refusal, if any.
fn report(data: &Data, samples: u64, mut show: impl FnMut(&Told) -> Result<()>) -> Result<Option<DataError>> {
    let looked = Dataset::look(&data.config, &data.tokenizer, &data.cache_dir)?;
    show(&files(data, &looked))?;
    let Defects { refused, unread } = looked.defects();
    let mut told = Told::default();
    if refused.is_empty() && looked.files.iter().all(|file| file.is_prepared) {
        let dataset = open(data, &Work::default())?;
        let sources = data.config.training();
        for (summary, source) in dataset.sources().iter().zip(sources.iter().chain(&data.config.validation)) {
            let times = times(summary, data.drawn, &data.config);
            told.line(&Line { source: summary, times });
            if data.config.image.is_some() || data.config.classification.is_some() {
                told.line(&Classes::of(source, &data.config, &summary.size.classes)?);
            }
        }
        told.lines_of_all(&dataset);
        told.line_of_held_out(&dataset, data.evaluated);
        told.line(&Epoch { samples: dataset.samples(), drawn: data.drawn, config: &data.config });
        show_samples(&dataset, data, samples, &mut told)?;
    } else {
        looked.passed.iter().for_each(|(source, passed)| told.line(&format_args!("{source}: {passed}")));
        if unread > 0 {
            told.line(&format_args!(
                "{} {} not read to the end for defects: up to {} of what all files on this machine hold are read, and no images of a folder",
                counted(unread, "file"),
                were(unread),
                BinaryBytes(Looked::BYTES_MAX),
            ));
        }
        refused.iter().skip(1).for_each(|refused| told.line(&format_args!("refused as well: {refused}")));
        if refused.is_empty() {
            told.line(
                &"`worker data prepare` with the same arguments prepares the rest; then there are samples to see",
            );
        }
    }
    show(&told)?;
    Ok(refused.into_iter().next())
}

/// The files of a run's data.
fn files(data: &Data, looked: &Looked) -> Told {
    let mut told = Told::default();
    told.line_of_settings(&data.tokenizer, &data.config);
    data.tasks.iter().for_each(|notes| told.line(notes));
    for file in &looked.files {
        let state = if file.is_prepared { "prepared" } else { "not prepared" };
        told.line(&format_args!("{}: {}, {state}", file.path.display(), BinaryBytes(file.bytes)));
    }
    told
}

/// The first samples of the run's stream for a seed of 1; other seeds give another order.
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
            (Content::Masked { inputs, predicted }, _) => {
                let count = counted(inputs.len() as u64, "token");
                told.line(&format_args!("{title}, {count}, {predicted} predicted:"));
                told.line(&data.tokenizer.decode(inputs).map_err(Error::msg)?);
            }
            (Content::Labelled { tokens, class }, _) => {
                let labels = data.config.classification.as_ref().map(|classes| &classes.labels);
                let label = labels.and_then(|labels| labels.get(*class as usize)).map_or("", String::as_str);
                told.line(&format_args!(
                    "{title}, {}, class {class}, {label}:",
                    counted(tokens.len() as u64, "token")
                ));
                told.line(&data.tokenizer.decode(tokens).map_err(Error::msg)?);
            }
            (Content::Row(row), _) => {
                told.line(&format_args!("{title}, {}:", Marked::SUMMARY));
                told.line(&Marked::of(row, &data.tokenizer)?);
            }
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
    use longhaul_data::Tokenizer;

    /// Returns the full output, and the reason of a refusal.
    fn reported(data: &Data, samples: u64) -> Result<(Told, Option<DataError>)> {
        let mut all = Told::default();
        let refused = report(data, samples, |told| {
            all.0 += &told.0;
            Ok(())
        })?;
        Ok((all, refused))
    }

    #[test]
    fn classes_on_one_side_alone_and_peculiarities_are_shown() {
        let folder = tempfile::tempdir().unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tests/fixtures/images");
        std::fs::write(folder.path().join("a.csv"), ",text\n0,one\n1,two\n").unwrap();
        let image = "image = { height = 16, width = 20, classes = 3 }\nvalidation_share = 0.1\n\
                     sources = [{ glob = \"shard-*.tar\" }]";
        let table =
            "sequence_length = 1\nvalidation_share = 0.0\nsources = [{ path = \"a.csv\", column = 2 }]";
        for (lines, place, words) in [
            (image, fixtures.as_path(), "\nno sample of classes 1, 2 is held out, so that"),
            (
                table,
                folder.path(),
                "; line 1 is taken as a record, since `column` is a number, and looks like",
            ),
        ] {
            let config: longhaul_common::config::DataConfig = read_toml(lines).unwrap();
            let cache = tempfile::tempdir().unwrap();
            let data = Data {
                config: config.found_at(place),
                tokenizer: Tokenizer::Bytes,
                cache_dir: cache.path().to_owned(),
                cache_bytes_max: None,
                evaluated: 64,
                drawn: 0,
                tasks: Vec::new(),
            };
            open(&data, &Work::default()).unwrap();
            let told = reported(&data, 0).unwrap().0.0;
            assert!(told.contains(words), "{told}");
        }
    }

    #[test]
    fn of_images_their_shape_their_classes_and_a_drawing_are_shown() {
        let (cache, fixtures) = (
            tempfile::tempdir().unwrap(),
            Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tests/fixtures/images"),
        );
        let lines = "image = { height = 16, width = 20, classes = 3 }\nvalidation_share = 0.0\n\
                     sources = [{ path = \"folder\", format = \"images\" }]";
        let config: longhaul_common::config::DataConfig = read_toml(lines).unwrap();
        let data = Data {
            config: config.found_at(&fixtures),
            tokenizer: Tokenizer::Bytes,
            cache_dir: cache.path().to_owned(),
            cache_bytes_max: None,
            evaluated: 64,
            drawn: 48,
            tasks: Vec::new(),
        };
        let told = reported(&data, 3).unwrap().0.0;
        assert!(told.contains("not prepared") && !told.contains("an epoch has"), "{told}");
        let unread = "1 file was not read to the end for defects: up to 256.00 MiB of what all files on this machine hold are read, and no images of a folder";
        assert!(told.contains(unread), "{told}");
        open(&data, &Work::default()).unwrap();
        let told = reported(&data, 3).unwrap().0.0;
        for words in [
            "images of 3 classes in 1 shard, 12 samples, 100.0 % of the run's",
            "  class 0, circle: 4\n  class 1, square: 4\n  class 2, triangle: 4\n",
            "an epoch has 12 samples, and the run takes 48 (run.steps × train.batch), 4 epochs\n",
            ", 3 × 16 × 20, class ",
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
        let samples = told.split_once("an epoch has").unwrap().1;
        let drawn = samples.lines().filter(|line| line.chars().count() == 20).count();
        assert_eq!(drawn, 3 * 8, "{told}");
    }

    /// A run's data with this configuration, in a folder that also has its cache.
    fn data_in(folder: &Path, lines: &str, tokenizer: Tokenizer) -> Data {
        let config: longhaul_common::config::DataConfig = read_toml(lines).unwrap();
        let cache_dir = folder.join("cache");
        Data {
            config: config.found_at(folder),
            tokenizer,
            cache_dir,
            cache_bytes_max: None,
            evaluated: 64,
            drawn: 0,
            tasks: Vec::new(),
        }
    }

    #[test]
    fn conversations_are_counted_and_shown_with_what_is_trained_on() {
        let folder = tempfile::tempdir().unwrap();
        let template = folder.path().join("chat.jinja");
        std::fs::write(&template, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}").unwrap();
        let line = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"hello\"}]}\n";
        std::fs::write(folder.path().join("a.jsonl"), line.repeat(2)).unwrap();
        let lines = format!(
            "sequence_length = 99\nvalidation_share = 0.0\nsources = [{{ path = \"a.jsonl\" }}]\nconversations = {{ chat_template = {template:?} }}"
        );
        let data = data_in(folder.path(), &lines, Tokenizer::Bytes);
        assert!(reported(&data, 1).unwrap().0.0.contains("prepares the rest"));
        open(&data, &Work::default()).unwrap();
        let told = reported(&data, 1).unwrap().0.0;
        for words in [
            ", 2 records, 2 conversations of 4 turns (0 cut off, 0 left out), 48 tokens (20.8 % trained) in 1 shard, 1 sample, ",
            ", with ⟦what is trained on⟧:\n<user>hi<assistant>⟦hello⟧\n-----\n<user>hi<assistant>⟦hello⟧\n",
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
    }

    /// Before a preparation, after a refused one, and for data prepared under a higher limit.
    #[test]
    fn data_that_is_refused_is_shown_with_its_first_defects() {
        for (name, content, defects) in [
            (
                "a.jsonl",
                "{\"text\": \"one\"}\nnonsense\n{\"text\": 7}\n",
                ["a.jsonl, line 2: it is no JSON", "a.jsonl, line 3: its field `text` is no text"],
            ),
            (
                "b.csv",
                "id,text\n1,one,more\n2,two\n3\n",
                ["b.csv, line 2: it has 3 values", "b.csv, line 4: it has 1 column, and column 2"],
            ),
            ("c.tsv", "id\ttext\n1\t\"open\n2\ttwo\n", ["c.tsv, lines 2 to 3: ", "never closed"]),
        ] {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join(name), content).unwrap();
            let data = |max: u64| {
                let lines = format!(
                    "sequence_length = 1\nvalidation_share = 0.0\nbad_records_max = {max}\nsources = [{{ path = \"{name}\" }}]"
                );
                data_in(folder.path(), &lines, Tokenizer::Bytes)
            };
            let check = |max: u64, state: &str| {
                let (Told(told), refused) = reported(&data(max), 3).unwrap();
                let refused = refused.unwrap().to_string();
                assert!(told.contains(state) && !told.contains("prepares the rest"), "{told}");
                assert!(refused.contains("2 records of a source cannot be read"), "{refused}");
                assert!(defects.iter().all(|defect| refused.contains(defect)), "{refused}");
            };
            check(1, "not prepared");
            open(&data(1), &Work::default()).unwrap_err();
            check(1, "not prepared");
            let (Told(told), refused) = reported(&data(2), 3).unwrap();
            assert!(refused.is_none() && told.contains("prepares the rest"), "{told}");
        }
    }

    #[test]
    fn files_are_shown_before_they_are_read_and_each_source_that_is_refused_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in [
            ("a.txt", &b"BZh91AY&SY\x12\x34\x56"[..]),
            ("b.jsonl", b"{\n"),
            ("c.csv", b"a,b\n"),
            ("d.txt", b"text"),
        ] {
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        let names = ["a.txt", "b.jsonl", "c.csv", "d.txt"].map(|name| format!("{{ path = \"{name}\" }}"));
        let lines = format!("sequence_length = 1\nvalidation_share = 0.0\nsources = [{}]", names.join(", "));
        let data = data_in(folder.path(), &lines, Tokenizer::Bytes);
        let mut parts = Vec::new();
        let refused = report(&data, 1, |told| {
            parts.push(told.0.clone());
            Ok(())
        });
        let [files, rest]: [String; 2] = parts.try_into().unwrap();
        assert_eq!(files.lines().filter(|line| line.ends_with(", not prepared")).count(), 4, "{files}");
        let refused = refused.unwrap().unwrap().to_string();
        assert!(refused.contains("a.txt is a bzip2 file: unpack it"), "{refused}");
        let others: Vec<&str> = rest.lines().collect();
        assert_eq!(others.len(), 2, "{rest}");
        assert!(
            others[0].starts_with("refused as well: ") && others[0].contains("b.jsonl, line 1: "),
            "{rest}"
        );
        assert!(
            others[1].starts_with("refused as well: ") && others[1].contains("has no column `text`"),
            "{rest}"
        );
    }

    #[test]
    fn data_that_was_prepared_when_more_defects_were_allowed_is_refused_with_them() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.jsonl"), "{\"text\": \"some text\"}\n{\n[\n").unwrap();
        let data = |max: u64| {
            let lines = format!(
                "sequence_length = 1\nvalidation_share = 0.0\nbad_records_max = {max}\nsources = [{{ path = \"a.jsonl\" }}]"
            );
            data_in(folder.path(), &lines, Tokenizer::Bytes)
        };
        open(&data(2), &Work::default()).unwrap();
        let (Told(told), refused) = reported(&data(2), 1).unwrap();
        assert!(refused.is_none() && told.contains("2 records were left out:\n  "), "{told}");
        let (Told(told), refused) = reported(&data(0), 1).unwrap();
        assert!(told.contains(", prepared\n") && !told.contains("an epoch has"), "{told}");
        let refused = refused.unwrap().to_string();
        assert!(refused.contains("a.jsonl, line 2: ") && refused.contains("a.jsonl, line 3: "), "{refused}");
    }

    /// During the preparation, and from prepared data.
    #[cfg(feature = "tokenizers")]
    #[test]
    fn unknown_tokens_and_byte_order_marks_are_shown_each_time() {
        let json = r#"{"version":"1.0","added_tokens":[],"normalizer":null,"post_processor":null,"decoder":null,"truncation":null,"padding":null,
            "pre_tokenizer":{"type":"Whitespace"},"model":{"type":"WordLevel","vocab":{"[UNK]":0,"red":1,"green":2},"unk_token":"[UNK]"}}"#;
        let tokenizer = Tokenizer::of_json(json.as_bytes().to_vec(), Path::new("tokenizer.json")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.txt"), "red green blue \u{feff} red\n").unwrap();
        let lines = "path = \"a.txt\"\nsequence_length = 1\nvalidation_share = 0.0";
        let mut data = data_in(folder.path(), lines, tokenizer);
        data.config.path = Some(folder.path().join("a.txt"));
        open(&data, &Work::default()).unwrap();
        for _ in 0..2 {
            let (Told(told), _) = reported(&data, 1).unwrap();
            for words in [
                "; warning: 2 of 5 tokens (40.0 %) are the unknown token `[UNK]`, for 5 of 21 counted characters (23.8 %): ",
                "; take another tokenizer, or train one on such texts; 1 byte order mark within the text: ",
            ] {
                assert!(told.contains(words), "{words}: {told}");
            }
        }
    }
}
