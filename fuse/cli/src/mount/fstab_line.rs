//! Parses lines of fstab(5) and /proc/mounts, and commands of mount(8). They are bytes, because
//! file names have no character set.

use crate::mounts::{escape, unescape};
use crate::options::split;
use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// The fields of a line that this program uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub(crate) source: Cow<'a, [u8]>,
    pub(crate) dir: Cow<'a, [u8]>,
    pub(crate) kind: &'a [u8],
    pub(crate) options: Cow<'a, [u8]>,
}

/// The words of a line.
pub(crate) fn words(text: &[u8]) -> Vec<&[u8]> {
    text.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .collect()
}

/// The words after `mount`, `sudo mount` or `/sbin/mount.nfs`, if the line begins like that.
pub(crate) fn arguments<'w, 'a>(words: &'w [&'a [u8]]) -> Option<&'w [&'a [u8]]> {
    let (command, rest) = match words {
        [b"sudo", command, rest @ ..] | [command, rest @ ..] => (command, rest),
        [] => return None,
    };
    // Only an absolute path is a command: `srv:/mount` is a source.
    let name = match command.strip_prefix(b"/") {
        Some(path) => path.rsplit(|&byte| byte == b'/').next()?,
        None => command,
    };
    matches!(name, b"mount" | b"mount.nfs" | b"mount.nfs4").then_some(rest)
}

impl<'a> Line<'a> {
    /// Parses a line of fstab or /proc/mounts, or a command `mount -t nfs -o OPTIONS SOURCE DIR`.
    pub(crate) fn parse(text: &'a [u8]) -> Option<Line<'a>> {
        let fields = words(text);
        if let Some(words) = arguments(&fields) {
            return Self::of_command(words, false);
        }
        let (source, dir, kind) = match &fields[..] {
            [source, dir, kind, ..] if !source.starts_with(b"#") => (*source, *dir, *kind),
            _ => return None,
        };
        Some(Line {
            source: source.into(),
            dir: dir.into(),
            kind,
            options: fields.get(3).copied().unwrap_or(b"defaults").into(),
        })
    }

    /// Parses the words after `mount`. With `plain`, they are words that a shell has passed,
    /// without octal escapes. `None` if they do not mount a source on a directory.
    pub(crate) fn of_command(words: &[&'a [u8]], plain: bool) -> Option<Line<'a>> {
        let (mut kind, mut options, mut names) = (&b"nfs"[..], Vec::new(), Vec::new());
        let (mut source, mut target) = (None, None);
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            if let Some(long) = word.strip_prefix(b"--") {
                let (name, value) = match long.iter().position(|&byte| byte == b'=') {
                    Some(at) => (&long[..at], Some(&long[at + 1..])),
                    None => (long, None),
                };
                match name {
                    b"" => names.extend(words.by_ref()),
                    b"types" => kind = value.or_else(|| words.next())?,
                    b"options" => options.push(value.or_else(|| words.next())?),
                    b"source" => source = Some(value.or_else(|| words.next())?),
                    b"target" => target = Some(value.or_else(|| words.next())?),
                    b"read-only" => options.push(b"ro"),
                    b"read-write" | b"rw" => options.push(b"rw"),
                    b"verbose" | b"no-mtab" | b"fake" => {}
                    _ => return None,
                }
                continue;
            }
            let Some(mut letters) = word.strip_prefix(b"-").filter(|rest| !rest.is_empty()) else {
                names.push(word);
                continue;
            };
            while let Some((letter, rest)) = letters.split_first() {
                letters = rest;
                match letter {
                    b't' | b'o' => {
                        let value = match rest {
                            [] => words.next()?,
                            attached => attached,
                        };
                        match letter {
                            b't' => kind = value,
                            _ => options.push(value),
                        }
                        break;
                    }
                    b'r' => options.push(b"ro"),
                    b'w' => options.push(b"rw"),
                    b's' => options.push(b"sloppy"),
                    b'v' | b'n' | b'f' => {}
                    _ => return None,
                }
            }
        }
        let (source, dir) = match (source, target, &names[..]) {
            (Some(source), Some(dir), []) => (source, dir),
            (Some(source), None, [dir]) => (source, *dir),
            (None, Some(dir), [source]) => (*source, dir),
            (None, None, [source, dir]) => (*source, *dir),
            _ => return None,
        };
        let field = |name: &'a [u8]| match plain {
            true => Cow::Owned(escape(name)),
            false => Cow::Borrowed(name),
        };
        // mount(8) joins all `-o` in their order.
        let options = match options.is_empty() {
            true => b"defaults".to_vec(),
            false => options.join(&b","[..]),
        };
        Some(Line {
            source: field(source),
            dir: field(dir),
            kind,
            options: options.into(),
        })
    }
}

/// Decodes the octal escapes of a field.
pub(crate) fn unescaped(field: &[u8]) -> OsString {
    OsString::from_vec(unescape(field))
}

/// Whether the line in fstab for `dir` lacks `_netdev`, so that the system may mount it before the
/// network is up.
pub(crate) fn lacks_netdev(dir: &Path) -> bool {
    needs_netdev(&std::fs::read("/etc/fstab").unwrap_or_default(), dir)
}

fn needs_netdev(table: &[u8], dir: &Path) -> bool {
    let lines = table.split(|&byte| byte == b'\n');
    lines.filter_map(Line::parse).any(|line| {
        matches!(line.kind, b"nfsrdma" | b"fuse.nfsrdma")
            && Path::new(&unescaped(&line.dir)) == dir
            && !split(&String::from_utf8_lossy(&line.options))
                .iter()
                .any(|word| word == "_netdev")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_without_netdev() {
        let table = b"srv:/x /a nfsrdma bg 0 0\nsrv:/x /b nfsrdma _netdev 0 0\n# \xe9\n\
                      srv:/x /c nfs bg 0 0\nsrv:/x /e\\134\\040e nfsrdma bg 0 0\n";
        let lacks = |dir: &str| needs_netdev(table, Path::new(dir));
        assert_eq!(
            ["/a", "/b", "/c", "/d", "/e\\ e"].map(lacks),
            [true, false, false, false, true]
        );
    }

    #[test]
    fn commands() {
        let options = |text: &str| {
            let line = Line::parse(text.as_bytes())?;
            assert_eq!((&*line.source, &*line.dir), (&b"s:/x"[..], &b"/m"[..]));
            assert_eq!(line.kind, b"nfs");
            String::from_utf8(line.options.into_owned()).ok()
        };
        for (command, wanted) in [
            ("mount s:/x /m", "defaults"),
            ("mount -o a -o b s:/x /m -o c", "a,b,c"),
            ("sudo mount -oro -r s:/x -wv /m", "ro,ro,rw"),
            ("/sbin/mount.nfs s:/x /m -o a", "a"),
            ("mount --options a --options=b -vo c -tnfs s:/x /m", "a,b,c"),
            ("mount s:/x /m --types nfs -rsnf", "ro,sloppy"),
            ("mount --read-only --source s:/x --target=/m -v", "ro"),
            ("mount --target /m -w s:/x", "rw"),
            ("mount --source=s:/x /m", "defaults"),
            ("mount -- s:/x /m", "defaults"),
        ] {
            assert_eq!(options(command).as_deref(), Some(wanted), "{command}");
        }
        for command in [
            "mount",
            "sudo",
            "mount s:/x",
            "mount -o",
            "mount --bind s:/x /m",
            "mount -B s:/x /m",
            "mount s:/x /m /n",
            "mount s:/x /m --target /n",
            "mount - s:/x /m /n",
        ] {
            assert_eq!(Line::parse(command.as_bytes()), None, "{command}");
        }
        let line = Line::parse(b"s:/mount /m nfs rdma");
        assert_eq!(line.map(|line| line.source), Some(b"s:/mount"[..].into()));
        let words: [&[u8]; 2] = [b"s:/a b", b"/m\\x"];
        let line = Line::of_command(&words, true).unwrap();
        assert_eq!(
            (&*line.source, &*line.dir),
            (&b"s:/a\\040b"[..], &b"/m\\134x"[..])
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(text: Vec<u8>, command: bool) {
            let text = if command { [b"mount ", &text[..]].concat() } else { text };
            needs_netdev(&text, Path::new("/"));
        }
    }
}
