//! `nfsrdma-pages DIR`: writes the manual pages and the shell completions into DIR. They are made
//! from the texts in `man/`, the program's own command line and its table of mount options.

use std::path::Path;
use std::process::ExitCode;

mod completions;
mod pages;
mod reference;
mod roff;
#[cfg(test)]
mod tests;

/// The pages, with their file names.
const PAGES: [(&str, &str); 3] = [
    ("nfsrdma.5", include_str!("../man/nfsrdma.5")),
    ("nfsrdma.8", include_str!("../man/nfsrdma.8")),
    ("mount.nfsrdma.8", include_str!("../man/mount.nfsrdma.8")),
];
/// Other names of mount.nfsrdma(8).
const LINKS: [&str; 3] = [
    "mount.fuse.nfsrdma.8",
    "umount.nfsrdma.8",
    "umount.fuse.nfsrdma.8",
];

/// All files, with their names and texts.
fn files() -> Result<Vec<(String, String)>, String> {
    let command = nfsrdma::cli::command();
    let mut files = Vec::new();
    for (name, page) in PAGES {
        files.push((name.into(), pages::fill(page, &command)?));
    }
    for name in LINKS {
        files.push((name.into(), ".so man8/mount.nfsrdma.8\n".into()));
    }
    let words = reference::words();
    for (shell, name) in completions::SHELLS {
        files.push((name.into(), completions::script(shell, &command, &words)?));
    }
    Ok(files)
}

fn write(dir: &Path) -> Result<(), String> {
    std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    for (name, text) in files()? {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let first = std::env::args_os().nth(1);
    let Some(dir) = first.filter(|dir| !dir.as_encoded_bytes().starts_with(b"-")) else {
        eprintln!("usage: nfsrdma-pages DIR");
        return ExitCode::FAILURE;
    };
    match write(Path::new(&dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nfsrdma-pages: {error}");
            ExitCode::FAILURE
        }
    }
}
