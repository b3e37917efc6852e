//! WRITE: from a program's write(2) into the page cache, and from there to the server.
//!
//! A buffered write is copied into blocks of the cache and answered at once (`write_cached`).
//! `write` waits where that is impossible: the limit of dirty memory is reached, the buffer pool is
//! empty, the file is being flushed, or it has another user's data that is not on stable storage.
//! From there `flush.rs` sends it. If that fails, the error is recorded in the file, to be returned by the
//! next write(2), fsync(2) or close(2) of each open file ([`super::err_seq`]).
//! O_DIRECT writes bypass the cache ([`super::direct_write`]).

use super::changing::not_abandoned;
use super::err_seq::By;
use super::error::{FsError, FsResult};
use super::objects::Objects;
use super::open_file::OpenFile;
use super::outdated::size_with;
use super::server::MemoryWait;
use super::under_way::Doing;
use super::write_place::{Origin, Place};
use crate::cache::{Accepted, Goal, Turn, WriteData};
use nfsrdma_nfs3::Nfs3;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// After so many pauses in which a flush has made no progress, pages of a mapping become part of it:
/// the kernel waits for them, and with it, uninterruptibly, a program that closes the file. A server
/// that does not answer must not keep that.
const LATE: u32 = 3;

impl<N: Nfs3> Objects<N> {
    /// Writes into the cache if there is room; `None` if [`Objects::write`] has to be called.
    ///
    /// The kernel's offset of an append is not used. The kernel computes it from the size that it
    /// was last given and from its own writes. But others may have appended or truncated since, own
    /// writes may have been moved for that reason, and one write(2) may be several requests.
    pub fn write_cached<'a>(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        data: impl Into<WriteData<'a>>,
        flags: i32,
    ) -> Option<FsResult<u32>> {
        let file = self.files.read().get(handle as usize).cloned()?;
        let waits = OpenFile::is_direct(flags) || file.is_sync() || self.config.sync;
        if waits || file.error(By::Write).is_some() {
            return None;
        }
        self.check_locks(&file, handle).ok()?;
        let place = if flags & libc::O_APPEND != 0 {
            let (end, ended) = self.known_end(&file.inode);
            Place::End(end?, ended)
        } else {
            file.inode.state.lock().attributes()?;
            Place::At(offset)
        };
        let result = self.put_now(&file, place, data.into())?;
        if let Ok(len) = result {
            accepted(&file, offset, len);
        }
        Some(result)
    }

    /// As [`Objects::write_cached`], for pages of a mapping of the only open file.
    pub fn write_mapped_cached<'a>(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        data: impl Into<WriteData<'a>>,
    ) -> Option<FsResult<u32>> {
        let file = self.files.read().get(handle as usize).cloned()?;
        let data = data.into();
        let end = offset.saturating_add(data.len() as u64);
        if file.is_sync() || self.config.sync || self.is_beyond(&file.inode, end) {
            return None;
        }
        self.check_locks(&file, handle).ok()?;
        self.put_now(&file, Place::Mapped(offset), data)
    }

    /// Puts data into the cache if there is room now.
    fn put_now(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        place: Place,
        data: WriteData<'_>,
    ) -> Option<FsResult<u32>> {
        let data = match self.below_the_limit(place.offset(), data) {
            Ok(data) => data,
            Err(error) => return Some(Err(error)),
        };
        match self.put(file, &[], place, data) {
            Ok(Accepted::All) => Some(Ok(data.len() as u32)),
            Ok(Accepted::Wait | Accepted::Full | Accepted::Short(_) | Accepted::OtherUser) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Writes into the cache, waiting for room; or to the server at once, for O_DIRECT and O_SYNC.
    pub async fn write<'a>(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        data: impl Into<WriteData<'a>>,
        flags: i32,
    ) -> FsResult<u32> {
        self.write_for(handle, offset, data, flags, || true).await
    }

    /// The same for a caller that may be killed meanwhile. Where a write ends with the data on stable
    /// storage, errors are reported as by [`Objects::fsync_for`]; `gets` is as there.
    pub async fn write_for<'a>(
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
            self.report_to_write(&file, &mut gets).await?;
        }
        let origin = Origin::Call(flags);
        let len = self.write_by(&file, &[], offset, data, origin).await?;
        if !OpenFile::is_direct(flags) && (file.is_sync() || self.config.sync) {
            self.sync_written(&file, gets).await?;
        }
        accepted(&file, offset, len);
        Ok(len)
    }

    /// Writes with the credential of whoever opened `file`. If a WRITE fails, the close of `file` and of
    /// `others` reports the error.
    pub(super) async fn write_by(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        others: &[Arc<OpenFile>],
        offset: u64,
        given: WriteData<'_>,
        origin: Origin,
    ) -> FsResult<u32> {
        let inode = &file.inode;
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
        let mut waited = MemoryWait::default();
        let mut turn: Option<Turn<'_>> = None;
        // What is stored already, because there was not memory for all at once.
        let (mut stored, mut since, mut pauses) = (0, 0, 0);
        let written = loop {
            let mut changed = std::pin::pin!(data.changed.notified());
            let mut freed = std::pin::pin!(self.shared.freed.notified());
            changed.as_mut().enable();
            freed.as_mut().enable();
            // A truncation meanwhile comes before all of the data, not between its parts.
            let ended = data.with(|inner| inner.ended());
            if std::mem::replace(&mut since, ended) != ended {
                stored = 0;
            }
            let (offset, rest) = (offset + stored as u64, given.after(stored));
            // The end may have moved while this waited.
            let place = match self.place_now(inode, origin, offset, rest.len()) {
                Some(Place::At(offset)) if stored > 0 => Place::Rest(offset, ended),
                Some(Place::Mapped(offset)) if pauses >= LATE => Place::MappedLate(offset),
                Some(place) => place,
                None => {
                    turn = None;
                    self.place(&file.cred, inode, origin, offset, rest.len())
                        .await?
                }
            };
            let fits = self.below_the_limit(place.offset(), rest)?;
            let accepted = self.put(file, others, place, fits)?;
            if accepted != Accepted::Full {
                // The next writer may find room, whatever this one waits for.
                turn = None;
            }
            match accepted {
                Accepted::All => break stored + fits.len(),
                Accepted::OtherUser => self.write_back(inode, true).await,
                waits @ (Accepted::Wait | Accepted::Full | Accepted::Short(_)) => {
                    if let Accepted::Short(more) = waits {
                        stored += more;
                    }
                    self.shared.stats.write_waits.add(1);
                    self.start_writes(inode, data, Goal::Started);
                    self.relieve();
                    if !self.is_busy() && !data.with(|inner| inner.keeps_writers()) {
                        // Nothing is left to wait for, so try again: another writer may have taken
                        // the room. But if memory is short, only calls may still give some back.
                        if let Accepted::Short(_) = waits
                            && !self.memory_may_come_back(&mut waited).await
                        {
                            return Err(FsError::NoMemory);
                        }
                        continue;
                    }
                    waited.tries = 0;
                    match (waits, &mut turn) {
                        (Accepted::Full, Some(turn)) => turn.called().await,
                        (Accepted::Full, None) => turn = Some(self.shared.writers.join()),
                        (Accepted::Wait, _) if matches!(origin, Origin::Mapping) => {
                            tokio::select! {
                                () = changed => pauses = 0,
                                () = self.pause() => pauses += 1,
                            }
                        }
                        (Accepted::Wait, _) => changed.await,
                        // The pause: as in `Fs::alloc`.
                        _ => tokio::select! {
                            () = changed => {}
                            () = freed => {}
                            () = self.pause() => {}
                        },
                    }
                }
            }
        };
        Ok(written as u32)
    }

    /// Puts data into the cache, and starts full WRITEs.
    ///
    /// Of pages of a mapping, what lies behind the end of the file is left out. The kernel sends
    /// none, but a truncation (O_TRUNC, for which the kernel does not wait for pages that are being
    /// written) may have been carried out since.
    fn put(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        others: &[Arc<OpenFile>],
        place: Place,
        given: WriteData<'_>,
    ) -> FsResult<Accepted> {
        let (len, offset) = (given.len(), place.offset());
        let inode = &file.inode;
        let data = self.data(inode);
        self.shared.budget.make_room(len + 2 * 4096);
        let dirty = self.shared.dirty.load(Ordering::Relaxed);
        if dirty > 0 && dirty + len > self.config.dirty_bytes {
            return Ok(Accepted::Full);
        }
        let result = data.with(|inner| -> FsResult<Option<Accepted>> {
            self.not_ended()?;
            // Checked under the lock, so that a truncation by a later call comes after this data.
            not_abandoned()?;
            let given = match place {
                Place::At(_) => given,
                Place::End(_, ended) | Place::Rest(_, ended) if ended != inner.ended() => {
                    return Ok(Some(Accepted::Wait));
                }
                Place::End(..) | Place::Rest(..) => given,
                Place::Mapped(_) if inner.write_back().is_flushing() => {
                    return Ok(Some(Accepted::Wait));
                }
                // What comes before a SETATTR or after it does not change.
                Place::MappedLate(_) if inner.under_way().any(|doing| doing == Doing::Setattr) => {
                    return Ok(Some(Accepted::Wait));
                }
                Place::Mapped(_) | Place::MappedLate(_) => {
                    let room = size_with(inner, inode).unwrap_or(0).saturating_sub(offset);
                    given.first(usize::try_from(room).unwrap_or(usize::MAX))
                }
            };
            if given.is_empty() {
                return Ok(None);
            }
            let end = offset + given.len() as u64;
            // This data comes later than that of an O_DIRECT write under way, as of a program that was
            // killed, and must overwrite it.
            if inner.is_written_direct(&(offset..end)) {
                return Ok(Some(Accepted::Wait));
            }
            let now = self.now();
            let most = self.config.dirty_file_bytes;
            let mut alloc = |len| self.pool.alloc(len);
            let write_back = inner.write_back();
            let ended_at = write_back.end();
            let cred = &file.cred;
            let accepted = match place {
                Place::MappedLate(_) => {
                    write_back.write_late(cred, offset, given, now, most, &mut alloc)
                }
                _ => write_back.write(cred, offset, given, now, most, &mut alloc),
            };
            if let (Place::End(..), Accepted::Short(_)) = (place, accepted) {
                // The next attempt would begin behind the part that was stored.
                write_back.take_back(offset, ended_at);
                return Ok(Some(Accepted::Short(0)));
            }
            if matches!(accepted, Accepted::All | Accepted::Short(_)) {
                // Under the lock: a WRITE of this data may fail as soon as it is released.
                for file in std::iter::once(file).chain(others) {
                    file.told.wrote(&data.errors);
                }
                inner.void_reads(offset..end);
            }
            Ok(Some(accepted))
        })?;
        let Some(result) = result else {
            return Ok(Accepted::All);
        };
        if matches!(result, Accepted::All | Accepted::Short(_)) {
            // Inserted after the data. If all of it is safe by now, `tick` removes the file.
            let mut files = self.unsafe_files.lock();
            files.insert(data.id, inode, file.flushed.load(Ordering::Relaxed));
        }
        match result {
            Accepted::All => {
                self.shared.stats.write_bytes.add(len as u64);
                self.start_writes(inode, data, Goal::Full);
            }
            // The freed blocks may not be contiguous, so more is dropped than is needed.
            Accepted::Short(_) => {
                self.shared.budget.reclaim(len * 4);
            }
            Accepted::Wait | Accepted::Full | Accepted::OtherUser => {}
        }
        Ok(result)
    }
}

/// write(2) is told that `len` bytes at the kernel's `offset` are taken.
fn accepted(file: &OpenFile, offset: u64, len: u32) {
    let len = u64::from(len);
    file.told.accepted(len);
    file.inode.gets_pages();
    let mut state = file.inode.state.lock();
    state.kernel_size = state.kernel_size.max(offset.saturating_add(len));
}
