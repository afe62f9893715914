//! Declared decompressed sizes of an Arrow file's buffers: readers allocate them before they decompress the first byte.

use std::io::{Read, Seek, SeekFrom};

use arrow_ipc::reader::read_footer_length;
use arrow_ipc::{Message, RecordBatch, root_as_footer, root_as_message};
use arrow_schema::ArrowError;

use super::ends::{JOINED, is_joined};

/// Upper bound of a decompressed buffer, one column of a batch: writers make batches of some thousand rows.
const BUFFER_BYTES_MAX: i64 = 1 << 30;
/// Upper bound of the description of a file or batch, in bytes: some hundred thousand columns.
const DESCRIPTION_BYTES_MAX: u64 = 64 << 20;
/// Magic at the end of a file.
const MAGIC: &[u8; 6] = b"ARROW1";
/// Marker before the length of metadata, in all but very old files.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Checks each batch that a file's footer lists.
pub(super) fn check_file(file: &mut (impl Read + Seek)) -> Result<(), ArrowError> {
    let mut end = [0; 10];
    file.seek(SeekFrom::End(-10))?;
    file.read_exact(&mut end)?;
    if !end.ends_with(MAGIC) {
        return Err(damaged(
            "it does not end as an Arrow file does: it was cut off, or never closed: fetch it again, or write it anew",
        ));
    }
    let length = read_footer_length(end)? as u64;
    let start = file.seek(SeekFrom::End(-10))?.checked_sub(length);
    let footer_at = start
        .ok_or_else(|| damaged("its footer is longer than the file: fetch it again, or write it anew"))?;
    file.seek(SeekFrom::Start(footer_at))?;
    let footer = description(file, length)?;
    let footer = root_as_footer(&footer).map_err(broken)?;
    let mut last = MAGIC.len() as u64;
    for block in footer.dictionaries().into_iter().chain(footer.recordBatches()).flatten() {
        let place = |number: i64| u64::try_from(number).map_err(broken);
        let (start, length) = (place(block.offset())?, place(block.metaDataLength().into())?);
        file.seek(SeekFrom::Start(start))?;
        let body = place(block.bodyLength())?;
        last = last.max(start.saturating_add(length).saturating_add(body));
        let bytes = description(file, length)?;
        let prefix = if bytes.starts_with(&CONTINUATION) { 8 } else { 4 };
        let bytes = bytes
            .get(prefix..)
            .ok_or_else(|| damaged("a description is too short: fetch it again, or write it anew"))?;
        check_batch(file, &root_as_message(bytes).map_err(broken)?, start.saturating_add(length))?;
    }
    if is_joined(file, last..footer_at, MAGIC)? { Err(damaged(JOINED)) } else { Ok(()) }
}

/// Message for a stream that may lack batches.
const NO_END: &str = "it ends without the mark of its end, as if it was cut off between two batches, or its writer was not closed: fetch it again, or write it anew";

/// Bytes after a stream's end, which must be absent or zero.
const REST_BYTES: u64 = 64;

/// Checks the batches of a stream in order.
pub(super) fn check_stream(file: &mut (impl Read + Seek)) -> Result<(), ArrowError> {
    let mut is_marked = false;
    while let Some(length) = next_length(file, &mut is_marked)? {
        let bytes = description(file, length)?;
        let message = root_as_message(&bytes).map_err(broken)?;
        let body = file.stream_position()?;
        check_batch(file, &message, body)?;
        let body_length = u64::try_from(message.bodyLength()).map_err(broken)?;
        file.seek(SeekFrom::Start(body.saturating_add(body_length)))?;
    }
    // Readers stop here, and would lose a concatenated stream.
    let mut rest = Vec::new();
    file.take(REST_BYTES).read_to_end(&mut rest)?;
    match rest.iter().all(|byte| *byte == 0) {
        true => Ok(()),
        false => Err(damaged("more follows behind the end of its stream: write all batches as one stream")),
    }
}

/// Returns the length of the next metadata of a stream; `None` at its end. If metadata has markers, the end has one.
fn next_length(file: &mut impl Read, is_marked: &mut bool) -> Result<Option<u64>, ArrowError> {
    let mut first = Vec::new();
    // Readers accept this as an end, but an unclosed writer also leaves it.
    if file.by_ref().take(4).read_to_end(&mut first)? == 0 {
        return Err(damaged(NO_END));
    }
    let mut word: [u8; 4] = first
        .try_into()
        .map_err(|_| damaged("it ends within a length, as if it was cut off: fetch it again"))?;
    if word == CONTINUATION {
        *is_marked = true;
        file.read_exact(&mut word)?;
    } else if *is_marked && word == [0; 4] {
        return Err(damaged(NO_END));
    }
    let length = u32::from_le_bytes(word);
    Ok((length > 0).then_some(length.into()))
}

fn description(file: &mut impl Read, length: u64) -> Result<Vec<u8>, ArrowError> {
    if length > DESCRIPTION_BYTES_MAX {
        return Err(damaged(format!(
            "a description has {length} bytes, where {DESCRIPTION_BYTES_MAX} are the most: fetch it again, or write it anew"
        )));
    }
    let mut bytes = Vec::new();
    file.by_ref().take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length {
        Ok(bytes)
    } else {
        Err(damaged("it ends within a description, as if it was cut off: fetch it again"))
    }
}

/// Checks the buffers of a batch whose body begins at `body`.
fn check_batch(file: &mut (impl Read + Seek), message: &Message<'_>, body: u64) -> Result<(), ArrowError> {
    let batch: Option<RecordBatch<'_>> =
        message.header_as_record_batch().or_else(|| message.header_as_dictionary_batch()?.data());
    let Some(batch) = batch.filter(|batch| batch.compression().is_some()) else { return Ok(()) };
    for buffer in batch.buffers().into_iter().flatten() {
        let mut becomes = [0; 8];
        if buffer.length() < becomes.len() as i64 {
            continue;
        }
        let offset = u64::try_from(buffer.offset()).map_err(broken)?;
        file.seek(SeekFrom::Start(body.saturating_add(offset)))?;
        file.read_exact(&mut becomes)?;
        let becomes = i64::from_le_bytes(becomes);
        if becomes > BUFFER_BYTES_MAX {
            return Err(damaged(format!(
                "a column of a batch becomes {becomes} bytes, where {BUFFER_BYTES_MAX} are the most; if it is sound, write it in smaller batches"
            )));
        }
    }
    Ok(())
}

/// Returns the error for metadata refused by its library.
fn broken(error: impl ToString) -> ArrowError {
    damaged(format!("its description is damaged ({}): fetch it again, or write it anew", error.to_string()))
}

fn damaged(reason: impl ToString) -> ArrowError {
    ArrowError::IpcError(reason.to_string())
}
