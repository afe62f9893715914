//! Detection of sequential JPEG files whose coded data end before their last block, or hold codes that do not exist (ITU-T T.81, annexes B, C and F).
//! Decoders fill such parts, each in its own way, and report nothing.

const MARKER: u8 = 0xff;
const BLOCK_VALUES: usize = 64;
/// Most components of a scan, and of a frame that is checked.
const COMPONENTS_MAX: usize = 4;
/// Tables of each class.
const TABLES: usize = 4;
/// Bits of a code that are looked up at once.
const LOOKED_UP: u32 = 9;
/// Longest code in bits.
const CODE_BITS_MAX: u32 = 16;

const ENDS_EARLY: &str = "its coded data end before its last block: fetch it again, or take it out";
const GOES_ON: &str =
    "its coded data go on behind its last block, so that they are damaged: fetch it again, or take it out";
const COLOURS: &str = "its marks of colours contradict each other (RGB and YCbCr): write it anew";
const NO_CODE: &str = "its coded data are damaged: fetch it again, or take it out";

/// Checks the scans of a file that reaches its end marker. Progressive and other frames are left to the decoder.
///
/// # Errors
/// The file's defect.
pub(super) fn check(file: &[u8]) -> Result<(), &'static str> {
    let (mut rest, mut state) = (file, State::default());
    while let Some((code, behind)) = next_marker(rest) {
        rest = behind;
        if matches!(code, 0x01 | 0xd0..=0xd8) {
            continue;
        }
        if code == 0xd9 {
            break;
        }
        let Some((segment, behind)) = segment(rest) else { break };
        rest = behind;
        match code {
            0xc4 => state.tables(segment).ok_or(NO_CODE)?,
            0xe0 => state.is_jfif |= segment.starts_with(b"JFIF\0"),
            0xee if segment.starts_with(b"Adobe") => state.transform = segment.get(11).copied(),
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                state.check_colours(segment)?;
                // Progressive, lossless, arithmetic.
                if code > 0xc1 {
                    return Ok(());
                }
                state.frame = Frame::read(segment);
            }
            0xdd => {
                state.interval = segment.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes).into())
            }
            0xda => rest = state.scan(segment, rest)?,
            _ => {}
        }
    }
    Ok(())
}

fn next_marker(rest: &[u8]) -> Option<(u8, &[u8])> {
    let mut at = rest.iter().position(|byte| *byte == MARKER)?;
    while *rest.get(at)? == MARKER {
        at += 1;
    }
    match rest[at] {
        // Stuffing, where data go on.
        0 => next_marker(&rest[at + 1..]),
        code => Some((code, &rest[at + 1..])),
    }
}

fn segment(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = usize::from(u16::from_be_bytes(*rest.first_chunk()?)).max(2);
    let (segment, behind) = rest.split_at_checked(length)?;
    Some((&segment[2..], behind))
}

#[derive(Default)]
struct State {
    is_jfif: bool,
    /// Adobe's mark of the colours: 0 for RGB, 1 for YCbCr.
    transform: Option<u8>,
    frame: Option<Frame>,
    /// Minimum coded units between restart markers; 0: none.
    interval: usize,
    /// For the first coefficient of a block, and for the others.
    tables: [[Option<Table>; TABLES]; 2],
}

struct Frame {
    height: usize,
    width: usize,
    components: Vec<Component>,
}

struct Component {
    id: u8,
    across: usize,
    down: usize,
}

impl Frame {
    /// `None`: the height follows later, or there are more components.
    fn read(segment: &[u8]) -> Option<Self> {
        let [_, h1, h0, w1, w0, count, rest @ ..] = segment else { return None };
        let [height, width] = [[*h1, *h0], [*w1, *w0]].map(|bytes| usize::from(u16::from_be_bytes(bytes)));
        let component = |of: &[u8; 3]| Component {
            id: of[0],
            across: usize::from(of[1] >> 4),
            down: usize::from(of[1] & 15),
        };
        let components: Vec<_> = rest.as_chunks().0.iter().take((*count).into()).map(component).collect();
        let are_sound =
            components.iter().all(|of| (1..=4).contains(&of.across) && (1..=4).contains(&of.down));
        let is_known = height > 0 && width > 0 && (1..=COMPONENTS_MAX).contains(&components.len());
        (is_known && are_sound).then_some(Self { height, width, components })
    }

    /// Returns the coded units of a scan of these components, and the blocks of each in one of them.
    fn units(&self, wanted: &[usize]) -> (usize, Vec<usize>) {
        let most = |of: fn(&Component) -> usize| self.components.iter().map(of).max().unwrap_or(1);
        let (across, down) = (most(|of| of.across), most(|of| of.down));
        if let [only] = *wanted {
            let of = &self.components[only];
            let columns = (self.width * of.across).div_ceil(across).div_ceil(8);
            let rows = (self.height * of.down).div_ceil(down).div_ceil(8);
            return (columns * rows, vec![1]);
        }
        let units = self.width.div_ceil(8 * across) * self.height.div_ceil(8 * down);
        let blocks = |at: &usize| self.components[*at].across * self.components[*at].down;
        (units, wanted.iter().map(blocks).collect())
    }
}

/// A Huffman table.
struct Table {
    /// By the next bits: symbol and length of the code; 0: it is longer.
    short: Vec<(u8, u8)>,
    /// By length: the first code beyond those of this length, left-aligned in 16 bits.
    ends: [u32; CODE_BITS_MAX as usize + 1],
    /// By length: index of the first symbol, less the first code.
    offsets: [i32; CODE_BITS_MAX as usize + 1],
    symbols: Vec<u8>,
}

impl Table {
    fn new(counts: &[u8; 16], symbols: &[u8]) -> Self {
        let mut table = Self {
            short: vec![(0, 0); 1 << LOOKED_UP],
            ends: [0; 17],
            offsets: [0; 17],
            symbols: symbols.to_vec(),
        };
        let (mut code, mut at) = (0_u32, 0_usize);
        for (length, count) in (1_u32..).zip(counts) {
            let count = usize::from(*count);
            table.offsets[length as usize] = at as i32 - code as i32;
            for (index, symbol) in symbols.iter().skip(at).take(count).enumerate() {
                let first = (code as usize + index) << (LOOKED_UP.saturating_sub(length));
                if length <= LOOKED_UP
                    && let Some(places) = table.short.get_mut(first..first + (1 << (LOOKED_UP - length)))
                {
                    places.fill((*symbol, length as u8));
                }
            }
            (code, at) = (code + count as u32, at + count);
            table.ends[length as usize] = code << (CODE_BITS_MAX - length);
            code <<= 1;
        }
        table
    }
}

impl State {
    /// Refuses three colours of which one mark says RGB and another YCbCr: decoders choose differently.
    fn check_colours(&self, frame: &[u8]) -> Result<(), &'static str> {
        let ids: Vec<u8> = frame.get(6..).unwrap_or_default().iter().step_by(3).copied().collect();
        let says_rgb = ids == *b"RGB" || self.transform == Some(0);
        let says_ycbcr = self.is_jfif || self.transform == Some(1);
        if ids.len() == 3 && says_rgb && says_ycbcr { Err(COLOURS) } else { Ok(()) }
    }

    /// Reads the tables of a segment.
    fn tables(&mut self, mut segment: &[u8]) -> Option<()> {
        while let Some((head, behind)) = segment.split_first() {
            let (counts, behind) = behind.split_first_chunk::<16>()?;
            let count = counts.iter().map(|count| usize::from(*count)).sum();
            let (symbols, behind) = behind.split_at_checked(count)?;
            let (class, id) = (usize::from(head >> 4), usize::from(head & 15));
            *self.tables.get_mut(class)?.get_mut(id)? = Some(Table::new(counts, symbols));
            segment = behind;
        }
        Some(())
    }

    /// Reads a scan, and returns what follows its data.
    fn scan<'a>(&self, head: &[u8], data: &'a [u8]) -> Result<&'a [u8], &'static str> {
        let Some(frame) = &self.frame else { return Ok(data) };
        let Some((count, rest)) = head.split_first() else { return Err(NO_CODE) };
        let mut wanted = Vec::new();
        let mut tables = Vec::new();
        for [id, of] in rest.as_chunks().0.iter().take((*count).into()) {
            wanted.push(frame.components.iter().position(|of| of.id == *id).ok_or(NO_CODE)?);
            let table = |class: usize, id: u8| self.tables[class].get(usize::from(id))?.as_ref();
            // Abbreviated files have their tables elsewhere.
            let (Some(first), Some(others)) = (table(0, of >> 4), table(1, of & 15)) else { return Ok(data) };
            tables.push((first, others));
        }
        let (units, blocks) = frame.units(&wanted);
        let mut bits = Bits::new(data);
        for unit in 0..units {
            if self.interval > 0 && unit > 0 && unit.is_multiple_of(self.interval) {
                bits.restart((unit / self.interval - 1) as u8 & 7)?;
            }
            for (blocks, (first, others)) in blocks.iter().zip(&tables) {
                (0..*blocks).try_for_each(|_| bits.block(first, others))?;
            }
        }
        bits.finish()
    }
}

/// The coded data of a scan.
struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    buffer: u64,
    held: u32,
}

impl<'a> Bits<'a> {
    fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0, buffer: 0, held: 0 }
    }

    /// Holds 32 bits at least, or all up to the next marker.
    fn fill(&mut self) {
        while self.held <= 48 {
            match self.data.get(self.at..) {
                Some([MARKER, 0, ..]) => self.at += 2,
                Some([MARKER, ..] | []) | None => return,
                Some(_) => self.at += 1,
            }
            let byte = if self.data[self.at - 1] == 0 && self.at > 1 && self.data[self.at - 2] == MARKER {
                MARKER
            } else {
                self.data[self.at - 1]
            };
            self.buffer = self.buffer << 8 | u64::from(byte);
            self.held += 8;
        }
    }

    fn symbol(&mut self, table: &Table) -> Result<u8, &'static str> {
        if self.held < CODE_BITS_MAX {
            self.fill();
        }
        // Behind the end, bits are zero.
        let next = match self.held >= CODE_BITS_MAX {
            true => (self.buffer >> (self.held - CODE_BITS_MAX)) as u32 & 0xffff,
            false => (self.buffer << (CODE_BITS_MAX - self.held)) as u32 & 0xffff,
        };
        let (symbol, length) = table.short[(next >> (CODE_BITS_MAX - LOOKED_UP)) as usize];
        if length > 0 {
            return self.skip(length.into()).map(|()| symbol);
        }
        let long = (LOOKED_UP + 1..=CODE_BITS_MAX).find(|length| next < table.ends[*length as usize]);
        let length = long.ok_or(NO_CODE)?;
        let at = (next >> (CODE_BITS_MAX - length)) as i32 + table.offsets[length as usize];
        let symbol = usize::try_from(at).ok().and_then(|at| table.symbols.get(at)).copied();
        let symbol = symbol.ok_or(NO_CODE)?;
        self.skip(length).map(|()| symbol)
    }

    fn skip(&mut self, bits: u32) -> Result<(), &'static str> {
        if self.held < bits {
            self.fill();
        }
        self.held = self.held.checked_sub(bits).ok_or(ENDS_EARLY)?;
        Ok(())
    }

    fn block(&mut self, first: &Table, others: &Table) -> Result<(), &'static str> {
        let bits = self.symbol(first)?;
        self.skip(u32::from(bits).min(CODE_BITS_MAX))?;
        let mut at = 1;
        while at < BLOCK_VALUES {
            let symbol = self.symbol(others)?;
            match (symbol >> 4, symbol & 15) {
                (15, 0) => at += 16,
                // The rest is zero.
                (_, 0) => break,
                (zeros, bits) => {
                    self.skip(bits.into())?;
                    at += usize::from(zeros) + 1;
                }
            }
        }
        if at > BLOCK_VALUES { Err(NO_CODE) } else { Ok(()) }
    }

    /// Drops the rest of a byte, and passes this restart marker.
    fn restart(&mut self, wanted: u8) -> Result<(), &'static str> {
        // Whole bytes would be data that nobody reads.
        if self.held >= 8 {
            return Err(NO_CODE);
        }
        (self.buffer, self.held) = (0, 0);
        let Some((code, rest)) = next_marker(&self.data[self.at..]) else { return Err(ENDS_EARLY) };
        if code != 0xd0 + wanted {
            return Err(NO_CODE);
        }
        self.at = self.data.len() - rest.len();
        Ok(())
    }

    /// Returns what follows the data, of which only the rest of a byte, and padding, may be unread.
    fn finish(self) -> Result<&'a [u8], &'static str> {
        const EXTRANEOUS_MAX: usize = 1;
        let whole = self.held / 8;
        let held = (0..whole).filter(|byte| self.buffer >> (8 * byte) & 0xff != 0).count();
        let rest = self.data.get(self.at..).unwrap_or_default();
        let end = rest.windows(2).position(|bytes| bytes[0] == MARKER && bytes[1] != 0).unwrap_or(rest.len());
        let unread = rest[..end].iter().filter(|byte| **byte != 0).count();
        if held + unread > EXTRANEOUS_MAX { Err(GOES_ON) } else { Ok(rest) }
    }
}

#[cfg(test)]
mod tests {
    use image::codecs::jpeg::JpegEncoder;
    use image::{DynamicImage, ImageDecoder, RgbImage};

    use super::*;

    fn picture(width: u32, height: u32) -> DynamicImage {
        RgbImage::from_fn(width, height, |x, y| {
            image::Rgb([(x * 7 % 256) as u8, (y * 11 % 256) as u8, (x * y % 251) as u8])
        })
        .into()
    }

    fn encoded(image: &DynamicImage, quality: u8) -> Vec<u8> {
        let mut file = Vec::new();
        JpegEncoder::new_with_quality(&mut file, quality).encode_image(image).unwrap();
        file
    }

    /// Where the coded data of the only scan begin and end.
    fn scan(file: &[u8]) -> std::ops::Range<usize> {
        let at = file.windows(2).position(|bytes| bytes == [0xff, 0xda]).unwrap() + 2;
        at + usize::from(u16::from_be_bytes([file[at], file[at + 1]]))..file.len() - 2
    }

    #[test]
    fn files_of_all_sizes_and_kinds_are_whole_and_cut_ones_are_not() {
        for (width, height) in [(1, 1), (7, 9), (8, 8), (16, 16), (17, 33), (64, 48), (100, 1), (130, 70)] {
            for quality in [10, 75, 100] {
                for image in [picture(width, height), picture(width, height).to_luma8().into()] {
                    let file = encoded(&image, quality);
                    assert_eq!(check(&file), Ok(()), "{width} × {height}, {quality}");
                    let data = scan(&file);
                    for percent in [0, 10, 40, 60, 80, 95] {
                        let end = data.start + data.len() * percent / 100;
                        let cut = [&file[..end], &[0xff, 0xd9]].concat();
                        // The last block may need only a few bits.
                        if data.end - end > 8 {
                            assert!(check(&cut).is_err(), "{width} × {height}, {quality}, {percent} %");
                        }
                    }
                    // More rows than are coded.
                    let frame = file.windows(2).position(|bytes| bytes == [0xff, 0xc0]).unwrap();
                    let mut higher = file.clone();
                    higher[frame + 5..frame + 7].copy_from_slice(&(height as u16 * 2 + 16).to_be_bytes());
                    assert_eq!(check(&higher), Err(ENDS_EARLY), "{width} × {height}, {quality}");
                }
            }
        }
    }

    #[test]
    fn marks_of_colours_that_contradict_each_other_are_refused() {
        let file = encoded(&picture(16, 16), 80);
        let jfif = file.windows(5).position(|bytes| bytes == b"JFIF\0").unwrap();
        let without = [&file[..2], &file[jfif + 16 - 2..]].concat();
        let adobe = |transform: u8| [&b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0"[..], &[transform]].concat();
        let with = |file: &[u8], mark: &[u8]| [&file[..2], mark, &file[2..]].concat();
        let renamed = |file: &[u8]| {
            let mut other = file.to_vec();
            let frame = other.windows(2).position(|bytes| bytes == [0xff, 0xc0]).unwrap();
            (0..3).for_each(|at| other[frame + 10 + 3 * at] = b"RGB"[at]);
            let scan = other.windows(2).position(|bytes| bytes == [0xff, 0xda]).unwrap();
            (0..3).for_each(|at| other[scan + 5 + 2 * at] = b"RGB"[at]);
            other
        };
        for (file, is_refused) in [
            (file.clone(), false),
            (without.clone(), false),
            (with(&file, &adobe(1)), false),
            (with(&without, &adobe(0)), false),
            (renamed(&without), false),
            (with(&renamed(&without), &adobe(0)), false),
            (with(&file, &adobe(0)), true),
            (renamed(&file), true),
            (with(&renamed(&without), &adobe(1)), true),
        ] {
            let expected = if is_refused { Err(COLOURS) } else { Ok(()) };
            assert_eq!(check(&file), expected, "{:02x?}", &file[..40]);
        }
    }

    #[test]
    fn damage_is_found_or_reads_as_other_data_and_never_panics() {
        let file = encoded(&picture(64, 48), 80);
        let (data, mut found) = (scan(&file), 0);
        for at in 0..file.len() {
            let mut other = file.clone();
            other[at] ^= 0x5a;
            found += u32::from(check(&other).is_err() && data.contains(&at));
            let _ = check(&other[..at]);
        }
        assert!(found as usize > data.len() / 3, "{found} of {}", data.len());
    }

    /// With colours at half resolution, restart markers, and progressive: written by Pillow.
    #[test]
    fn files_of_another_writer_are_whole() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images");
        let mut checked = 0;
        for entry in std::fs::read_dir(folder.join("folder/circle")).unwrap() {
            let file = std::fs::read(entry.unwrap().path()).unwrap();
            if file.starts_with(&[0xff, 0xd8]) {
                assert_eq!(check(&file), Ok(()));
                assert!(
                    image::codecs::jpeg::JpegDecoder::new(std::io::Cursor::new(&file)).unwrap().total_bytes()
                        > 0
                );
                checked += 1;
            }
        }
        assert!(checked > 0);
    }
}
