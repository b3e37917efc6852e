//! The bill of materials: CycloneDX 1.5, in JSON. It is the same for the same program: it has no
//! random serial number, and its time is `SOURCE_DATE_EPOCH`, if that is set.

use serde_json::{Value, json};

use crate::crates::{Crate, Id, Linked};

/// The package URL of a crate. It is unique, and so also the reference by which components name
/// each other.
fn purl(id: &Id) -> String {
    format!("pkg:cargo/{}@{}", id.name, id.version)
}

fn component(found: &Crate) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": purl(&found.id),
        "name": found.id.name,
        "version": found.id.version,
        "licenses": [{ "expression": found.licence }],
        "purl": purl(&found.id),
    });
    if let Some(sum) = &found.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    if let Some(repository) = &found.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    component
}

/// `rust` is the version of the standard library, which is linked into every program.
pub(crate) fn document(linked: &Linked, rust: &str) -> Result<String, String> {
    let root = linked
        .crates
        .get(&linked.root)
        .ok_or("the program is none of its crates")?;
    let library = format!("pkg:generic/rust-std@{rust}");
    let mut program = component(root);
    program["type"] = json!("application");
    let mut components = vec![json!({
        "type": "library",
        "bom-ref": library,
        "name": "rust-std",
        "version": rust,
        "licenses": [{ "expression": "MIT OR Apache-2.0" }],
        "purl": library,
        "externalReferences": [{ "type": "vcs", "url": "https://github.com/rust-lang/rust" }],
    })];
    let mut dependencies = vec![json!({ "ref": library, "dependsOn": [] })];
    for (id, found) in &linked.crates {
        if *id != linked.root {
            components.push(component(found));
        }
        let mut on: Vec<String> = found.depends_on.iter().map(purl).collect();
        on.push(library.clone());
        dependencies.push(json!({ "ref": purl(id), "dependsOn": on }));
    }
    let mut bom = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "tools": { "components": [{
                "type": "application",
                "name": "nfsrdma-notices",
                "version": env!("CARGO_PKG_VERSION"),
            }]},
            "component": program,
        },
        "components": components,
        "dependencies": dependencies,
    });
    if let Ok(epoch) = std::env::var("SOURCE_DATE_EPOCH") {
        let seconds = epoch
            .parse()
            .map_err(|_| "SOURCE_DATE_EPOCH is not a number of seconds")?;
        bom["metadata"]["timestamp"] = json!(timestamp(seconds));
    }
    let text = serde_json::to_string_pretty(&bom).map_err(|error| error.to_string())?;
    Ok(text + "\n")
}

/// Formats seconds since 1970 like RFC 3339, in UTC.
pub(crate) fn timestamp(seconds: u64) -> String {
    let (mut days, second) = (seconds / 86400, seconds % 86400);
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [
        31,
        28 + u64::from(leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!(
        "{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z",
        days + 1
    )
}
