//! The licence texts of crates. Each text is included once.

use std::collections::BTreeMap;
use std::path::Path;

use crate::crates::{Crate, Linked};

/// A piece of software with its licence texts.
#[derive(Debug)]
pub(crate) struct Notice {
    /// Name and version.
    pub(crate) software: String,
    pub(crate) licence: String,
    pub(crate) source: String,
    pub(crate) texts: Vec<String>,
}

/// The first parts of the names of files with licences or notices.
const NAMES: [&str; 7] = [
    "license",
    "licence",
    "unlicense",
    "copying",
    "copyright",
    "notice",
    "patents",
];

/// Length of the shortest licence that demands its text in copies, in bytes.
pub(crate) const SHORTEST: usize = 400;

const MIT: &str = "\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated \
documentation files (the \"Software\"), to deal in the Software without restriction, including without limitation the \
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit \
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the \
Software.

THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE \
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR \
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR \
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.";

/// The notices of all crates that are not this project's own.
pub(crate) fn of_crates(linked: &Linked) -> Result<Vec<Notice>, String> {
    let others = linked.crates.values().filter(|found| !found.is_ours());
    others.map(of_crate).collect()
}

fn of_crate(found: &Crate) -> Result<Notice, String> {
    let software = format!("{} {}", found.id.name, found.id.version);
    let mut texts = Vec::new();
    collect(&found.dir, 2, &mut texts)?;
    // The files of some crates only name a licence.
    if !texts.iter().any(|text| text.len() >= SHORTEST) {
        texts.push(standard_text(found)?);
    }
    Ok(Notice {
        source: match &found.repository {
            Some(repository) => repository.clone(),
            None => format!("https://crates.io/crates/{}", found.id.name),
        },
        licence: found.licence.clone(),
        software,
        texts,
    })
}

/// Collects the texts below `dir`, also those of code that a crate took from elsewhere.
fn collect(dir: &Path, depth: usize, texts: &mut Vec<String>) -> Result<(), String> {
    let fault = |error| format!("{}: {error}", dir.display());
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(fault)? {
        entries.push(entry.map_err(fault)?.path());
    }
    entries.sort();
    for path in entries {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_lowercase();
        if path.is_dir() && depth > 0 {
            collect(&path, depth - 1, texts)?;
        } else if path.is_file() && is_licence(&name) {
            let bytes =
                std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            texts.push(plain(&String::from_utf8_lossy(&bytes)));
        }
    }
    Ok(())
}

/// Whether a file has a licence, by its lower-case name. Sources (`license.rs`) do not count.
fn is_licence(name: &str) -> bool {
    let code = [".rs", ".toml", ".json", ".py", ".sh", ".yml", ".yaml"];
    NAMES.iter().any(|start| name.starts_with(start)) && !code.iter().any(|end| name.ends_with(end))
}

/// The full text of the licence that the manifest names, for a crate without a text.
pub(crate) fn standard_text(found: &Crate) -> Result<String, String> {
    let Crate { id, licence, .. } = found;
    if !licence.split(" OR ").any(|one| one == "MIT") {
        return Err(format!(
            "{} {} is under {licence} and has no licence text: add the text to {}",
            id.name,
            id.version,
            file!()
        ));
    }
    let authors = match found.authors.is_empty() {
        true => format!("the authors of {}", id.name),
        false => found.authors.join(", "),
    };
    Ok(plain(&format!(
        "(The crate's manifest names the MIT licence and its authors; it has no text of it.)\n\n\
         Copyright (c) {authors}\n\n{MIT}"
    )))
}

/// The text without blanks at the ends of lines, and without empty lines around it.
fn plain(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_matches('\n').to_string()
}

/// The key of a text. Texts that differ only in line breaks are the same.
fn key(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

/// The whole file: which software uses which text, then each text with its number.
pub(crate) fn document(linked: &Linked, notices: &[Notice]) -> String {
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let mut texts: Vec<&str> = Vec::new();
    let root = &linked.root;
    let mut out = format!(
        "Third-party software in {} {}\n\n\
         The program is linked with the software below. Each line of a name ends with the numbers\n\
         of its licence texts and notices, which follow the list.\n",
        root.name, root.version
    );
    for notice in notices {
        let mut used = Vec::new();
        for text in &notice.texts {
            let number = *numbers.entry(key(text)).or_insert_with(|| {
                texts.push(text);
                texts.len()
            });
            if !used.contains(&number) {
                used.push(number);
            }
        }
        let used: Vec<String> = used.iter().map(|number| format!("[{number}]")).collect();
        out += &format!(
            "\n{}  {}\n    licence: {}\n    source:  {}\n",
            notice.software,
            used.join(" "),
            notice.licence,
            notice.source
        );
    }
    for (at, text) in texts.iter().enumerate() {
        out += &format!("\n{:-<80}\n\n{text}\n", format!("[{}] ", at + 1));
    }
    out
}
