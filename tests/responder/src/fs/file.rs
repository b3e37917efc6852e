//! READLINK, READ, WRITE, COMMIT (RFC 1813 sections 3.3.5 to 3.3.7 and 3.3.21).

use super::{FileSystem, Identity, Inode, Result, status};
use nfsrdma_rdma::{Buf, BufMut};
use nfsrdma_xdr::codec::Payload;
use nfsrdma_xdr::nfs3::{
    Attributes, CommitArgs, CommitOk, CommitRes, FileType, PATH_MAX, ReadArgs, ReadOk,
    ReadlinkArgs, ReadlinkOk, Reply, Stable, Status, WccData, WriteArgs, WriteOk, WriteRes,
};
use rustix::io::{Errno, ReadWriteFlags};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Allocates memory for read data; `None` if the connection has no more.
pub type Alloc<'a> = &'a dyn Fn(usize) -> Option<BufMut>;

/// A result and its payload, which is in a buffer of its own.
pub type WithPayload<T> = (Reply<T, Option<Attributes>>, Option<Buf>);

/// The type of a file system in memory, in the result of statfs(2).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// A failed result, which has no payload.
fn failed<T>(status: Status, attributes: Option<Attributes>) -> WithPayload<T> {
    (Reply::Fail(status, attributes), None)
}

impl FileSystem {
    pub fn readlink(
        &self,
        args: &ReadlinkArgs,
        alloc: Alloc<'_>,
    ) -> WithPayload<ReadlinkOk<'static>> {
        let inode = match self.resolve(&args.symlink) {
            Ok(inode) => inode,
            Err(status) => return failed(status, None),
        };
        let path = (|| {
            if inode.kind != FileType::Symlink {
                return Err(Status::Inval);
            }
            let path = rustix::fs::readlinkat(inode.fd(), c"", Vec::with_capacity(PATH_MAX))
                .map_err(status::of)?;
            let bytes = path.as_bytes();
            let mut buf = alloc(bytes.len()).ok_or(Status::JukeBox)?;
            buf.copy_from_slice(bytes);
            Ok(buf.freeze())
        })();
        let attributes = self.post(&inode);
        match path {
            Ok(path) => {
                let ok = ReadlinkOk {
                    attributes,
                    path: Payload::Placed(path.len() as u32),
                };
                (Reply::Ok(ok), Some(path))
            }
            Err(status) => failed(status, attributes),
        }
    }

    /// READ. The data goes from the page cache into one buffer of `alloc`.
    pub fn read(
        &self,
        who: &Identity,
        args: &ReadArgs,
        alloc: Alloc<'_>,
    ) -> WithPayload<ReadOk<'static>> {
        let inode = match self.resolve(&args.file) {
            Ok(inode) => inode,
            Err(status) => return failed(status, None),
        };
        let data = self.read_data(who, &inode, args, alloc);
        let attributes = match self.attributes(&inode) {
            Ok(attributes) => attributes,
            Err(status) => return failed(status, None),
        };
        match data {
            Ok(data) => {
                let count = data.len() as u32;
                // eof is decided by the size in the reply. A file that grew after the data was read
                // must not seem to end there.
                let end = args.offset.saturating_add(count.into());
                let short = count < args.count.min(self.settings.rtmax);
                let ok = ReadOk {
                    attributes: Some(attributes),
                    count,
                    eof: end >= attributes.size || (short && count == 0),
                    data: Payload::Placed(count),
                };
                (Reply::Ok(ok), Some(data.freeze()))
            }
            Err(status) => failed(status, Some(attributes)),
        }
    }

    /// Whether the data of a READ is probably in the page cache, judging by its first and its last
    /// byte. Files that are not open for reading count as not cached.
    pub fn is_at_hand(&self, args: &ReadArgs) -> bool {
        let Some(inode) = self.cache.get(&args.file) else {
            return false;
        };
        if !inode.has_reader() {
            return false;
        }
        let Ok(reader) = inode.reader() else {
            return false;
        };
        let last = args.offset.saturating_add(u64::from(args.count.max(1)) - 1);
        [args.offset, last].into_iter().all(|at| {
            let mut byte = [0];
            let into = &mut [IoSliceMut::new(&mut byte)];
            match rustix::io::preadv2(&*reader, into, at, ReadWriteFlags::NOWAIT) {
                // There is no data behind the end.
                Ok(_) => true,
                // A file system in memory does not support RWF_NOWAIT.
                Err(Errno::OPNOTSUPP) => {
                    rustix::fs::fstatfs(&*reader).is_ok_and(|of| of.f_type == TMPFS_MAGIC)
                }
                Err(_) => false,
            }
        })
    }

    fn read_data(
        &self,
        who: &Identity,
        inode: &Inode,
        args: &ReadArgs,
        alloc: Alloc<'_>,
    ) -> Result<BufMut> {
        match inode.kind {
            FileType::Regular => {}
            FileType::Directory => return Err(Status::IsDir),
            _ => return Err(Status::Inval),
        }
        // A user who may execute a file may also read it, since a client has to read it to run it.
        if let Err(status) = self.check(who, inode, libc::R_OK, true) {
            self.check(who, inode, libc::X_OK, false)
                .map_err(|_| status)?;
        }
        let count = args.count.min(self.settings.rtmax) as usize;
        let mut data = alloc(count).ok_or(Status::JukeBox)?;
        if i64::try_from(args.offset.saturating_add(count as u64)).is_err() {
            // The offset is larger than any file: this is the end of the file, and no error.
            data.resize(0);
            return Ok(data);
        }
        let reader = self.reader(inode)?;
        let mut done = 0;
        while done < count {
            match rustix::io::pread(&*reader, &mut data[done..], args.offset + done as u64) {
                Ok(0) => break,
                Ok(read) => {
                    done += read;
                    // A short read most likely means the end. Otherwise, by the size in the reply,
                    // the client asks for the rest (RFC 1813 section 3.3.6).
                    if self.overlay.is_none() {
                        break;
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(status::of(e)),
            }
        }
        if let Some(overlay) = &self.overlay {
            done = overlay.read(inode.handle, args.offset, &mut data, done);
        }
        data.resize(done);
        Ok(data)
    }

    /// WRITE. `data` has the bytes in the pieces in which they were received.
    pub fn write(&self, who: &Identity, args: &WriteArgs<'_>, data: &[&[u8]]) -> WriteRes {
        let inode = match self.resolve(&args.file) {
            Ok(inode) => inode,
            Err(status) => return Reply::Fail(status, WccData::default()),
        };
        let change = self.begin(&inode, true);
        let verifier = self.write_verifier.read();
        let written = self.write_data(who, &inode, args, data);
        // Do not hold the lock while waiting for the disk.
        let wcc = self.end(change, &inode);
        let done = written.and_then(|(fd, count)| {
            match (args.stable, &fd) {
                (Stable::Unstable, _) | (_, None) => {}
                (Stable::DataSync, Some(fd)) => self.syncs.of(|| rustix::fs::fdatasync(fd))?,
                (Stable::FileSync, Some(fd)) => self.syncs.of(|| rustix::fs::fsync(fd))?,
            }
            Ok(count)
        });
        match done {
            Ok(count) => Reply::Ok(WriteOk {
                wcc,
                count,
                committed: args.stable,
                verifier: *verifier,
            }),
            Err(status) => Reply::Fail(status, wcc),
        }
    }

    fn write_data(
        &self,
        who: &Identity,
        inode: &Inode,
        args: &WriteArgs<'_>,
        data: &[&[u8]],
    ) -> Result<(Option<Arc<OwnedFd>>, u32)> {
        if inode.kind != FileType::Regular {
            return Err(Status::Inval);
        }
        let given: usize = data.iter().map(|piece| piece.len()).sum();
        if given < args.count as usize {
            return Err(Status::Inval);
        }
        // Like write(2), this writes the part that fits, and fails if nothing fits.
        let room = self.max_file_size(inode).saturating_sub(args.offset);
        if room == 0 && args.count > 0 {
            return Err(Status::FBig);
        }
        let count = args.count.min(self.settings.wtmax);
        let count = u32::try_from(room).map_or(count, |room| count.min(room));
        let data = first(data, count as usize);
        self.check(who, inode, libc::W_OK, true)?;
        let writer = self.writer(inode)?;
        if let Some(overlay) = &self.overlay {
            if args.stable == Stable::Unstable {
                let held = overlay.write(inode.handle, args.offset, &data);
                if held {
                    return Ok((None, count));
                }
            }
            self.server(|| overlay.flush(inode.handle, &writer).map_err(status::of))?;
        }
        self.assume(who)?;
        write_all(&writer, &data, args.offset)?;
        Ok((Some(writer), count))
    }

    /// COMMIT. It syncs the whole file, which includes the range.
    pub fn commit(&self, args: &CommitArgs) -> CommitRes {
        let inode = match self.resolve(&args.file) {
            Ok(inode) => inode,
            Err(status) => return Reply::Fail(status, WccData::default()),
        };
        let change = self.begin(&inode, true);
        let verifier = self.write_verifier.read();
        let flushed = (|| {
            if inode.kind != FileType::Regular {
                return Err(Status::Inval);
            }
            match &self.overlay {
                Some(overlay) if overlay.holds(inode.handle) => {
                    let writer = self.writer(&inode)?;
                    self.server(|| overlay.flush(inode.handle, &writer).map_err(status::of))?;
                    Ok(writer)
                }
                _ if inode.has_writer() => self.writer(&inode),
                _ => self.reader(&inode).or_else(|_| self.writer(&inode)),
            }
        })();
        let wcc = self.end(change, &inode);
        let done = flushed.and_then(|fd| rustix::fs::fdatasync(&*fd).map_err(status::of));
        match done {
            Ok(()) => Reply::Ok(CommitOk {
                wcc,
                verifier: *verifier,
            }),
            Err(status) => Reply::Fail(status, wcc),
        }
    }

    /// The descriptor for reading, opened with the server's identity, since the caller was checked.
    fn reader(&self, inode: &Inode) -> Result<Arc<OwnedFd>> {
        if !inode.has_reader() {
            self.assume(&Identity::SERVER)?;
        }
        inode.reader()
    }

    /// The descriptor for writing, opened in the same way.
    pub(super) fn writer(&self, inode: &Inode) -> Result<Arc<OwnedFd>> {
        if !inode.has_writer() {
            self.assume(&Identity::SERVER)?;
        }
        inode.writer()
    }
}

/// The first `len` bytes of `pieces`.
fn first<'a>(pieces: &[&'a [u8]], len: usize) -> Vec<&'a [u8]> {
    let mut left = len;
    pieces
        .iter()
        .map(|piece| {
            let part = piece.len().min(left);
            left -= part;
            &piece[..part]
        })
        .filter(|piece| !piece.is_empty())
        .collect()
}

/// Most pieces that the kernel accepts at a time (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

fn write_all(fd: &OwnedFd, data: &[&[u8]], mut offset: u64) -> Result<()> {
    let mut data: Vec<IoSlice<'_>> = data.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut data = &mut data[..];
    while !data.is_empty() {
        let pieces = data.len().min(PIECES_MAX);
        match rustix::io::pwritev(fd, &data[..pieces], offset) {
            Ok(0) => return Err(Status::Io),
            Ok(written) => {
                IoSlice::advance_slices(&mut data, written);
                offset += written as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(status::of(e)),
        }
    }
    Ok(())
}
