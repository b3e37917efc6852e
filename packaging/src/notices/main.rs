//! `nfsrdma-notices PACKAGE FEATURES DIR`: lists the code of others that is linked into a program
//! of this workspace, in two files in DIR.
//!
//! * `THIRD-PARTY-LICENSES`: the licence texts of every crate and of the Rust standard library.
//! * `sbom.cdx.json`: the same as a bill of materials (CycloneDX 1.5).
//!
//! The set of crates is cargo's answer for the program (`cargo tree` with its features and target,
//! without build dependencies and procedural macros, whose code is not in the program). The texts
//! are those in the sources of the crates, which a build has fetched already. A crate without a
//! text is an error, unless the text of its licence is known here.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod crates;
mod licences;
mod sbom;
mod standard_library;
#[cfg(test)]
mod tests;

fn write(package: &str, features: &str, dir: &Path) -> Result<(), String> {
    let linked = crates::linked(package, features)?;
    let toolchain = standard_library::Toolchain::find()?;
    let mut notices = licences::of_crates(&linked)?;
    notices.extend(toolchain.notices()?);
    std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let files = [
        (
            "THIRD-PARTY-LICENSES",
            licences::document(&linked, &notices),
        ),
        (
            "sbom.cdx.json",
            sbom::document(&linked, &toolchain.version)?,
        ),
    ];
    for (name, text) in files {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [package, features, dir] = &args[..] else {
        eprintln!("usage: nfsrdma-notices PACKAGE FEATURES DIR");
        return ExitCode::FAILURE;
    };
    match write(package, features, &PathBuf::from(dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nfsrdma-notices: {error}");
            ExitCode::FAILURE
        }
    }
}
