//! Lines of fstab(5) and /proc/mounts.

use crate::mounts::unescape;
use crate::options::split;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// The fields of a line that are used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line<'a> {
    pub(crate) source: &'a str,
    pub(crate) dir: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) options: &'a str,
}

impl<'a> Line<'a> {
    /// Of fstab and /proc/mounts, or of a command `mount -t nfs -o OPTIONS SOURCE DIR`.
    pub(crate) fn parse(text: &'a str) -> Option<Line<'a>> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        if let ["mount", words @ ..] = &fields[..] {
            return Self::of_command(words);
        }
        let (source, dir, kind) = match &fields[..] {
            [source, dir, kind, ..] if !source.starts_with('#') => (source, dir, kind),
            _ => return None,
        };
        Some(Line {
            source,
            dir,
            kind,
            options: fields.get(3).unwrap_or(&"defaults"),
        })
    }

    fn of_command(words: &[&'a str]) -> Option<Line<'a>> {
        let (mut kind, mut options, mut names) = ("nfs", "defaults", Vec::new());
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "-t" => kind = words.next()?,
                "-o" => options = words.next()?,
                word if word.starts_with('-') => return None,
                word => names.push(word),
            }
        }
        match names[..] {
            [source, dir] => Some(Line {
                source,
                dir,
                kind,
                options,
            }),
            _ => None,
        }
    }
}

/// A field without its escapes, for the checks.
pub(crate) fn unescaped(field: &str) -> OsString {
    OsString::from_vec(unescape(field.as_bytes()))
}

/// The remedy for a mount that fails because the network is not there yet: its line in fstab
/// does not say that it needs one.
pub(crate) fn lacks_netdev(dir: &Path) -> bool {
    let table = std::fs::read("/etc/fstab").unwrap_or_default();
    needs_netdev(&String::from_utf8_lossy(&table), dir)
}

fn needs_netdev(table: &str, dir: &Path) -> bool {
    table.lines().filter_map(Line::parse).any(|line| {
        matches!(line.kind, "nfsrdma" | "fuse.nfsrdma")
            && Path::new(&unescaped(line.dir)) == dir
            && !split(line.options).iter().any(|word| word == "_netdev")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_without_netdev() {
        let table = "srv:/x /a nfsrdma bg 0 0\nsrv:/x /b nfsrdma _netdev 0 0\n\
                     srv:/x /c nfs bg 0 0\nsrv:/x /e\\134\\040e nfsrdma bg 0 0\n";
        let lacks = |dir: &str| needs_netdev(table, Path::new(dir));
        assert_eq!(
            ["/a", "/b", "/c", "/d", "/e\\ e"].map(lacks),
            [true, false, false, false, true]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text: String) {
            needs_netdev(&text, Path::new("/"));
        }
    }
}
