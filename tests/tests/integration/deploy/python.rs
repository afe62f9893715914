//! The package in `deploy/python`, with the real programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use longhaul_tests::cluster::binary;
use longhaul_tests::pip::{Package, install_project_for_a_test};
use longhaul_tests::tools::skipped;

/// Contains NumPy.
const PANDAS: Package = Package { name: "pandas", version: "2.3.3" };

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/python").canonicalize().unwrap()
}

#[test]
fn the_packages_own_tests_pass_with_the_programs_that_are_built_here() {
    // Without it, its part is skipped with a notice.
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

/// In a copy, as a build leaves files in the sources.
#[test]
fn pip_installs_the_package_and_it_is_found_from_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let (project, environment) = (folder.path().join("project"), folder.path().join("environment"));
    let copied =
        Command::new("cp").args(["--recursive", "--"]).arg(package()).arg(&project).status().unwrap();
    assert!(copied.success());
    let Some(()) = install_project_for_a_test(&project, &environment) else { return };
    std::fs::remove_dir_all(&project).unwrap();
    let mut python = Command::new(environment.join("bin/python3"));
    python.current_dir(folder.path()).args(["-W", "error", "-c"]);
    python.arg("import importlib.metadata, longhaul; print(longhaul.__file__, importlib.metadata.version('longhaul')); longhaul.curves('.')");
    let output = python.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("/environment/lib"), "{said}");
    assert!(said.trim_end().ends_with(env!("CARGO_PKG_VERSION")), "{said}");
}

#[test]
fn the_package_is_of_this_release() {
    let project = std::fs::read_to_string(package().join("pyproject.toml")).unwrap();
    assert!(project.contains(concat!("version = \"", env!("CARGO_PKG_VERSION"), "\"")));
}
