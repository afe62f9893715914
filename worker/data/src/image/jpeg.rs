//! Whether a JPEG file has an end. Decoders fill what is missing with grey, and say nothing.

const MARKER: u8 = 0xff;
const END: u8 = 0xd9;
const SCAN: u8 = 0xda;

/// Whether the file goes on until the marker of its end: what is behind that, as some cameras have it, is nothing to it.
pub(super) fn has_end(file: &[u8]) -> bool {
    walk(file).is_some()
}

/// Segment after segment (ITU-T T.81, B.1.1): each has a marker and, but for a few, its length. None: one of them is not there.
fn walk(mut rest: &[u8]) -> Option<()> {
    loop {
        // Before a marker there may be more of its first byte.
        let at = rest.iter().position(|byte| *byte == MARKER)?;
        rest = &rest[at..];
        let marker = rest.iter().position(|byte| *byte != MARKER)?;
        let code = rest[marker];
        rest = &rest[marker + 1..];
        match code {
            END => return Some(()),
            // Filled into what is coded, a restart within it, the file's beginning, and one that is reserved.
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
        // A comment with an end in it, a scan with a filled byte and a restart.
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
