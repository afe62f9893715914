//! The first and last bytes of Parquet files.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use parquet::file::metadata::ParquetMetaData;

use super::table_file::TableFile;
use crate::DataError;
use crate::records::content::ENCRYPTED;

const MAGIC: &[u8; 4] = b"PAR1";
/// Magic of a file with encrypted metadata.
const ENCRYPTED_MAGIC: &[u8; 4] = b"PARE";
/// Bytes of the shortest file: both magics, and the length of its metadata.
const BYTES_MIN: u64 = 12;

/// Refuses a file that is truncated, encrypted, or not Parquet. Faults in between are left to the reader.
pub(super) fn check_ends(table: &TableFile) -> Result<(), DataError> {
    let (mut first, mut last) = ([0; 4], [0; 4]);
    if table.size >= BYTES_MIN {
        let mut file = table.rewound()?;
        let read = file.read_exact(&mut first).and_then(|()| {
            file.seek(SeekFrom::End(-4))?;
            file.read_exact(&mut last)
        });
        read.map_err(DataError::io("read", &table.path))?;
    }
    let path = table.path.clone();
    match (&first, &last) {
        (ENCRYPTED_MAGIC, _) | (_, ENCRYPTED_MAGIC) => {
            Err(DataError::OtherContent { path, what: ENCRYPTED.to_owned() })
        }
        (_, MAGIC) => Ok(()),
        (MAGIC, _) => Err(malformed(
            table,
            "it was cut off, or never closed, or something was put behind it: fetch it again, or write it anew",
        )),
        _ if table.size < BYTES_MIN => Err(malformed(table, "it is cut off: fetch it again")),
        _ => Err(malformed(
            table,
            "it does not begin as Parquet does either: name the format that it has, or take it out of the source",
        )),
    }
}

/// Message for concatenated files.
pub(super) const JOINED: &str = "several files put one behind the other, of which readers see one: keep them apart, or write their rows as one file";
/// Upper bound of bytes to scan: the metadata of a concatenated file is at their start.
const UNMENTIONED_BYTES_MAX: u64 = 1 << 20;

/// Whether bytes outside all metadata contain the magic of another file.
pub(super) fn is_joined(file: &mut (impl Read + Seek), range: Range<u64>, mark: &[u8]) -> io::Result<bool> {
    if range.is_empty() {
        return Ok(false);
    }
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(range.start))?;
    file.take((range.end - range.start).min(UNMENTIONED_BYTES_MAX)).read_to_end(&mut bytes)?;
    Ok(bytes.windows(mark.len()).any(|window| window == mark))
}

/// Refuses a file with others before it that its metadata does not mention.
pub(super) fn check_joined(table: &TableFile, metadata: &ParquetMetaData) -> Result<(), DataError> {
    let columns = || metadata.row_groups().iter().flat_map(|group| group.columns());
    // Damaged metadata may have any numbers.
    let end = |at: Option<i64>, length: Option<i64>| {
        let number = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
        number(at).zip(number(length)).map_or(0, |(at, length)| at.saturating_add(length))
    };
    let ends = columns().flat_map(|column| {
        let first = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
        [
            end(Some(first), Some(column.compressed_size())),
            end(column.column_index_offset(), column.column_index_length().map(i64::from)),
            end(column.offset_index_offset(), column.offset_index_length().map(i64::from)),
            end(column.bloom_filter_offset(), column.bloom_filter_length().map(i64::from)),
        ]
    });
    let last = ends.max().unwrap_or_default().max(MAGIC.len() as u64);
    let io = |error| DataError::io("read", &table.path)(error);
    let mut file = table.rewound()?;
    let mut length = [0; 4];
    file.seek(SeekFrom::End(-8)).and_then(|_| file.read_exact(&mut length)).map_err(io)?;
    let description = table.size.saturating_sub(8 + u64::from(u32::from_le_bytes(length)));
    match is_joined(&mut file, last..description, MAGIC).map_err(io)? {
        true => Err(DataError::OtherContent { path: table.path.clone(), what: JOINED.to_owned() }),
        false => Ok(()),
    }
}

/// Returns the error for an end that is not Parquet's.
fn malformed(table: &TableFile, remedy: &str) -> DataError {
    let (path, place) = (table.path.clone(), format!("byte {}, its end", table.size));
    let reason = format!("it does not end as Parquet does: {remedy}");
    DataError::Malformed { path, format: "Parquet", place, reason }
}
