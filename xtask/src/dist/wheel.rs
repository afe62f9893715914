//! The Python package with the programs, as a wheel (PEP 427): `pip install` without a compiler.
//!
//! It contains libtorch, like the tarball, instead of a dependency on PyPI's torch, which brings 2.7 GB of
//! CUDA libraries to machines without a GPU and would have to match this version exactly. Decision 0071.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sha2::{Digest as _, Sha256};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::checkout::Checkout;
use crate::dist::requirements::Requirements;
use crate::dist::sums;

/// The folder of the package with the programs and their files.
const BUNDLE: &str = "longhaul/bundle";
/// The package's sources, relative to the root of a checkout.
const PACKAGE: &str = "deploy/python/longhaul";
/// Extensions of the package's files.
const SOURCES: [&str; 2] = ["py", "typed"];

/// A wheel being written: its files, and the lines of `RECORD`.
struct Wheel {
    zip: ZipWriter<BufWriter<File>>,
    record: String,
    options: SimpleFileOptions,
}

/// Packs the contents of `root`, with the package's sources, into a wheel in `out`. Returns its path.
///
/// # Errors
/// Returns an error if a file cannot be read or written, or if the programs name no version of the C library.
pub fn pack(
    checkout: &Checkout,
    root: &Path,
    version: &str,
    requirements: &Requirements,
    out: &Path,
) -> Result<PathBuf> {
    let tag = platform_tag(requirements)?;
    let path = out.join(format!("longhaul-{version}-py3-none-{tag}.whl"));
    let info = format!("longhaul-{version}.dist-info");
    let mut wheel = Wheel::create(&path)?;
    let package = checkout.root().join(PACKAGE);
    for file in sums::files_below(&package)? {
        let kind = file.extension().and_then(|kind| kind.to_str());
        if kind.is_some_and(|kind| SOURCES.contains(&kind)) {
            wheel.add_file(&package.join(&file), &format!("longhaul/{}", sums::as_text(&file)?))?;
        }
    }
    for file in sums::files_below(root)? {
        wheel.add_file(&root.join(&file), &format!("{BUNDLE}/{}", sums::as_text(&file)?))?;
    }
    let readme = fs::read_to_string(checkout.root().join("deploy/python/README.md"))
        .context("read the package's page")?;
    wheel.add_text(&format!("{info}/METADATA"), &metadata(version, &readme))?;
    wheel.add_text(
        &format!("{info}/WHEEL"),
        &format!("Wheel-Version: 1.0\nGenerator: longhaul\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n"),
    )?;
    wheel
        .add_text(&format!("{info}/entry_points.txt"), "[console_scripts]\nlonghaul = longhaul.cli:main\n")?;
    wheel.finish(&format!("{info}/RECORD"))?;
    Ok(path)
}

/// Returns the tag of PEP 600: any Linux with a C library of this version or newer.
fn platform_tag(requirements: &Requirements) -> Result<String> {
    ensure!(cfg!(target_arch = "x86_64"), "wheels are made on x86-64");
    let (major, minor) = requirements.glibc().context("no program says which C library it needs")?;
    Ok(format!("manylinux_{major}_{minor}_x86_64"))
}

fn metadata(version: &str, readme: &str) -> String {
    format!(
        "Metadata-Version: 2.1\nName: longhaul\nVersion: {version}\n\
         Summary: Train one model on several clusters that only slow links join\n\
         License: MIT OR Apache-2.0\nRequires-Python: >=3.9\nProvides-Extra: notebook\n\
         Requires-Dist: numpy>=1.24; extra == 'notebook'\nRequires-Dist: pandas>=2; extra == 'notebook'\n\
         Description-Content-Type: text/markdown\n\n{readme}"
    )
}

impl Wheel {
    fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
        // A fixed time, so that the same files give the same bytes.
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .last_modified_time(zip::DateTime::default());
        Ok(Self { zip: ZipWriter::new(BufWriter::new(file)), record: String::new(), options })
    }

    fn add_file(&mut self, from: &Path, name: &str) -> Result<()> {
        let of_this = || format!("pack {}", from.display());
        let mut file = File::open(from).with_context(of_this)?;
        let metadata = file.metadata().with_context(of_this)?;
        let mode = if metadata.permissions().mode() & 0o100 == 0 { 0o644 } else { 0o755 };
        let options = self.options.unix_permissions(mode).large_file(metadata.len() >= u64::from(u32::MAX));
        self.zip.start_file(name, options).with_context(of_this)?;
        let mut summed = Summed { inner: &mut self.zip, hash: Sha256::new(), length: 0 };
        io::copy(&mut file, &mut summed).with_context(of_this)?;
        let (hash, length) = (summed.hash.finalize(), summed.length);
        self.remember(name, &hash, length);
        Ok(())
    }

    fn add_text(&mut self, name: &str, text: &str) -> Result<()> {
        self.zip
            .start_file(name, self.options.unix_permissions(0o644))
            .context("pack the wheel's own files")?;
        self.zip.write_all(text.as_bytes()).context("pack the wheel's own files")?;
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        self.remember(name, &Sha256::digest(text.as_bytes()), length);
        Ok(())
    }

    /// Adds a line of `RECORD`: no packed name has a comma or a quote.
    fn remember(&mut self, name: &str, hash: &[u8], length: u64) {
        writeln!(self.record, "{name},sha256={},{length}", url_safe_base64(hash))
            .expect("a String takes every text");
    }

    fn finish(mut self, record: &str) -> Result<()> {
        writeln!(self.record, "{record},,").expect("a String takes every text");
        self.zip.start_file(record, self.options.unix_permissions(0o644)).context("write RECORD")?;
        self.zip.write_all(self.record.as_bytes()).context("write RECORD")?;
        self.zip.finish().context("end the wheel")?.flush().context("write the wheel")
    }
}

/// A writer that hashes and counts.
struct Summed<'a, W> {
    inner: &'a mut W,
    hash: Sha256,
    length: u64,
}

impl<W: Write> Write for Summed<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.length += u64::try_from(written).unwrap_or(u64::MAX);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// RFC 4648, section 5, without padding, as in `RECORD`.
fn url_safe_base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            let index = word >> (18 - 6 * place) & 63;
            text.push(char::from(LETTERS[index as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Programs that print their arguments replace those that take minutes to build; pip and Python are the
    /// real ones.
    #[test]
    fn pip_installs_a_wheel_whose_record_is_right_and_its_command_starts_a_program() {
        let folder = tempfile::tempdir().unwrap();
        let (root, out, site) =
            (folder.path().join("root"), folder.path().join("out"), folder.path().join("site"));
        for made in [root.join("bin"), out.clone()] {
            fs::create_dir_all(made).unwrap();
        }
        let program = root.join("bin/longhaul-demo");
        fs::write(&program, "#!/bin/sh\necho demo \"$@\"\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        // A program of this machine, for its C library.
        let needs = folder.path().join("needs");
        fs::create_dir(&needs).unwrap();
        fs::copy("/usr/bin/env", needs.join("env")).unwrap();
        let requirements = Requirements::of(&needs).unwrap();
        let wheel = pack(&Checkout::of_this_run(), &root, "9.8.7", &requirements, &out).unwrap();
        let python = |arguments: &[&str]| {
            let mut command = Command::new("python3");
            command.args(arguments).env("PYTHONPATH", &site).env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
            said
        };
        python(&["-c", RECORD_IS_RIGHT, wheel.to_str().unwrap()]);
        let into = ["--no-index", "--no-deps", "--quiet", "--target", site.to_str().unwrap()];
        python(&[&["-m", "pip", "install"], &into[..], &[wheel.to_str().unwrap()]].concat());
        let call =
            |words: &str| format!("import sys; from longhaul.cli import main; sys.exit(main({words}))");
        assert_eq!(python(&["-c", &call("['demo', '--steps', '3']")]), "demo --steps 3\n");
        assert!(python(&["-c", &call("['--help']")]).contains("coordinator"));
        let script =
            Command::new("python3").args(["-c", &call("['dmeo']")]).env("PYTHONPATH", &site).output();
        let refused = script.unwrap();
        assert_eq!(refused.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("there is no command 'dmeo'"));
    }

    /// Each file of a wheel is in its `RECORD` with its hash and length.
    const RECORD_IS_RIGHT: &str = r#"
import base64, csv, hashlib, io, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
record = next(name for name in wheel.namelist() if name.endswith(".dist-info/RECORD"))
lines = {name: (hash, length) for name, hash, length in csv.reader(io.StringIO(wheel.read(record).decode()))}
assert sorted(lines) == sorted(wheel.namelist()), lines
for name, (hash, length) in lines.items():
    content = wheel.read(name)
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    assert name == record or (hash, length) == ("sha256=" + digest, str(len(content))), name
"#;

    /// RFC 4648, section 10, and bytes whose letters differ from those of the usual alphabet.
    #[test]
    fn base64_is_that_of_the_rfc() {
        let vectors: [(&[u8], &str); 6] = [
            (b"", ""),
            (b"f", "Zg"),
            (b"fo", "Zm8"),
            (b"foo", "Zm9v"),
            (b"foobar", "Zm9vYmFy"),
            (&[0xfb, 0xff], "-_8"),
        ];
        for (bytes, text) in vectors {
            assert_eq!(url_safe_base64(bytes), text);
        }
    }
}
