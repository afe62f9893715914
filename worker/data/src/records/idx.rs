//! Images and their classes in two IDX files, the format of MNIST: <http://yann.lecun.com/exdb/mnist/>.

use std::io::{self, Read};

use super::input::Input;
use super::{Record, Records};
use crate::DataError;
use crate::bounds::RECORD_BYTES_MAX;
use crate::counted::counted;
use crate::image::{Pixels, RawImage};

/// Magic of unsigned bytes in three dimensions: image, row, column.
const IMAGES: [u8; 4] = [0, 0, 8, 3];
/// Magic of unsigned bytes in one dimension.
const LABELS: [u8; 4] = [0, 0, 8, 1];
/// The head of such a file, in words.
const HEAD: &str = "its head";
/// Upper bound of bytes allocated before they are read.
const AT_ONCE_BYTES: usize = 1 << 20;

/// The images of a file, with the labels of another.
pub(super) struct Idx {
    images: Input,
    labels: Input,
    count: u32,
    height: u32,
    width: u32,
    read: u32,
}

impl Idx {
    pub(super) fn new(mut images: Input, mut labels: Input) -> Result<Self, DataError> {
        let [count, height, width] =
            sizes(&mut images, IMAGES, "images: unsigned bytes in three dimensions")?;
        let [labelled] = sizes(&mut labels, LABELS, "labels: unsigned bytes in one dimension")?;
        if labelled != count {
            let (labelled, count) = (counted(labelled.into(), "label"), counted(count.into(), "image"));
            let reason = format!("it has {labelled}, and {} has {count}", images.path.display());
            return Err(malformed(&labels, HEAD, reason));
        }
        if !(1..=RECORD_BYTES_MAX).contains(&(u64::from(height) * u64::from(width))) {
            let reason =
                format!("images of {height} × {width} pixels are not read: 1 to {RECORD_BYTES_MAX} are");
            return Err(malformed(&images, HEAD, reason));
        }
        Ok(Self { images, labels, count, height, width, read: 0 })
    }

    /// Refuses further bytes.
    fn end(&mut self) -> Result<(), DataError> {
        for input in [&mut self.images, &mut self.labels] {
            let mut more = [0];
            if input.reader.read(&mut more).map_err(DataError::io("read", &input.path))? > 0 {
                let reason = format!(
                    "it continues after the last of the {} declared in its head: fetch it again",
                    self.count
                );
                return Err(malformed(input, "its end", reason));
            }
        }
        Ok(())
    }
}

impl Records for Idx {
    fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        if self.read == self.count {
            return self.end().map(|()| None);
        }
        let (height, width, mut class) = (self.height, self.width, [0]);
        let place = || format!("image {} of {}, counted from 0", self.read, self.count);
        let values = taken(&mut self.images, height as usize * width as usize, place)?;
        fill(&mut self.labels, &mut class, place)?;
        let place = format!("{}, image {}", self.images.path.display(), self.read);
        self.read += 1;
        let content = Pixels::Grey { height, width, values };
        Ok(Some(Record::Image(RawImage { place, class: class[0].into(), content })))
    }

    fn read_bytes(&self) -> u64 {
        self.images.position.bytes() + self.labels.position.bytes()
    }

    fn content_bytes(&self) -> u64 {
        self.images.position.content_bytes() + self.labels.position.content_bytes()
    }
}

/// Reads the head of a file, which must begin with `magic`.
fn sizes<const N: usize>(input: &mut Input, magic: [u8; 4], wanted: &str) -> Result<[u32; N], DataError> {
    let mut found = [0; 4];
    fill(input, &mut found, || HEAD.to_owned())?;
    if found != magic {
        let remedy = match found {
            IMAGES => "it has images, so name it as the source and another file in `labels`",
            LABELS => "it has labels, so name it in `labels` and another file as the source",
            _ => "name another file, or write this one as such",
        };
        return Err(malformed(input, HEAD, format!("it does not begin as IDX of {wanted}: {remedy}")));
    }
    let mut sizes = [0; N];
    for size in &mut sizes {
        let mut word = [0; 4];
        fill(input, &mut word, || HEAD.to_owned())?;
        *size = u32::from_be_bytes(word);
    }
    Ok(sizes)
}

fn fill(input: &mut Input, bytes: &mut [u8], place: impl Fn() -> String) -> Result<(), DataError> {
    match input.reader.read_exact(bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(cut_off(input, &place())),
        read => read.map_err(DataError::io("read", &input.path)),
    }
}

/// Reads `count` bytes, and allocates as they arrive: a head may declare more than the file has.
fn taken(input: &mut Input, count: usize, place: impl Fn() -> String) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::with_capacity(count.min(AT_ONCE_BYTES));
    let read = input.reader.by_ref().take(count as u64).read_to_end(&mut bytes);
    read.map_err(DataError::io("read", &input.path))?;
    if bytes.len() == count { Ok(bytes) } else { Err(cut_off(input, &place())) }
}

fn cut_off(input: &Input, place: &str) -> DataError {
    malformed(input, place, "it is cut off there: fetch it again".to_owned())
}

fn malformed(input: &Input, place: &str, reason: String) -> DataError {
    DataError::Malformed { path: input.path.clone(), format: "idx", place: place.to_owned(), reason }
}
