//! The bill of materials: CycloneDX 1.6 (ECMA-424) in JSON, based on cargo's metadata and the pinned wheels.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::dist::libtorch::Libtorch;
use crate::dist::packages::{Package, Packages, SHIPPED};
use crate::dist::sums;
use crate::setup::pins::Wheel;

/// End of its file name, by which tools recognise the format.
pub const FILE: &str = "bom.cdx.json";
/// The package that contains libtorch.
const WORKER: &str = SHIPPED[1];
/// Name of the whole.
const WHOLE: &str = "longhaul";

/// Returns the document. It is the same for the same contents.
///
/// # Errors
/// Returns an error if a program or a library of `root` cannot be read.
pub fn document(packages: &Packages, libtorch: &Libtorch, root: &Path, time_s: u64) -> Result<String> {
    let mut components: Vec<Value> = packages.iter().map(of_package).collect();
    components.extend(of_libtorch(libtorch));
    components.extend(of_files(root)?);
    let whole = format!("{WHOLE}@{}", packages.version()?);
    let mut document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": in_utc(time_s),
            "tools": { "components": [{ "type": "application", "name": "cargo xtask dist", "version": env!("CARGO_PKG_VERSION") }] },
            "component": {
                "type": "application",
                "bom-ref": whole,
                "name": WHOLE,
                "version": packages.version()?,
                "licenses": [{ "expression": "MIT OR Apache-2.0" }],
            },
        },
        "components": components,
        "dependencies": dependencies(packages, libtorch, &whole),
    });
    document["serialNumber"] = format!("urn:uuid:{}", name_of(&document)).into();
    let mut text = serde_json::to_string_pretty(&document).context("write the bill of materials")?;
    text.push('\n');
    Ok(text)
}

/// Returns a UUID of version 8 (RFC 9562), a hash of the document.
fn name_of(document: &Value) -> String {
    let mut bytes: [u8; 32] = Sha256::digest(document.to_string()).into();
    bytes[6] = (bytes[6] & 0x0f) | 0x80;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hexadecimal = sums::in_hexadecimal(&bytes[..16]);
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &hexadecimal[range]);
    parts.join("-")
}

fn of_package(package: &Package) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": package.reference(),
        "name": package.name,
        "version": package.version,
        // Packages that build the programs but are not in them.
        "scope": if package.builds_only { "excluded" } else { "required" },
        "licenses": [match &package.license {
            Some(expression) => json!({ "expression": as_spdx(expression) }),
            None => json!({ "license": { "name": "see licences/rust.txt" } }),
        }],
    });
    // Longhaul's packages are in no registry.
    if package.source.is_some() {
        component["purl"] =
            format!("pkg:cargo/{}@{}", package.name, package.version.replace('+', "%2B")).into();
    }
    if let Some(checksum) = &package.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(repository) = &package.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    component
}

/// Converts cargo's older form, `MIT/Apache-2.0`, to an SPDX expression.
fn as_spdx(expression: &str) -> String {
    expression.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ")
}

/// Returns its wheels, or only the version of the user's own libtorch.
fn of_libtorch(libtorch: &Libtorch) -> Vec<Value> {
    let wheels = libtorch.wheels();
    if wheels.is_empty() {
        return vec![json!({
            "type": "library",
            "bom-ref": reference_of_torch(libtorch),
            "name": "libtorch",
            "version": libtorch.version(),
        })];
    }
    let of_wheel = |wheel: &Wheel| {
        json!({
            "type": "library",
            "bom-ref": of_pypi(wheel),
            "name": wheel.name,
            "version": wheel.version,
            "scope": "required",
            "licenses": [{ "license": { "name": format!("see licences/{}", wheel.name) } }],
            "hashes": [{ "alg": "SHA-256", "content": wheel.sha256 }],
            "purl": format!("pkg:pypi/{}@{}", wheel.name, wheel.version),
        })
    };
    wheels.iter().map(of_wheel).collect()
}

fn of_pypi(wheel: &Wheel) -> String {
    format!("pypi:{}@{}", wheel.name, wheel.version)
}

fn reference_of_torch(libtorch: &Libtorch) -> String {
    libtorch.wheels().first().map_or_else(|| format!("libtorch@{}", libtorch.version()), of_pypi)
}

/// Returns the programs and libraries.
fn of_files(root: &Path) -> Result<Vec<Value>> {
    let mut components = Vec::new();
    for path in sums::files_below(root)? {
        let library = path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"));
        if path.starts_with("bin") || library {
            let name = sums::as_text(&path)?;
            components.push(json!({
                "type": "file",
                "bom-ref": format!("file:{name}"),
                "name": name,
                "hashes": [{ "alg": "SHA-256", "content": sums::of_file(&root.join(&path))? }],
            }));
        }
    }
    Ok(components)
}

fn dependencies(packages: &Packages, libtorch: &Libtorch, whole: &str) -> Vec<Value> {
    let reference = |id: &String| packages.iter().find(|package| package.id == *id).map(Package::reference);
    let programs: Vec<_> =
        packages.iter().filter(|it| SHIPPED.contains(&it.name.as_str())).map(Package::reference).collect();
    let mut dependencies = vec![json!({ "ref": whole, "dependsOn": programs })];
    for package in packages.iter() {
        let mut needs: Vec<String> = package.needs.iter().filter_map(reference).collect();
        if package.name == WORKER {
            needs.push(reference_of_torch(libtorch));
        }
        needs.sort();
        dependencies.push(json!({ "ref": package.reference(), "dependsOn": needs }));
    }
    if let [torch, others @ ..] = libtorch.wheels() {
        let others: Vec<_> = others.iter().map(of_pypi).collect();
        dependencies.push(json!({ "ref": of_pypi(torch), "dependsOn": others }));
    }
    dependencies
}

/// Formats seconds since 1970 according to RFC 3339.
fn in_utc(time_s: u64) -> String {
    const DAY_S: u64 = 24 * 60 * 60;
    let (days, second) = (time_s / DAY_S, time_s % DAY_S);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// Returns the date that is `days` after 1970-01-01. Years start in March, so that a leap day is the last of
/// its year.
fn date(days: u64) -> (u64, u64, u64) {
    // Days from 0000-03-01 to 1970-01-01, and in 400, 100, 4 years and one.
    const TO_1970: u64 = 719_468;
    const IN_400_YEARS: u64 = 146_097;
    let days = days + TO_1970;
    let (cycle, of_cycle) = (days / IN_400_YEARS, days % IN_400_YEARS);
    let year = (of_cycle - of_cycle / 1_460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year + year / 4 - year / 100);
    // Five months from March, or from August, have 153 days.
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (cycle * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_that_date_prints() {
        // date -u -d @N +%FT%TZ
        for (time_s, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(in_utc(time_s), text);
        }
    }

    #[test]
    fn older_expressions_of_licences_are_read() {
        assert_eq!(as_spdx("MIT/Apache-2.0"), "MIT OR Apache-2.0");
        assert_eq!(as_spdx("Apache-2.0 / MIT"), "Apache-2.0 OR MIT");
        assert_eq!(as_spdx("(MIT OR Apache-2.0) AND Unicode-3.0"), "(MIT OR Apache-2.0) AND Unicode-3.0");
    }

    #[test]
    fn a_document_is_named_by_what_is_in_it() {
        let [one, other] = [json!({ "a": 1 }), json!({ "a": 2 })].map(|document| name_of(&document));
        assert_eq!(one, name_of(&json!({ "a": 1 })));
        assert_ne!(one, other);
        assert_eq!((one.len(), &one[14..15]), (36, "8"));
    }
}
