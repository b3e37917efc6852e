//! Executes the system calls of an actor: in a directory, by this process, or over a TCP
//! connection, by another one that may be on another machine (`nfsrdma-clients serve`).

use crate::call::{Answer, Attributes, Call, DATA_MAX, Handle, LINE_MAX, Place};
use crate::map;
use anyhow::{Context, Result};
use nix::libc;
use nix::sys::time::TimeSpec;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most files that one connection may have open.
const FILES_MAX: usize = 64;
/// The time limit for connecting.
const CONNECT: Duration = Duration::from_secs(20);

/// Makes system calls in a directory of this machine, from any thread.
#[derive(Debug)]
pub(crate) struct Local {
    root: PathBuf,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    open: BTreeMap<Handle, Arc<File>>,
    opened: Handle,
}

fn attributes(metadata: &fs::Metadata) -> Attributes {
    Attributes {
        size: metadata.size(),
        mtime: metadata.mtime(),
        group: metadata.gid(),
    }
}

fn os_error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl Local {
    pub(crate) fn new(root: &Path) -> Self {
        Local {
            root: root.to_path_buf(),
            files: Mutex::default(),
        }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, place: &Place) -> PathBuf {
        self.root.join(place.as_str())
    }

    fn file(&self, file: Handle) -> io::Result<Arc<File>> {
        let found = self.files().open.get(&file).cloned();
        found.ok_or_else(|| os_error(libc::EBADF))
    }

    fn open(&self, place: &Place, flags: i32, mode: u32) -> io::Result<Answer> {
        if self.files().open.len() >= FILES_MAX {
            return Err(os_error(libc::EMFILE));
        }
        let access = flags & libc::O_ACCMODE;
        let file = OpenOptions::new()
            .read(access != libc::O_WRONLY)
            .write(access != libc::O_RDONLY)
            .custom_flags(flags & !libc::O_ACCMODE)
            .mode(mode)
            .open(self.path(place))?;
        let attributes = attributes(&file.metadata()?);
        let mut files = self.files();
        files.opened = files.opened.wrapping_add(1);
        let number = files.opened;
        files.open.insert(number, Arc::new(file));
        Ok(Answer::Opened(number, attributes))
    }

    /// close(2) of a descriptor that no other call is using.
    fn close(&self, file: Handle) -> io::Result<()> {
        let found = self.files().open.remove(&file);
        let found = found.ok_or_else(|| os_error(libc::EBADF))?;
        let file = Arc::try_unwrap(found).map_err(|_| os_error(libc::EBUSY))?;
        nix::unistd::close(file)?;
        Ok(())
    }

    /// Executes a call. `data` gets the bytes of a read.
    pub(crate) fn call(&self, call: &Call, data: &mut Vec<u8>) -> io::Result<Answer> {
        match call {
            Call::Open(place, flags, mode) => return self.open(place, *flags, *mode),
            Call::Close(file) => self.close(*file)?,
            Call::Chown(file, group) => {
                std::os::unix::fs::fchown(self.file(*file)?, None, Some(*group))?;
            }
            Call::Read(file, offset, len) => {
                let file = self.file(*file)?;
                data.resize((*len).min(DATA_MAX), 0);
                let mut done = 0;
                while done < data.len() {
                    match file.read_at(&mut data[done..], offset + done as u64)? {
                        0 => break,
                        n => done += n,
                    }
                }
                data.truncate(done);
                return Ok(Answer::Data(done));
            }
            Call::Write(file, offset, len, value) => {
                self.file(*file)?
                    .write_all_at(&vec![*value; *len], *offset)?;
            }
            Call::Append(file, len, value) => {
                (&*self.file(*file)?).write_all(&vec![*value; *len])?;
            }
            Call::Fsync(file) => self.file(*file)?.sync_all()?,
            Call::Truncate(file, size) => self.file(*file)?.set_len(*size)?,
            Call::TruncatePath(place, size) => {
                nix::unistd::truncate(&self.path(place), *size as i64)?;
            }
            Call::Map(file, offset, len, value) => {
                map::write(&*self.file(*file)?, *offset, &vec![*value; *len])?;
            }
            Call::List(place) => {
                for entry in fs::read_dir(self.path(place))? {
                    data.extend_from_slice(entry?.file_name().as_bytes());
                    data.push(b'\n');
                }
                return Ok(Answer::Data(data.len()));
            }
            Call::SetTimes(file, time) => {
                let time = TimeSpec::new(*time, 0);
                nix::sys::stat::futimens(self.file(*file)?.as_fd(), &time, &time)?;
            }
            Call::Fstat(file) => {
                let metadata = self.file(*file)?.metadata()?;
                return Ok(Answer::Attributes(attributes(&metadata)));
            }
            Call::Lstat(place) => {
                let metadata = fs::symlink_metadata(self.path(place))?;
                return Ok(Answer::Attributes(attributes(&metadata)));
            }
            Call::Rename(from, to) => fs::rename(self.path(from), self.path(to))?,
            Call::Link(from, to) => fs::hard_link(self.path(from), self.path(to))?,
            Call::Unlink(place) => fs::remove_file(self.path(place))?,
            Call::Mkdir(place) => fs::create_dir(self.path(place))?,
            Call::Rmdir(place) => fs::remove_dir(self.path(place))?,
        }
        Ok(Answer::Done)
    }
}

/// Executes system calls by `nfsrdma-clients serve`.
#[derive(Debug)]
pub(crate) struct Remote(BufReader<TcpStream>);

/// An error of the connection, which has no errno, and so differs from errors of calls.
fn connection(error: impl Display) -> io::Error {
    io::Error::other(format!("the executor's connection: {error}"))
}

impl Remote {
    /// Connects to `HOST:PORT`. `limit` is the longest time for a call.
    pub(crate) fn connect(address: &str, limit: Duration) -> Result<Self> {
        let mut last = anyhow::anyhow!("{address} has no address");
        for address in std::net::ToSocketAddrs::to_socket_addrs(address)? {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(limit))?;
                    stream.set_write_timeout(Some(limit))?;
                    return Ok(Remote(BufReader::new(stream)));
                }
                Err(error) => last = error.into(),
            }
        }
        Err(last.context(format!("connecting to {address}")))
    }

    fn call(&mut self, call: &Call, data: &mut Vec<u8>) -> io::Result<Answer> {
        let stream = self.0.get_mut();
        stream
            .write_all(format!("{call}\n").as_bytes())
            .map_err(connection)?;
        let line = read_line(&mut self.0).map_err(connection)?;
        let answer: Answer = line
            .ok_or_else(|| connection("it ended"))?
            .parse()
            .map_err(connection)?;
        match answer {
            Answer::Failed(number) => return Err(os_error(number)),
            Answer::Data(len) => {
                data.resize(len, 0);
                self.0.read_exact(data).map_err(connection)?;
            }
            _ => {}
        }
        Ok(answer)
    }
}

/// Reads a line of bounded length, without its end; `None` at the end of the stream.
fn read_line(from: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let n = from.take(LINE_MAX as u64).read_line(&mut line)?;
    match line.strip_suffix('\n') {
        Some(line) => Ok(Some(line.to_string())),
        None if n == 0 => Ok(None),
        None => Err(io::Error::other("a line without end")),
    }
}

/// Serves calls in `dir` to connections to `listener`, one after the other, for ever.
pub(crate) fn serve(listener: &TcpListener, dir: &Path) -> Result<()> {
    loop {
        let (stream, peer) = listener.accept().context("accept")?;
        // The files of a connection are closed when it ends.
        if let Err(error) = serve_one(stream, Local::new(dir)) {
            eprintln!("nfsrdma-clients: {peer}: {error:#}");
        }
    }
}

fn serve_one(stream: TcpStream, local: Local) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut data = Vec::new();
    while let Some(line) = read_line(&mut stream)? {
        let call: Call = line.parse().with_context(|| format!("{line:?}"))?;
        data.clear();
        let answer = local.call(&call, &mut data).unwrap_or_else(|error| {
            data.clear();
            Answer::Failed(error.raw_os_error().unwrap_or(libc::EIO))
        });
        let stream = stream.get_mut();
        stream.write_all(format!("{answer}\n").as_bytes())?;
        stream.write_all(&data)?;
    }
    Ok(())
}

/// A local or a remote executor.
#[derive(Debug)]
pub(crate) enum Executor {
    Local(Arc<Local>),
    Remote(Remote),
}

impl Executor {
    pub(crate) fn local(root: &Path) -> Self {
        Executor::Local(Arc::new(Local::new(root)))
    }

    fn call(&mut self, call: &Call, data: &mut Vec<u8>) -> io::Result<Answer> {
        data.clear();
        match self {
            Executor::Local(local) => local.call(call, data),
            Executor::Remote(remote) => remote.call(call, data),
        }
    }

    /// Executes a call that returns nothing but its success.
    pub(crate) fn run(&mut self, call: &Call) -> io::Result<()> {
        self.call(call, &mut Vec::new()).map(|_| ())
    }

    pub(crate) fn open(
        &mut self,
        place: Place,
        flags: i32,
        mode: u32,
    ) -> io::Result<(Handle, Attributes)> {
        match self.call(&Call::Open(place, flags, mode), &mut Vec::new())? {
            Answer::Opened(file, attributes) => Ok((file, attributes)),
            other => Err(connection(other)),
        }
    }

    pub(crate) fn read(&mut self, file: Handle, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut data = Vec::new();
        self.call(&Call::Read(file, offset, len), &mut data)?;
        Ok(data)
    }

    /// The names in a directory.
    pub(crate) fn list(&mut self, place: Place) -> io::Result<Vec<String>> {
        let mut data = Vec::new();
        self.call(&Call::List(place), &mut data)?;
        let names = String::from_utf8_lossy(&data);
        Ok(names.lines().map(str::to_string).collect())
    }

    pub(crate) fn attributes(&mut self, call: &Call) -> io::Result<Attributes> {
        match self.call(call, &mut Vec::new())? {
            Answer::Attributes(attributes) => Ok(attributes),
            other => Err(connection(other)),
        }
    }
}
