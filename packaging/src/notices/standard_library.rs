//! The Rust standard library, which is linked into every program: its version, and the notices in
//! its toolchain.

use std::path::PathBuf;
use std::process::Command;

use crate::licences::Notice;

#[derive(Debug)]
pub(crate) struct Toolchain {
    pub(crate) version: String,
    sysroot: PathBuf,
}

/// Prefixes of the names of crates that the standard library has for other systems only.
const OTHER_SYSTEMS: [&str; 9] = [
    "windows",
    "wasi",
    "wit-bindgen",
    "hermit",
    "fortanix",
    "vex",
    "r-efi",
    "moto",
    "dlmalloc",
];

impl Toolchain {
    pub(crate) fn find() -> Result<Self, String> {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let ask = |args: &[&str]| -> Result<String, String> {
            let output = Command::new(&rustc).args(args).output();
            let output = output.map_err(|error| format!("rustc: {error}"))?;
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
        };
        let version = ask(&["--version"])?;
        Ok(Self {
            version: version
                .split(' ')
                .nth(1)
                .ok_or("rustc tells no version")?
                .into(),
            sysroot: ask(&["--print", "sysroot"])?.into(),
        })
    }

    /// The notices of the library and of the crates in it. Toolchains of distributions lack the
    /// list of crates; then the notice of the library as a whole is used.
    pub(crate) fn notices(&self) -> Result<Vec<Notice>, String> {
        let path = self.sysroot.join("share/doc/rust/COPYRIGHT-library.html");
        let page = match std::fs::read_to_string(&path) {
            Ok(page) => page,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(vec![self.whole()]);
            }
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        let mut notices = vec![self.whole()];
        notices.extend(of_page(&page).ok_or_else(|| {
            format!(
                "{}: it is written differently now: mend {}",
                path.display(),
                file!()
            )
        })?);
        Ok(notices)
    }

    fn whole(&self) -> Notice {
        Notice {
            software: format!("Rust standard library {}", self.version),
            licence: "MIT OR Apache-2.0, Unicode-3.0 (tables of characters)".into(),
            source: "https://github.com/rust-lang/rust".into(),
            texts: vec![
                include_str!("rust.txt").trim().into(),
                include_str!("unicode.txt").trim().into(),
            ],
        }
    }
}

/// The crates on the page, with their texts. `None` if the page has an unexpected structure.
pub(crate) fn of_page(page: &str) -> Option<Vec<Notice>> {
    let (_, crates) = page.split_once("id=\"out-of-tree-dependencies\"")?;
    let mut notices = Vec::new();
    for section in crates.split("<h3>").skip(1) {
        let (heading, body) = section.split_once("</h3>")?;
        let name = plain(heading)
            .trim_start_matches(|c: char| !c.is_ascii_alphanumeric())
            .to_string();
        if OTHER_SYSTEMS.iter().any(|start| name.starts_with(start)) {
            continue;
        }
        let texts: Vec<String> = body
            .split("<pre>")
            .skip(1)
            .filter_map(|part| part.split_once("</pre>"))
            .map(|(text, _)| plain(text).trim_matches('\n').to_string())
            .collect();
        let licence = body.split_once("License:</b>")?.1.split_once("</p>")?.0;
        notices.push(Notice {
            software: format!("{name} (in the Rust standard library)"),
            licence: plain(licence).trim().into(),
            source: "https://github.com/rust-lang/rust".into(),
            texts,
        });
    }
    (!notices.is_empty()).then_some(notices)
}

/// HTML without its tags and entities.
fn plain(html: &str) -> String {
    let mut out = String::new();
    let mut rest = html;
    while let Some((text, tag)) = rest.split_once('<') {
        out += text;
        rest = tag.split_once('>').map_or("", |(_, after)| after);
    }
    out += rest;
    let entities = [
        ("&#60;", "<"),
        ("&#62;", ">"),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&amp;", "&"),
    ];
    for (entity, character) in entities {
        out = out.replace(entity, character);
    }
    out
}
