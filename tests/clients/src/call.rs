//! The system calls of a run and their results, as lines of text, which are also the protocol of
//! `nfsrdma-clients serve`. Paths are relative and contain neither white space nor `..`.

use anyhow::{Context, Error, Result, bail, ensure};
use std::fmt;
use std::str::FromStr;

/// The longest line.
pub(crate) const LINE_MAX: usize = 1024;
/// Most bytes that a call reads or writes.
pub(crate) const DATA_MAX: usize = 16 << 20;

/// The number of an open file.
pub(crate) type Handle = u32;

/// A path below the directory of an executor, or `.`, the directory itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place(String);

impl Place {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let plain = |name: &str| {
            !name.is_empty()
                && !matches!(name, "." | "..")
                && name.chars().all(|c| c.is_ascii_graphic())
        };
        ensure!(
            text.len() < 256 && (text == "." || text.split('/').all(plain)),
            "not a relative path: {text:?}"
        );
        Ok(Place(text.to_string()))
    }
}

/// A system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    /// open(2) with these flags, and this mode for a new file; then fstat(2).
    Open(Place, i32, u32),
    /// close(2), whose result is checked.
    Close(Handle),
    /// fchown(2) of the group.
    Chown(Handle, u32),
    /// pread(2) at an offset, repeated until all bytes are read or the end is reached.
    Read(Handle, u64, usize),
    /// pwrite(2) of this many equal bytes at an offset.
    Write(Handle, u64, usize, u8),
    /// write(2) of this many equal bytes.
    Append(Handle, usize, u8),
    Fsync(Handle),
    Truncate(Handle, u64),
    /// truncate(2), by path.
    TruncatePath(Place, u64),
    /// Stores of this many equal bytes to a shared mapping of that range, and msync(2).
    Map(Handle, u64, usize, u8),
    /// The names in a directory, one on each line, as the bytes of a read.
    List(Place),
    /// futimens(2), which sets both times, in seconds.
    SetTimes(Handle, i64),
    Fstat(Handle),
    Lstat(Place),
    Rename(Place, Place),
    Link(Place, Place),
    Unlink(Place),
    Mkdir(Place),
    Rmdir(Place),
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Open(path, flags, mode) => write!(f, "open {path} {flags} {mode}"),
            Call::Close(file) => write!(f, "close {file}"),
            Call::Chown(file, group) => write!(f, "chown {file} {group}"),
            Call::Read(file, offset, len) => write!(f, "read {file} {offset} {len}"),
            Call::Write(file, offset, len, value) => {
                write!(f, "write {file} {offset} {len} {value}")
            }
            Call::Append(file, len, value) => write!(f, "append {file} {len} {value}"),
            Call::Fsync(file) => write!(f, "fsync {file}"),
            Call::Truncate(file, size) => write!(f, "truncate {file} {size}"),
            Call::TruncatePath(path, size) => write!(f, "truncatepath {path} {size}"),
            Call::Map(file, offset, len, value) => write!(f, "map {file} {offset} {len} {value}"),
            Call::List(path) => write!(f, "list {path}"),
            Call::SetTimes(file, time) => write!(f, "settimes {file} {time}"),
            Call::Fstat(file) => write!(f, "fstat {file}"),
            Call::Lstat(path) => write!(f, "lstat {path}"),
            Call::Rename(from, to) => write!(f, "rename {from} {to}"),
            Call::Link(from, to) => write!(f, "link {from} {to}"),
            Call::Unlink(path) => write!(f, "unlink {path}"),
            Call::Mkdir(path) => write!(f, "mkdir {path}"),
            Call::Rmdir(path) => write!(f, "rmdir {path}"),
        }
    }
}

/// The words of a line, in order.
struct Words<'a>(std::str::SplitAsciiWhitespace<'a>);

impl Words<'_> {
    fn next<T: FromStr<Err: Into<Error>>>(&mut self) -> Result<T> {
        let word = self.0.next().context("a word is missing")?;
        word.parse().map_err(Into::into)
    }

    fn len(&mut self) -> Result<usize> {
        let len = self.next()?;
        ensure!(len <= DATA_MAX, "{len} bytes are too many");
        Ok(len)
    }
}

impl FromStr for Call {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let mut words = Words(line.split_ascii_whitespace());
        let name: String = words.next()?;
        let call = match name.as_str() {
            "open" => Call::Open(words.next()?, words.next()?, words.next()?),
            "close" => Call::Close(words.next()?),
            "chown" => Call::Chown(words.next()?, words.next()?),
            "read" => Call::Read(words.next()?, words.next()?, words.len()?),
            "write" => Call::Write(words.next()?, words.next()?, words.len()?, words.next()?),
            "append" => Call::Append(words.next()?, words.len()?, words.next()?),
            "fsync" => Call::Fsync(words.next()?),
            "truncate" => Call::Truncate(words.next()?, words.next()?),
            "truncatepath" => Call::TruncatePath(words.next()?, words.next()?),
            "map" => Call::Map(words.next()?, words.next()?, words.len()?, words.next()?),
            "list" => Call::List(words.next()?),
            "settimes" => Call::SetTimes(words.next()?, words.next()?),
            "fstat" => Call::Fstat(words.next()?),
            "lstat" => Call::Lstat(words.next()?),
            "rename" => Call::Rename(words.next()?, words.next()?),
            "link" => Call::Link(words.next()?, words.next()?),
            "unlink" => Call::Unlink(words.next()?),
            "mkdir" => Call::Mkdir(words.next()?),
            "rmdir" => Call::Rmdir(words.next()?),
            _ => bail!("no call is called {name:?}"),
        };
        ensure!(words.0.next().is_none(), "words are left over");
        Ok(call)
    }
}

/// The attributes of a file that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Attributes {
    pub(crate) size: u64,
    pub(crate) mtime: i64,
    pub(crate) group: u32,
}

/// The result of a call, without the bytes of a read, which follow the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Opened(Handle, Attributes),
    Attributes(Attributes),
    Data(usize),
    Failed(i32),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Done => write!(f, "done"),
            Answer::Opened(file, Attributes { size, mtime, group }) => {
                write!(f, "opened {file} {size} {mtime} {group}")
            }
            Answer::Attributes(Attributes { size, mtime, group }) => {
                write!(f, "attributes {size} {mtime} {group}")
            }
            Answer::Data(len) => write!(f, "data {len}"),
            Answer::Failed(errno) => write!(f, "failed {errno}"),
        }
    }
}

impl FromStr for Answer {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let mut words = Words(line.split_ascii_whitespace());
        let attributes = |words: &mut Words<'_>| -> Result<Attributes> {
            Ok(Attributes {
                size: words.next()?,
                mtime: words.next()?,
                group: words.next()?,
            })
        };
        let name: String = words.next()?;
        let answer = match name.as_str() {
            "done" => Answer::Done,
            "opened" => Answer::Opened(words.next()?, attributes(&mut words)?),
            "attributes" => Answer::Attributes(attributes(&mut words)?),
            "data" => Answer::Data(words.len()?),
            "failed" => Answer::Failed(words.next()?),
            _ => bail!("no answer is called {name:?}"),
        };
        ensure!(words.0.next().is_none(), "words are left over");
        Ok(answer)
    }
}
