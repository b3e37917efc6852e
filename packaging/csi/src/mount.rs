//! Mounts: what the kernel says of them, and the program that makes and ends them.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tonic::{Code, Status};

/// The type of our mounts.
const FSTYPE: &str = "fuse.nfsrdma";

/// A mount of the table of mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub dir: PathBuf,
    pub source: OsString,
    pub fstype: String,
    pub read_only: bool,
}

impl Mount {
    pub(crate) fn is_ours(&self) -> bool {
        self.fstype == FSTYPE
    }
}

/// The mounts that this process sees, later ones after those that they cover.
pub(crate) fn mounts() -> io::Result<Vec<Mount>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(all_in(&table))
}

/// The mounts in a table. A container may have given any name to a directory of which a part is mounted; what is asked
/// for is text always.
fn all_in(table: &[u8]) -> Vec<Mount> {
    let table = String::from_utf8_lossy(table);
    table.lines().filter_map(parse).collect()
}

/// The mount on top of a directory.
pub(crate) fn on(dir: &Path) -> io::Result<Option<Mount>> {
    Ok(mounts()?.into_iter().rfind(|mount| mount.dir == dir))
}

/// A line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
fn parse(line: &str) -> Option<Mount> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(4);
    let (dir, options) = (mount.next()?, mount.next()?);
    let mut file_system = file_system.split(' ');
    let (fstype, source) = (file_system.next()?, file_system.next()?);
    Some(Mount {
        dir: unescape(dir).into(),
        source: unescape(source),
        fstype: fstype.to_owned(),
        read_only: options.split(',').any(|option| option == "ro"),
    })
}

/// Replaces `\ooo` by the byte with that octal number.
fn unescape(text: &str) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        bytes.extend(before.bytes());
        let number = after
            .get(..3)
            .and_then(|octal| u8::from_str_radix(octal, 8).ok());
        (bytes, rest) = match number {
            Some(byte) => (with(bytes, byte), &after[3..]),
            None => (with(bytes, b'\\'), after),
        };
    }
    bytes.extend(rest.bytes());
    OsString::from_vec(bytes)
}

fn with(mut bytes: Vec<u8>, byte: u8) -> Vec<u8> {
    bytes.push(byte);
    bytes
}

/// The program `nfsrdma`, and the options of each mount.
#[derive(Debug)]
pub(crate) struct Mounter {
    words: Vec<String>,
    options: String,
}

impl Mounter {
    pub(crate) fn new(program: &str, options: &str) -> Mounter {
        Mounter {
            words: program.split_whitespace().map(str::to_owned).collect(),
            options: options.to_owned(),
        }
    }

    /// The options of each mount.
    pub(crate) fn options(&self) -> &str {
        &self.options
    }

    /// Fails if the program cannot be started.
    pub(crate) fn works(&self) -> Result<(), Status> {
        self.done(&["--version".as_ref()])
    }

    /// Mounts, and returns when the mount works. The program goes on by itself, in a session of its own. A dead mount
    /// on the directory is replaced.
    pub(crate) fn mount<'a>(
        &self,
        source: &str,
        dir: &Path,
        options: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), Status> {
        let mut all = self.options.clone();
        for option in options {
            all = format!("{all},{option}");
        }
        // The orchestrator tries again, and wants to know soon why it does not work.
        if !all.contains("retry=") {
            all = format!("retry=0,{all}");
        }
        // Empty ones are passed over.
        self.done(&[
            "mount".as_ref(),
            source.as_ref(),
            dir.as_ref(),
            "-o".as_ref(),
            all.as_ref(),
        ])?;
        // By `nofail` the program says nothing of a mount that failed, and without propagation it is seen by nobody here.
        match on(dir) {
            Ok(Some(mount)) if mount.is_ours() && mount.source == *source => Ok(()),
            _ => Err(Status::unavailable(format!(
                "{source} is not mounted on {}: leave out 'nofail', and see that the driver sees mounts of its host",
                dir.display()
            ))),
        }
    }

    /// Writes everything back and unmounts.
    pub(crate) fn unmount(&self, dir: &Path) -> Result<(), Status> {
        self.done(&["umount".as_ref(), dir.as_ref()])
    }

    fn done(&self, words: &[&std::ffi::OsStr]) -> Result<(), Status> {
        let output = self.run(words).map_err(|error| {
            let name = self.words.first().map_or("", String::as_str);
            Status::internal(format!("{name} cannot be run: {error}"))
        })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        // Exit statuses of mount(8).
        let code = match output.status.code() {
            Some(1) => Code::InvalidArgument,
            Some(2) => Code::FailedPrecondition,
            _ => Code::Internal,
        };
        Err(Status::new(code, one_line(&said)))
    }

    fn run(&self, words: &[&std::ffi::OsStr]) -> io::Result<Output> {
        let (name, more) = self.words.split_first().ok_or(io::ErrorKind::NotFound)?;
        Command::new(name)
            .args(more)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output()
    }
}

/// What the program said, without its name.
fn one_line(said: &str) -> String {
    let lines = said.lines().map(|line| {
        let line = line.trim();
        line.strip_prefix("nfsrdma: ").unwrap_or(line)
    });
    let text = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>();
    match text.is_empty() {
        true => "nfsrdma failed and did not say why: look into the log of the node".to_owned(),
        false => text.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_read_from_its_line() {
        let line =
            "40 22 0:51 / /mnt/a\\040b\\134 ro,nosuid - fuse.nfsrdma srv:/x\\011y rw,allow_other";
        let expected = Mount {
            dir: "/mnt/a b\\".into(),
            source: "srv:/x\ty".into(),
            fstype: "fuse.nfsrdma".into(),
            read_only: true,
        };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse("40 22 0:51 / /mnt"), None);
        let table = [
            b"41 22 0:9 /\xff /pods/v rw - tmpfs none rw\n",
            line.as_bytes(),
        ]
        .concat();
        let found: Vec<_> = all_in(&table)
            .into_iter()
            .map(|mount| mount.fstype)
            .collect();
        assert_eq!(found, ["tmpfs", "fuse.nfsrdma"]);
        assert_eq!(unescape("a\\9\\04"), "a\\9\\04");
        assert_eq!(unescape("é\\é"), "é\\é");
    }

    #[test]
    fn what_the_program_said_becomes_one_line() {
        assert_eq!(one_line("nfsrdma: no\n  more\n"), "no; more");
        assert!(one_line("\n").contains("look into the log"));
    }
}
