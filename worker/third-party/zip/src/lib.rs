//! In place of zip 0.6 (`[patch.crates-io]` in the root), which tch and torch-sys name with all its features: bzip2, Zstandard, AES and what they are made of are C and Rust
//! that take half a minute to compile, in front of the longest step of the build. tch calls it for files of NumPy's (`.npz`) and torch-sys to unpack a libtorch that it has
//! downloaded, neither of which anything here does. Every call refuses.

#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::io::{self, Read, Seek, Write};
use std::marker::PhantomData;
use std::path::PathBuf;

use self::result::ZipError;
use self::write::FileOptions;

/// Errors.
pub mod result {
    use std::error::Error;
    use std::fmt;

    /// The only one.
    #[derive(Debug)]
    pub struct ZipError;

    impl fmt::Display for ZipError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("zip archives are not read or written here (worker/third-party/zip)")
        }
    }

    impl Error for ZipError {}
}

/// Writing.
pub mod write {
    use super::CompressionMethod;

    /// Of a file that is to be written.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct FileOptions;

    impl FileOptions {
        /// The same.
        #[must_use]
        pub fn compression_method(self, _: CompressionMethod) -> Self {
            self
        }
    }
}

/// How files are packed.
#[derive(Clone, Copy, Debug)]
pub enum CompressionMethod {
    /// Not at all.
    Stored,
}

/// An archive that is read: there is none.
#[derive(Debug)]
pub struct ZipArchive<R> {
    never: Infallible,
    reader: PhantomData<R>,
}

impl<R: Read + Seek> ZipArchive<R> {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn new(_: R) -> Result<Self, ZipError> {
        Err(ZipError)
    }

    /// Never called.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "as zip has it")]
    pub fn len(&self) -> usize {
        match self.never {}
    }

    /// Never called.
    ///
    /// # Errors
    /// None.
    pub fn by_index(&mut self, _: usize) -> Result<ZipFile, ZipError> {
        match self.never {}
    }
}

/// A file in an archive: there is none.
#[derive(Debug)]
pub struct ZipFile {
    never: Infallible,
}

impl ZipFile {
    /// Never called.
    #[must_use]
    pub fn name(&self) -> &str {
        match self.never {}
    }

    /// Never called.
    #[must_use]
    pub fn mangled_name(&self) -> PathBuf {
        match self.never {}
    }

    /// Never called.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self.never {}
    }
}

impl Read for ZipFile {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match self.never {}
    }
}

/// An archive that is written: no file can be begun in it.
#[derive(Debug)]
pub struct ZipWriter<W>(PhantomData<W>);

impl<W: Write + Seek> ZipWriter<W> {
    /// One without files.
    pub fn new(_: W) -> Self {
        Self(PhantomData)
    }

    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn start_file(&mut self, _: impl Into<String>, _: FileOptions) -> Result<(), ZipError> {
        Err(ZipError)
    }
}

impl<W> Write for ZipWriter<W> {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other(ZipError))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
