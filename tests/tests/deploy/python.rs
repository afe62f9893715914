//! The package in `deploy/python`, with the real programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use longhaul_tests::cluster::binary;
use longhaul_tests::pip::Package;
use longhaul_tests::tools::skipped;

/// It brings NumPy.
const PANDAS: Package = Package { name: "pandas", version: "2.3.3" };

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/python").canonicalize().unwrap()
}

#[test]
fn the_packages_own_tests_pass_with_the_programs_that_are_built_here() {
    // Without it, what needs it is left out, with the notice.
    let python =
        PANDAS.for_a_test().map_or_else(|| PathBuf::from("python3"), |folder| folder.join("bin/python3"));
    let programs = binary("coordinator").unwrap().parent().unwrap().to_owned();
    assert!(binary("worker").is_ok(), "cargo build --workspace --bins makes it");
    let mut command = Command::new(python);
    command.args(["-B", "-W", "error", "-m", "unittest", "discover", "--start-directory"]);
    command.arg(package().join("tests")).env("PYTHONPATH", package()).env("LONGHAUL_PROGRAMS", programs);
    for variable in ["TOKEN", "TOKEN_FILE", "CHECKPOINT_DIR", "CONFIG", "STATE", "STATE_DIR", "LOG"] {
        command.env_remove(format!("LONGHAUL_{variable}"));
    }
    let output = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return skipped("there is no python3");
        }
        output => output.unwrap(),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_package_is_of_this_release() {
    let project = std::fs::read_to_string(package().join("pyproject.toml")).unwrap();
    assert!(project.contains(concat!("version = \"", env!("CARGO_PKG_VERSION"), "\"")));
}
