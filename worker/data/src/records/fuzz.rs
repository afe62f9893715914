//! Entry points for fuzzing the readers of records with files from memory.

use std::path::Path;

use longhaul_common::config::{Column, DataFormat};

use super::delimited::Delimited;
use super::idx::Idx;
use super::input::{Input, MARK};
use super::json_lines::JsonLines;
use super::json_objects::JsonObjects;
use super::record_reader::RecordReader;
use super::text::TextChunks;
use super::tokens::Tokens;
use super::web_dataset::WebDataset;
use super::{Record, Records};
use crate::bounds::RECORD_BYTES_MAX;
use crate::chat::{Chat, RowReader};
use crate::{DataError, Recipe, Tokenizer};

/// Bytes of text per read, the minimum: characters and lines span chunks.
const CHUNK_BYTES: usize = 4;

/// Reads any bytes as a tar archive with images.
pub fn webdataset(bytes: &[u8]) {
    let Ok(input) = Input::of_bytes("a.tar", bytes) else { return };
    read(Ok(Box::new(WebDataset::new(input, &Recipe::plain(DataFormat::Webdataset)))));
}

/// Reads any bytes as two IDX files: the first byte is the length of the labels' file, which comes first.
pub fn idx(bytes: &[u8]) {
    let Some((&length, files)) = bytes.split_first() else { return };
    let Some((labels, images)) = files.split_at_checked(length.into()) else { return };
    let open = || Idx::new(Input::of_bytes("images", images)?, Input::of_bytes("labels", labels)?);
    let records = read(open().map(|idx| Box::new(idx) as Box<dyn Records>));
    let pixels: u64 = records.iter().map(Record::bytes).sum();
    assert!(pixels <= images.len() as u64 && records.len() <= labels.len());
}

/// Reads any bytes as a file of text, JSON lines, a table or tokens, compressed or not: the first byte selects the format.
pub fn lines(bytes: &[u8]) {
    let Some((&kind, file)) = bytes.split_first() else { return };
    let (kind, name) = (kind / 2, ["a", "a.gz"][usize::from(kind % 2)]);
    let Ok(input) = Input::of_bytes(name, file) else { return };
    if kind % 7 == 1 {
        conversations(name, file);
    }
    let is_text = kind % 7 == 0;
    let format = match kind % 7 {
        0 => DataFormat::Text,
        1 => DataFormat::Jsonl,
        2 | 3 => DataFormat::Csv,
        4 => DataFormat::Tsv,
        _ => DataFormat::TokensU16,
    };
    let Ok(input) = input.checked(&Recipe::plain(format)) else { return };
    let records = read(match kind % 7 {
        0 => Ok(Box::new(TextChunks::with_chunks(input, CHUNK_BYTES))),
        1 => Ok(Box::new(JsonLines::new(input, &Recipe::plain(DataFormat::Jsonl)))),
        2 => table(input, DataFormat::Csv, Some(2)),
        3 => table(input, DataFormat::Csv, None),
        4 => table(input, DataFormat::Tsv, None),
        5 => Ok(Box::new(Tokens::new(input, 2, 1 << 15))),
        _ => Ok(Box::new(Tokens::new(input, 4, 1 << 31))),
    });
    if is_text && name == "a" && !is_packed(file) {
        is_its_beginning(file.strip_prefix(MARK.as_bytes()).unwrap_or(file), &records);
    }
}

/// Reads bytes as conversations, and makes rows of them.
fn conversations(name: &str, file: &[u8]) {
    let Ok(input) = Input::of_bytes(name, file) else { return };
    let chat = Chat::plain();
    let reader = RecordReader::Conversations(RowReader::new(&chat, Path::new(name)));
    let records = read(JsonObjects::new(input, reader).map(|records| Box::new(records) as Box<dyn Records>));
    let all = records.iter().filter_map(|record| match record {
        Record::Conversation { conversation, .. } => Some(conversation),
        _ => None,
    });
    let Ok(packed) = chat.pack::<()>(all, &Tokenizer::Bytes, || Ok(())) else { return };
    assert!(packed.bytes.len().is_multiple_of(chat.row_bytes()));
}

/// Whether it begins like zstd or gzip.
fn is_packed(file: &[u8]) -> bool {
    matches!(file, [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] | [0x1f, 0x8b, 8, ..])
}

/// Opens a table with the column given by number, or else by name.
fn table(input: Input, format: DataFormat, number: Option<u32>) -> Result<Box<dyn Records>, DataError> {
    let mut recipe = Recipe::plain(format);
    if let Some(number) = number {
        recipe.column = Column::Number(number);
    }
    Ok(Box::new(Delimited::new(input, &recipe)?))
}

/// Checks that the chunks, joined, are the text up to the first refused one.
fn is_its_beginning(mut text: &[u8], chunks: &[Record]) {
    for chunk in chunks {
        let Record::Text(chunk) = chunk else { panic!("a text has nothing else") };
        text = text.strip_prefix(chunk.as_bytes()).expect("a chunk is what stands there");
    }
}

/// Returns the records before the first error.
fn read(records: Result<Box<dyn Records>, DataError>) -> Vec<Record> {
    let mut all = Vec::new();
    let result = records.and_then(|mut records| {
        while let Some(record) = records.next_record()? {
            all.push(record);
        }
        Ok(())
    });
    // Its message is not empty.
    assert!(result.err().is_none_or(|error| !error.to_string().is_empty()));
    // A field may be as long as its record, and the separator after it is not part of the file.
    assert!(all.iter().all(|record| record.bytes() <= RECORD_BYTES_MAX + 1));
    all
}
