//! The table of mounts of this mount namespace, /proc/self/mountinfo (proc_pid_mountinfo(5)), and foreign text for a
//! terminal or a log. What mounts and what asks for mounts share; it depends on nothing.

mod text;

pub use text::{is_obeyed, plain};

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The file system type of this program's mounts.
pub const FSTYPE: &str = "fuse.nfsrdma";

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mount {
    /// The mount's ID.
    pub id: u64,
    /// That of the mount that it is on or in.
    pub parent: u64,
    /// `major:minor` of the file system.
    pub device: String,
    /// What of the file system is mounted: a path in it.
    pub root: PathBuf,
    pub dir: PathBuf,
    /// Flags of the mount, `rw,nosuid,...`.
    pub flags: String,
    pub fstype: String,
    pub source: OsString,
    /// `user_id=` of a FUSE mount.
    pub owner: Option<u32>,
}

impl Mount {
    /// Whether it is one of this program.
    pub fn is_ours(&self) -> bool {
        self.fstype == FSTYPE
    }

    /// Whether nobody may write there.
    pub fn is_read_only(&self) -> bool {
        self.flags.split(',').any(|flag| flag == "ro")
    }
}

/// Decodes the octal escapes of a field.
pub fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        let digits = behind
            .get(..3)
            .filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        if let Some(digits) = digits {
            let value = digits
                .iter()
                .fold(0u32, |sum, digit| sum * 8 + u32::from(digit - b'0'));
            plain.push(value as u8);
            rest = &behind[3..];
        } else {
            plain.push(byte);
            rest = behind;
        }
    }
    plain
}

/// Parses the table. Lines that do not have the format are left out.
pub fn parse(table: &[u8]) -> Vec<Mount> {
    table
        .split(|&b| b == b'\n')
        .filter_map(parse_line)
        .collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let device = fields.next()?;
    let (root, dir) = (fields.next()?, fields.next()?);
    let flags = fields.next()?;
    fields.find(|field| *field == b"-")?;
    let fstype = fields.next()?;
    let source = fields.next()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let options = text(fields.next().unwrap_or_default());
    Some(Mount {
        id,
        parent,
        device: text(device),
        root: OsString::from_vec(unescape(root)).into(),
        dir: OsString::from_vec(unescape(dir)).into(),
        flags: text(flags),
        fstype: text(fstype),
        source: OsString::from_vec(unescape(source)),
        owner: options
            .split(',')
            .find_map(|option| option.strip_prefix("user_id=")?.parse().ok()),
    })
}

/// The mounts of this process's namespace. A mount comes after those that it covers.
pub fn all() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The topmost mount on `dir`, which must be absolute and without symbolic links.
pub fn on_top_of(dir: &Path) -> io::Result<Option<Mount>> {
    Ok(all()?.into_iter().rev().find(|mount| mount.dir == dir))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_table() {
        let table = b"\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
broken\n\
40 22\n\
41 22 0:9 /\xff /pods/v rw - tmpfs none rw\n\
42 22 0:51 /export /mnt/a\\040b\\134 ro,nosuid,nodev - fuse.nfsrdma srv:/x\\011y rw,user_id=1000,group_id=0,allow_other\n";
        let mounts = parse(table);
        assert_eq!(mounts.len(), 3);
        assert_eq!(
            mounts[2],
            Mount {
                id: 42,
                parent: 22,
                device: "0:51".into(),
                root: "/export".into(),
                dir: "/mnt/a b\\".into(),
                flags: "ro,nosuid,nodev".into(),
                fstype: "fuse.nfsrdma".into(),
                source: "srv:/x\ty".into(),
                owner: Some(1000),
            }
        );
        assert!(mounts[2].is_ours() && mounts[2].is_read_only());
        assert!(!mounts[0].is_ours() && !mounts[0].is_read_only());
        assert_eq!(mounts[0].owner, None);
    }

    #[test]
    fn what_is_no_escape_stays() {
        assert_eq!(unescape(br"/mnt/a\040b\134040\"), br"/mnt/a b\040\");
        assert_eq!(unescape(br"\9 \04"), br"\9 \04");
    }

    #[test]
    fn this_namespace_has_a_root() {
        assert!(on_top_of(Path::new("/")).unwrap().is_some());
        assert_eq!(on_top_of(Path::new("/no/such/place")).unwrap(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes: Vec<u8>) {
            parse(&bytes);
            unescape(&bytes);
        }
    }
}
