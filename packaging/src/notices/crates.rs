//! The crates that are linked into a program, and their dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A crate's name and version, which are unique within one registry and this workspace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) name: String,
    pub(crate) version: String,
}

#[derive(Debug)]
pub(crate) struct Crate {
    pub(crate) id: Id,
    /// An SPDX expression.
    pub(crate) licence: String,
    pub(crate) authors: Vec<String>,
    pub(crate) repository: Option<String>,
    /// The directory of its sources.
    pub(crate) dir: PathBuf,
    /// SHA-256 of the package in the registry; none for a crate of this workspace.
    pub(crate) checksum: Option<String>,
    pub(crate) depends_on: BTreeSet<Id>,
}

impl Crate {
    pub(crate) fn is_ours(&self) -> bool {
        self.checksum.is_none()
    }
}

/// The program's crates; the first is the program itself.
#[derive(Debug)]
pub(crate) struct Linked {
    pub(crate) root: Id,
    pub(crate) crates: BTreeMap<Id, Crate>,
}

/// Runs `cargo`, and returns its output.
fn cargo(args: &[&str]) -> Result<String, String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(program)
        .args(args)
        .output()
        .map_err(|error| format!("cargo {}: {error}", args.join(" ")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo {}: {said}", args.join(" ")));
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}

pub(crate) fn linked(package: &str, features: &str) -> Result<Linked, String> {
    let tree = cargo(&[
        "tree",
        "--locked",
        "--package",
        package,
        "--features",
        features,
        "--edges=normal,no-proc-macro",
        "--prefix=depth",
        "--format= {p}",
    ])?;
    let (root, edges) = edges(&tree)?;
    let metadata = cargo(&[
        "metadata",
        "--locked",
        "--format-version=1",
        "--all-features",
    ])?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
    let workspace = metadata["workspace_root"].as_str().unwrap_or(".");
    let lock = std::fs::read_to_string(format!("{workspace}/Cargo.lock"))
        .map_err(|error| format!("{workspace}/Cargo.lock: {error}"))?;
    let mut sums = checksums(&lock);
    let mut crates = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let id = Id {
            name: text(&package["name"])?,
            version: text(&package["version"])?,
        };
        let Some(depends_on) = edges.get(&id) else {
            continue;
        };
        let of = |what: &str| format!("{} {}: no {what}", id.name, id.version);
        let manifest = PathBuf::from(text(&package["manifest_path"])?);
        let found = Crate {
            licence: match text(&package["license"]) {
                Ok(licence) => expression(&licence),
                Err(_) => named_by_file(&manifest, &package["license_file"])
                    .ok_or_else(|| of("licence"))?,
            },
            authors: strings(&package["authors"]),
            repository: text(&package["repository"]).ok(),
            dir: manifest.parent().ok_or_else(|| of("directory"))?.into(),
            checksum: match package["source"].is_null() {
                true => None,
                false => Some(sums.remove(&id).ok_or_else(|| of("checksum"))?),
            },
            depends_on: depends_on.clone(),
            id: id.clone(),
        };
        crates.insert(id, found);
    }
    if let Some(id) = edges.keys().find(|id| !crates.contains_key(id)) {
        return Err(format!("cargo metadata lacks {} {}", id.name, id.version));
    }
    Ok(Linked { root, crates })
}

fn text(value: &Value) -> Result<String, String> {
    let text = value.as_str().ok_or("cargo metadata lacks a text")?;
    Ok(text.to_string())
}

fn strings(value: &Value) -> Vec<String> {
    let values = value.as_array().into_iter().flatten();
    values
        .filter_map(|value| value.as_str().map(Into::into))
        .collect()
}

/// The licence of a manifest that names a licence file instead, found by the title of the text.
fn named_by_file(manifest: &Path, file: &Value) -> Option<String> {
    let text = std::fs::read_to_string(manifest.with_file_name(file.as_str()?)).ok()?;
    match text.lines().next()?.trim() {
        "MIT License" | "The MIT License (MIT)" => Some("MIT".into()),
        _ => None,
    }
}

/// Makes an SPDX expression: older manifests separate alternatives by a slash.
pub(crate) fn expression(licence: &str) -> String {
    let parts: Vec<&str> = licence.split('/').map(str::trim).collect();
    parts.join(" OR ")
}

/// The first crate of a tree printed with `--prefix=depth --format=" {p}"`, and the dependencies of
/// each crate. cargo prints the tree of a crate only once.
pub(crate) fn edges(tree: &str) -> Result<(Id, BTreeMap<Id, BTreeSet<Id>>), String> {
    let mut edges: BTreeMap<Id, BTreeSet<Id>> = BTreeMap::new();
    let mut path: Vec<Id> = Vec::new();
    for line in tree.lines().filter(|line| !line.trim().is_empty()) {
        let unknown = || format!("cargo tree prints this, which is not understood: {line}");
        let mut words = line.split_whitespace();
        let depth: usize = words
            .next()
            .and_then(|word| word.parse().ok())
            .ok_or_else(unknown)?;
        let name = words.next().ok_or_else(unknown)?;
        let version = words
            .next()
            .and_then(|word| word.strip_prefix('v'))
            .ok_or_else(unknown)?;
        let id = Id {
            name: name.into(),
            version: version.into(),
        };
        if depth > path.len() {
            return Err(unknown());
        }
        path.truncate(depth);
        if let Some(parent) = path.last() {
            edges.entry(parent.clone()).or_default().insert(id.clone());
        }
        edges.entry(id.clone()).or_default();
        path.push(id);
    }
    let root = path.into_iter().next().ok_or("cargo tree prints nothing")?;
    Ok((root, edges))
}

/// The checksums in Cargo.lock, read by lines, since cargo always writes it in this form.
pub(crate) fn checksums(lock: &str) -> BTreeMap<Id, String> {
    let mut sums = BTreeMap::new();
    for package in lock.split("[[package]]") {
        let field = |name: &str| {
            let start = format!("{name} = \"");
            let line = package.lines().find_map(|line| line.strip_prefix(&start))?;
            line.strip_suffix('"').map(String::from)
        };
        if let (Some(name), Some(version), Some(sum)) =
            (field("name"), field("version"), field("checksum"))
        {
            sums.insert(Id { name, version }, sum);
        }
    }
    sums
}
