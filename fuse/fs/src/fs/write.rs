//! WRITE: from a program's write(2) into the page cache, and from there to the server.
//!
//! A buffered write is copied into blocks of the cache and answered at once (`write_cached`). `write` waits where that is
//! impossible: the limit of dirty memory is reached, the buffer pool is empty, the file is being flushed, or it has another
//! user's data that is not on stable storage. From there `flush.rs` sends it. If that fails, the error is recorded in the
//! file, to be returned by the next write(2), fsync(2) or close(2) of each open file ([`super::err_seq`]).
//! O_DIRECT writes bypass the cache ([`super::direct_write`]).
//!
//! An append goes to the end of the file. If its request comes again because the process that got it first
//! has died, it goes to where that process has put it, as the record of the open file says.

use super::changing::not_abandoned;
use super::err_seq::By;
use super::error::{FsError, FsResult};
use super::file::FileState;
use super::objects::Objects;
use super::open_file::OpenFile;
use super::outdated::size_with;
use super::under_way::Doing;
use crate::cache::{Accepted, Goal, WriteData};
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rpcrdma::abandon::{is_resent, number};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::MutexGuard;

/// Where the kernel has data from that it wants written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin {
    /// A write(2), with the flags of the open file.
    Call(i32),
    /// Pages of a mapping.
    Mapping,
}

/// Where data is put into the file.
#[derive(Debug, Clone, Copy)]
enum Place {
    At(u64),
    /// At the end of the file.
    End,
    /// Pages of a mapping, which never make the file longer.
    Mapped(u64),
}

impl Place {
    /// For data that the kernel wants written at `offset`.
    fn of(origin: Origin, offset: u64) -> Self {
        match origin {
            Origin::Call(flags) if flags & libc::O_APPEND != 0 => Place::End,
            Origin::Call(_) => Place::At(offset),
            Origin::Mapping => Place::Mapped(offset),
        }
    }
}

/// What became of data that was to be put into the cache.
struct Put {
    accepted: Accepted,
    /// How much of it fits into the server's largest file.
    len: usize,
    /// Whether there was anything to store: nothing of a mapped page behind the end of the file.
    stored: bool,
}

impl<N: Nfs3> Objects<N> {
    /// Writes into the cache if there is room; `None` if [`Objects::write`] has to be called.
    ///
    /// The kernel's offset of an append is not used. The kernel computes it from the size that it
    /// was last given and from its own writes. But others may have appended or truncated since, and own
    /// writes may have been moved for that reason.
    pub fn write_cached<'a>(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        data: impl Into<WriteData<'a>>,
        flags: i32,
    ) -> Option<FsResult<u32>> {
        let file = self.files.get(handle)?;
        let waits = OpenFile::is_direct(flags) || file.is_sync() || self.config.sync;
        let lacks = self.shared.ticketless.why(&file.cred).is_some();
        if waits || lacks || file.error(By::Write).is_some() {
            return None;
        }
        self.check_locks(&file, handle).ok()?;
        let place = Place::of(Origin::Call(flags), offset);
        if let Place::At(_) = place {
            file.inode.state.lock().attributes()?;
        }
        let result = self.put_now(&file, place, data.into())?;
        if let Ok(len) = result {
            accepted(&file, offset, len);
        }
        Some(result)
    }

    /// As [`Objects::write_cached`], for pages of a mapping. `None` also if the kernel's guess may be wrong,
    /// because there are other open files.
    pub fn write_mapped_cached<'a>(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        data: impl Into<WriteData<'a>>,
    ) -> Option<FsResult<u32>> {
        let file = self.files.get(handle)?;
        let is_only_one = file.inode.opens.load(Ordering::Relaxed) <= 1;
        if !is_only_one || file.is_sync() || self.config.sync {
            return None;
        }
        self.check_locks(&file, handle).ok()?;
        self.put_now(&file, Place::Mapped(offset), data.into())
    }

    /// Puts data into the cache if there is room now.
    fn put_now(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        place: Place,
        data: WriteData<'_>,
    ) -> Option<FsResult<u32>> {
        match self.put(file, place, data, None) {
            Ok(put) => put
                .filter(|put| put.accepted == Accepted::All)
                .map(|put| Ok(put.len as u32)),
            Err(error) => Some(Err(error)),
        }
    }

    /// Writes into the cache, waiting for room; or to the server at once, for O_DIRECT and O_SYNC.
    ///
    /// Where a write ends with the data on stable storage, errors are reported as by
    /// [`Objects::fsync`]; `gets` is as there.
    pub async fn write<'a>(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        data: impl Into<WriteData<'a>>,
        flags: i32,
        mut gets: impl FnMut() -> bool,
    ) -> FsResult<u32> {
        let data = data.into();
        let file = self.file(handle)?;
        self.check_locks(&file, handle)?;
        if !OpenFile::is_direct(flags) {
            self.has_ticket(&file).await?;
            self.report_to_write(&file, &mut gets).await?;
        }
        let origin = Origin::Call(flags);
        let len = self.write_by(&file, offset, data, origin).await?;
        if !OpenFile::is_direct(flags) && (file.is_sync() || self.config.sync) {
            self.sync_written(&file, gets).await?;
        }
        accepted(&file, offset, len);
        Ok(len)
    }

    /// Writes with the credential of whoever opened `file`.
    pub(super) async fn write_by(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        mut offset: u64,
        given: WriteData<'_>,
        mut origin: Origin,
    ) -> FsResult<u32> {
        let inode = &file.inode;
        if let Origin::Call(flags) = origin
            && flags & libc::O_APPEND != 0
            && is_resent()
            && let Some(at) = number().and_then(|request| file.record.appended(request))
        {
            offset = at;
            origin = Origin::Call(flags & !libc::O_APPEND);
        }
        let has = |flag| matches!(origin, Origin::Call(flags) if flags & flag != 0);
        let direct = has(libc::O_DIRECT);
        if direct || !has(libc::O_APPEND) {
            self.attributes_or_fetch(&file.cred, inode).await?;
        }
        if direct {
            self.write_direct(file, offset, given).await?;
            return Ok(given.len() as u32);
        }
        let data = self.data(inode);
        let mut looks = 0;
        let mut turn: Option<MutexGuard<'_, ()>> = None;
        // What is stored already, because there was not memory for all at once.
        let mut stored = 0;
        let mut asked = None;
        let written = loop {
            let changed = data.changed.notified();
            let freed = self.shared.freed.notified();
            let place = Place::of(origin, offset + stored as u64);
            let rest = given.after(stored);
            let Some(put) = self.put(file, place, rest, asked.take())? else {
                turn = None;
                asked = Some(self.fetch(&file.cred, inode).await?.size);
                continue;
            };
            if put.accepted != Accepted::Full {
                // The next writer may find room, whatever this one waits for.
                turn = None;
            }
            match put.accepted {
                Accepted::All => break stored + put.len,
                Accepted::OtherUser => self.write_back_for(&file.cred, inode, true).await?,
                waits @ (Accepted::Wait | Accepted::Full | Accepted::Short(_)) => {
                    if let Accepted::Short(more) = waits {
                        stored += more;
                    }
                    if data.with(|inner| self.no_ticket(inner)).is_some() {
                        // There will be no room in this file before there is a ticket.
                        self.write_back_for(&file.cred, inode, true).await?;
                        continue;
                    }
                    self.shared.stats.write_waits.add(1);
                    self.start_writes(inode, data, Goal::Started);
                    self.relieve();
                    // Otherwise nothing is left to wait for: another writer had the room.
                    let waits_for_some = self.is_busy() || data.with(|inner| inner.keeps_writers());
                    match (waits, &turn) {
                        (Accepted::Short(_), _) => {
                            if !self.memory_may_come_back(freed, &mut looks).await {
                                return Err(FsError::NoMemory);
                            }
                        }
                        _ if !waits_for_some => {}
                        (Accepted::Full, Some(_)) => self.shared.room.notified().await,
                        (Accepted::Full, None) => turn = Some(self.shared.writers.lock().await),
                        _ => changed.await,
                    }
                }
            }
        };
        Ok(written as u32)
    }

    /// Puts data into the cache, and starts full WRITEs. `None`: it is to be called again with the size
    /// that the server is `asked` for, because the known one may be out of date.
    ///
    /// Of pages of a mapping, what lies behind the end of the file is left out. The kernel sends
    /// none, but a truncation (O_TRUNC, for which the kernel does not wait for pages that are being
    /// written) may have been carried out since.
    fn put(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        place: Place,
        given: WriteData<'_>,
        asked: Option<u64>,
    ) -> FsResult<Option<Put>> {
        let inode = &file.inode;
        let data = self.data(inode);
        self.shared.budget.make_room(given.len() + 2 * 4096);
        let dirty = self.shared.dirty.load(Ordering::Relaxed);
        if dirty > 0 && dirty + given.len() > self.config.dirty_bytes {
            return Ok(Some(Put {
                accepted: Accepted::Full,
                len: given.len(),
                stored: false,
            }));
        }
        let mut recorded = false;
        let put = data.with(|inner| -> FsResult<Option<Put>> {
            self.not_ended()?;
            // Checked under the lock, so that a truncation by a later call comes after this data.
            not_abandoned()?;
            let offset = match place {
                Place::At(offset) | Place::Mapped(offset) => offset,
                Place::End => match self.end_to_append(inner, file, asked) {
                    Some(end) => end,
                    None => return Ok(None),
                },
            };
            let given = self.below_the_limit(offset, given)?;
            let len = given.len();
            let put = |accepted, stored| {
                Ok(Some(Put {
                    accepted,
                    len,
                    stored,
                }))
            };
            let result = |accepted| put(accepted, true);
            let mapped = matches!(place, Place::Mapped(_));
            let given = match mapped {
                false => given,
                // What comes before a SETATTR or after it does not change.
                true if inner.under_way().any(|doing| doing == Doing::Setattr) => {
                    return result(Accepted::Wait);
                }
                true => {
                    let room = size_with(inner, inode).unwrap_or(0).saturating_sub(offset);
                    if asked.is_none() && room < len as u64 {
                        return Ok(None);
                    }
                    given.first(usize::try_from(room).unwrap_or(usize::MAX))
                }
            };
            if given.is_empty() {
                return put(Accepted::All, false);
            }
            let end = offset + given.len() as u64;
            // This data comes later than that of an O_DIRECT write under way, as of a program that was
            // killed, and must overwrite it.
            if inner.is_written_direct(&(offset..end)) {
                return result(Accepted::Wait);
            }
            let accepted = self.store(inner, file, place, offset, given);
            if matches!(accepted, Accepted::All | Accepted::Short(1..)) {
                inner.void_reads(offset..end);
                recorded = inner.pages().outlives();
            }
            result(accepted)
        })?;
        if let Some(put) = put.as_ref().filter(|put| put.stored) {
            self.was_put(file, put, recorded);
        }
        Ok(put)
    }

    /// Data gets into the cache, which is locked.
    fn store(
        &self,
        inner: &mut FileState,
        file: &OpenFile,
        place: Place,
        offset: u64,
        given: WriteData<'_>,
    ) -> Accepted {
        let now = self.now();
        let most = self.config.dirty_file_bytes;
        let mut alloc = |len| self.pool.alloc(len);
        let write_back = inner.write_back();
        let ended_at = write_back.end();
        let cred = &file.cred;
        match place {
            // The kernel waits for these pages, and with it, uninterruptibly, a program that closes
            // the file: a flush that the server does not answer must not keep that.
            Place::Mapped(_) => {
                return write_back.write_late(cred, offset, given, now, most, &mut alloc);
            }
            Place::At(_) => return write_back.write(cred, offset, given, now, most, &mut alloc),
            Place::End => {}
        }
        if let Some(request) = number() {
            file.record.appends(request, offset);
        }
        let accepted = write_back.write(cred, offset, given, now, most, &mut alloc);
        if accepted == Accepted::All {
            return accepted;
        }
        if let Accepted::Short(_) = accepted {
            // The next attempt would begin behind the part that was stored.
            write_back.take_back(offset, ended_at);
        }
        // Others may append there before the next attempt.
        file.record.appends_nowhere();
        match accepted {
            Accepted::Short(_) => Accepted::Short(0),
            other => other,
        }
    }

    /// What follows from [`Objects::put`]. `recorded`: the data outlives this process.
    fn was_put(self: &Arc<Self>, file: &OpenFile, put: &Put, recorded: bool) {
        let inode = &file.inode;
        let data = self.data(inode);
        // With `Short(0)` nothing is stored.
        if matches!(put.accepted, Accepted::All | Accepted::Short(1..)) {
            // Inserted after the data. If all of it is safe by now, `tick` removes the file.
            let mut files = self.unsafe_files.lock();
            files.insert(inode, recorded, file.flushed.load(Ordering::Relaxed));
        }
        match put.accepted {
            Accepted::All => {
                self.shared.stats.write_bytes.add(put.len as u64);
                self.start_writes(inode, data, Goal::Full);
            }
            // The freed blocks may not be contiguous, so more is dropped than is needed.
            Accepted::Short(_) => {
                self.shared.budget.reclaim(put.len * 4);
            }
            Accepted::Wait | Accepted::Full | Accepted::OtherUser => {}
        }
    }

    /// The end of a file for an append, including data that the server does not have yet; `None` if it is
    /// not known. `asked`: the size that the server has just told, for a mount that keeps no attributes.
    fn end_to_append(&self, inner: &FileState, file: &OpenFile, asked: Option<u64>) -> Option<u64> {
        let state = file.inode.state.lock();
        let size = match asked {
            Some(told) => state.attributes().map_or(told, |known| known.size),
            None => state.fresh(self.now())?.size,
        };
        Some(size.max(inner.end()))
    }
}

/// write(2) is told that `len` bytes at the kernel's `offset` are taken.
fn accepted(file: &OpenFile, offset: u64, len: u32) {
    let len = u64::from(len);
    file.inode.gets_pages();
    let mut state = file.inode.state.lock();
    state.kernel_size = state.kernel_size.max(offset.saturating_add(len));
}
