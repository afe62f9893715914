//! Detection of truncated JPEG files. Decoders silently fill the missing part with grey.

const MARKER: u8 = 0xff;
const END: u8 = 0xd9;
const SCAN: u8 = 0xda;

/// Whether the file reaches its end marker. Bytes after it, as some cameras write, are ignored.
pub(super) fn has_end(file: &[u8]) -> bool {
    walk(file).is_some()
}

/// Walks the segments (ITU-T T.81, B.1.1): each has a marker and, with a few exceptions, its length. `None`: one of them is missing.
fn walk(mut rest: &[u8]) -> Option<()> {
    loop {
        // Fill bytes may precede a marker.
        let at = rest.iter().position(|byte| *byte == MARKER)?;
        rest = &rest[at..];
        let marker = rest.iter().position(|byte| *byte != MARKER)?;
        let code = rest[marker];
        rest = &rest[marker + 1..];
        match code {
            END => return Some(()),
            // Byte stuffing in coded data, a restart within it, the start of the file, and a reserved marker.
            0 | 0x01 | 0xd0..=0xd8 => {}
            _ => {
                let length = u16::from_be_bytes(*rest.first_chunk()?);
                rest = rest.get(usize::from(length.max(2))..)?;
                if code == SCAN && rest.is_empty() {
                    return None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_found_behind_what_looks_like_one() {
        // A comment that contains an end marker, and a scan with a stuffed byte and a restart.
        let mut file = vec![0xff, 0xd8, 0xff, 0xfe, 0, 4, 0xff, 0xd9, 0xff, 0xda, 0, 2];
        file.extend([1, 0xff, 0, 2, 0xff, 0xd0, 3, 0xff, 0xff, 0xd9]);
        assert!(has_end(&file));
        for length in 0..file.len() {
            assert!(!has_end(&file[..length]), "{length} bytes");
        }
        file.extend([5; 9]);
        assert!(has_end(&file));
    }
}
