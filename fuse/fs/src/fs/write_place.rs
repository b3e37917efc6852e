//! Where data to be written comes from, and where in the file it goes.

use super::error::{FsError, FsResult};
use super::files::Files;
use super::inode::Inode;
use super::outdated::size_with;
use crate::cache::WriteData;
use nfsrdma_nfs3::{Cred, Nfs3};
use std::sync::Arc;

/// GETATTRs for pages behind the known end of the file, or for an append, until one shows where the
/// end is.
const SIZE_TRIES: u32 = 4;

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
pub(super) enum Place {
    At(u64),
    /// Behind what is stored of the same write(2), when
    /// [`FileState::ended`](super::file::FileState::ended) was the second number.
    Rest(u64, u64),
    /// At the end of the file, which was there when
    /// [`FileState::ended`](super::file::FileState::ended) was the second number.
    End(u64, u64),
    /// Pages of a mapping, which never make the file longer.
    Mapped(u64),
    /// The same, when a flush of the file has made no progress for a while.
    MappedLate(u64),
}

impl Place {
    pub(super) fn offset(self) -> u64 {
        match self {
            Place::At(offset)
            | Place::Rest(offset, _)
            | Place::End(offset, _)
            | Place::Mapped(offset)
            | Place::MappedLate(offset) => offset,
        }
    }
}

impl<N: Nfs3> Files<N> {
    /// Where data of this length goes, if that is known without a call.
    pub(super) fn place_now(
        &self,
        inode: &Arc<Inode>,
        origin: Origin,
        offset: u64,
        len: usize,
    ) -> Option<Place> {
        match origin {
            Origin::Call(flags) if flags & libc::O_APPEND != 0 => {
                let (end, ended) = self.known_end(inode);
                Some(Place::End(end?, ended))
            }
            Origin::Call(_) => Some(Place::At(offset)),
            // Nothing is cut off because of a size that is out of date.
            Origin::Mapping => {
                let beyond = self.is_beyond(inode, offset.saturating_add(len as u64));
                (!beyond).then_some(Place::Mapped(offset))
            }
        }
    }

    /// The same after a GETATTR.
    pub(super) async fn place(
        &self,
        cred: &Cred,
        inode: &Arc<Inode>,
        origin: Origin,
        offset: u64,
        len: usize,
    ) -> FsResult<Place> {
        Ok(match origin {
            Origin::Call(_) => {
                let (end, ended) = self.end_of(cred, inode).await?;
                Place::End(end, ended)
            }
            Origin::Mapping => {
                let end = offset.saturating_add(len as u64);
                for _ in 0..SIZE_TRIES {
                    self.fetch_told(cred, inode).await?;
                    // A reply that overlaps another one may leave the size as it was. The
                    // attributes then count as out of date.
                    let known = inode.state.lock().fresh(self.now()).is_some();
                    if known || !self.is_beyond(inode, end) {
                        break;
                    }
                }
                Place::Mapped(offset)
            }
        })
    }

    /// Whether `end` lies behind the end of the file, as far as that is known.
    pub(super) fn is_beyond(&self, inode: &Arc<Inode>, end: u64) -> bool {
        let known = self
            .data(inode)
            .with(|inner| size_with(inner, inode).unwrap_or(0));
        end > known
    }

    /// The end of a file, including data that the server does not have yet, if that is known; and
    /// [`FileState::ended`] at that time.
    pub(super) fn known_end(&self, inode: &Inode) -> (Option<u64>, u64) {
        // This must be read before the size, as `unwritten_end` says.
        let (written, ended) = match inode.data() {
            Some(data) => data.with(|inner| (inner.end(), inner.ended())),
            None => (0, 0),
        };
        let size = inode.state.lock().fresh(self.now()).map(|of| of.size);
        (size.map(|size| size.max(written)), ended)
    }

    /// As [`Files::known_end`], by a GETATTR if need be.
    pub(super) async fn end_of(&self, cred: &Cred, inode: &Arc<Inode>) -> FsResult<(u64, u64)> {
        match self.known_end(inode) {
            (Some(end), ended) => Ok((end, ended)),
            (None, ended) => {
                let mut end = 0;
                for _ in 0..SIZE_TRIES {
                    let written = inode.unwritten_end();
                    let (told, _) = self.fetch_told(cred, inode).await?;
                    let told = told.size.max(written);
                    let known = inode.state.lock().attributes().map(|known| known.size);
                    end = known.map_or(told, |known| known.max(told));
                    // Otherwise the reply overlaps another one, and either size may be the old one.
                    if known.is_none_or(|known| known.max(written) == told) {
                        break;
                    }
                }
                Ok((end, ended))
            }
        }
    }

    /// The part of `data` at `offset` that fits into the server's largest file (FSINFO, RFC 1813
    /// section 3.3.19); an error if that is none (write(2), EFBIG).
    pub(super) fn below_the_limit<'a>(
        &self,
        offset: u64,
        data: WriteData<'a>,
    ) -> FsResult<WriteData<'a>> {
        let room = self.limits().max_file_size.saturating_sub(offset);
        if room == 0 && !data.is_empty() {
            return Err(FsError::TooLarge);
        }
        Ok(data.first(usize::try_from(room).unwrap_or(usize::MAX)))
    }
}
