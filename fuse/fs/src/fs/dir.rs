//! OPENDIR, READDIR, READDIRPLUS, RELEASEDIR (RFC 1813 sections 3.3.16 and 3.3.17).
//!
//! The kernel's position in a directory is the server's cookie. A reply of the server (a page) has many entries, which are kept as
//! a part, and of which the kernel takes a few at a time. From the second part on, the next page is requested while the kernel
//! takes this part. Entries are requested with attributes (READDIRPLUS) even for a plain listing, because FUSE entries have a type,
//! which READDIR does not return. Where the server gives no attributes, names are looked up. Those that cannot be looked up, as in
//! a directory that the caller may read but not search, are listed without a type (DT_UNKNOWN of readdir(3)). The names go into the
//! cache of names: a program that goes through a directory (du, tar, `rm -r`) looks up each of them, while it has it open. The
//! kernel keeps a listing until an OPENDIR says otherwise (`keep_cache`): after a change of the epoch, or where the attributes of
//! what is listed are old (`ls -l`) or a name was forgotten here; or until it is told of a name in it. It keeps none that was not
//! read to its end, so the directory that was closed last is remembered here (`listed_before`).

use super::Fs;
use super::changing::not_abandoned;
use super::clock::{Nanos, nanos};
use super::dir_handle::{Closed, DirHandle, Listed, Listing, Part, Place, listing};
use super::entry::Entry;
use super::error::{FsError, FsResult};
use super::inode::{Inode, Stamp, State};
use super::names::Child;
use super::open_file::Opened;
use crate::named;
use nfsrdma_nfs3::{Cred, DirEntry, DirPage, Nfs3, NfsError};
use nfsrdma_rpcrdma::exec;
use nfsrdma_rpcrdma::throttle::{Throttle, and_more};
use nfsrdma_xdr::nfs3::{FileType, Name, Status, Verifier};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::sync::oneshot;

/// The size of the pages of all open directories together, up to [`LEAST_PAGE`] of each.
const PAGES_BYTES: usize = 4 << 20;
/// The least size of a page that is requested: many entries of the longest name.
const LEAST_PAGE: usize = 4096;
/// The position after an entry to which the server gives cookie 0, towards the kernel.
const NOWHERE: u64 = u64::from_be_bytes(*b"nowhere!");

/// Logs an entry that is not as it should be, once a minute at most.
fn odd_entry(how: &str, name: &[u8]) {
    static LOG: parking_lot::Mutex<Throttle<Instant>> = parking_lot::Mutex::new(Throttle::new());
    if let Some(more) = LOG.lock().event(Instant::now()) {
        let more = and_more(more);
        let name = named::name(name);
        tracing::warn!("the name \"{name}\" in a directory {how}{more}");
    }
}

impl<N: Nfs3> Fs<N> {
    pub async fn opendir(self: &Arc<Self>, cred: &Cred, nodeid: u64) -> FsResult<Opened> {
        let inode = self.inode(nodeid)?;
        let since = Stamp::mark();
        if !inode.is_dir() {
            return Err(FsError::Nfs(NfsError::Status(Status::NotDir)));
        }
        let wanted = nfsrdma_xdr::nfs3::access::READ;
        let now = self.now();
        self.check_open(cred, &inode, wanted, since).await?;
        let keep_cache = {
            let mut state = inode.state.lock();
            let epoch = state.epoch;
            let cached = std::mem::replace(&mut state.kernel_epoch, epoch);
            let anew = self.children_need_attributes(&state, now)
                || state.listed().is_some_and(|listed| listed.forgotten);
            if anew {
                state.listed_mut().forgotten = false;
            }
            cached == epoch && !anew
        };
        inode.opens.fetch_add(1, Ordering::Relaxed);
        let record = self.record_open(&inode, cred, 0);
        let dir = DirHandle::new(inode, cred.clone(), record);
        let handle = dir.handle();
        self.dirs.insert(handle, Arc::new(dir));
        Ok(Opened { handle, keep_cache })
    }

    /// Whether the kernel should list the directory from the server although its own copy of the
    /// names is still valid. A program that looks at each child (`ls -l`) would cost a call for
    /// each child whose attributes have expired; READDIRPLUS fetches those of hundreds at a time. So it is
    /// listed anew once more calls were made for its children than a listing takes.
    fn children_need_attributes(&self, state: &State, now: Nanos) -> bool {
        state.listed().is_some_and(|listed| {
            let age = now.saturating_sub(listed.with_attributes);
            listed.asked_for > listed.pages && age >= nanos(self.config.times.acregmin)
        })
    }

    /// The kernel requests entries from position `offset` on with the attributes of the children (FUSE_READDIRPLUS). It does so for
    /// the first entries of every listing, and for later ones only if a program looked at the children before.
    pub fn listing_with_attributes(&self, handle: u64, offset: u64) {
        if let Ok(dir) = self.dir(handle) {
            let now = self.now();
            let mut state = dir.inode.state.lock();
            let listed = state.listed_mut();
            match offset {
                0 => listed.with_attributes = now,
                _ => listed.asked_for = u32::MAX,
            }
        }
    }

    /// The kernel requests entries without attributes (FUSE_READDIR): no program looks at the children.
    pub fn listing_without_attributes(&self, handle: u64) {
        if let Ok(dir) = self.dir(handle) {
            let mut state = dir.inode.state.lock();
            state.listed_mut().asked_for = 0;
        }
    }

    fn dir(&self, handle: u64) -> FsResult<Arc<DirHandle>> {
        self.dirs.get(handle).ok_or(FsError::UnknownHandle)
    }

    pub fn releasedir(&self, handle: u64) -> FsResult<()> {
        // The kernel may have sent it before, to a process that has died since.
        let Some(dir) = self.dirs.remove(handle) else {
            return Ok(());
        };
        dir.inode.opens.fetch_sub(1, Ordering::Relaxed);
        let part = dir.place.lock().part.take();
        if let Some(whole) = part.filter(|part| part.start == 0 && part.eof) {
            let (inode, cred) = (dir.inode.clone(), dir.cred.clone());
            *self.listed_last.lock() = Some(Closed { inode, cred, whole });
        }
        Ok(())
    }

    /// The whole of the directory, if it was the last that was closed, by the same user, and what was listed then holds:
    /// `rm -r` opens each directory to see whether it is empty, and again to list it.
    fn listed_before(&self, dir: &DirHandle) -> Option<Arc<Part>> {
        let Closed { inode, cred, whole } = self.listed_last.lock().take()?;
        let age = self.now().saturating_sub(whole.asked);
        // The attributes of what is listed are used, too.
        let believed = age < nanos(self.config.times.acregmin);
        let same = Arc::ptr_eq(&inode, &dir.inode) && cred == dir.cred;
        (same && believed && self.holds(&inode, &whole)).then_some(whole)
    }

    /// Whether the directory is known not to have changed since: a removed name must not be listed.
    fn holds(&self, dir: &Inode, part: &Part) -> bool {
        let state = dir.state.lock();
        let unchanged = state.undisturbed(part.stamp) && state.epoch == part.epoch;
        unchanged && state.fresh(self.now()).is_some()
    }

    /// Entries from position `offset` on, if they are in the part at hand; no entries at the end.
    pub fn readdir_cached(&self, handle: u64, offset: u64) -> Option<FsResult<Listing>> {
        let dir = match self.dir(handle) {
            Ok(dir) => dir,
            Err(error) => return Some(Err(error)),
        };
        if offset == 0 {
            return None;
        }
        listing(&dir, offset)
    }

    /// Entries from position `offset` on; no entries at the end.
    pub async fn readdir(self: &Arc<Self>, handle: u64, offset: u64) -> FsResult<Listing> {
        let dir = self.dir(handle)?;
        self.know_fsid(&dir.cred).await?;
        if offset == 0 {
            let part = self.listed_before(&dir);
            let mut place = dir.place.lock();
            *place = Place::default();
            place.part = part;
        }
        if let Some(listing) = listing(&dir, offset) {
            return listing;
        }
        {
            let mut place = dir.place.lock();
            if place.part.as_ref().is_none_or(|part| part.next != offset) {
                place.sought();
            }
        }
        let mut at = offset;
        loop {
            let part = self.read_part(&dir, at).await?;
            let part = Arc::new(Part {
                start: offset,
                ..part
            });
            at = part.next;
            {
                let mut place = dir.place.lock();
                if !part.eof {
                    place.goes_on(at)?;
                }
                place.part = Some(part.clone());
            }
            if part.eof || !part.entries.is_empty() {
                if !part.eof && offset != 0 {
                    self.ask_ahead(&dir, at);
                }
                return Ok(Listing {
                    dir: dir.inode.clone(),
                    part,
                    from: 0,
                });
            }
            // A server can have pages without a name to show for ever.
            not_abandoned()?;
        }
    }

    /// The part that begins at `cookie`.
    async fn read_part(&self, dir: &DirHandle, cookie: u64) -> FsResult<Part> {
        if let Some(part) = self.part_ahead(dir, cookie).await {
            return Ok(part);
        }
        // A listing that begins in the kernel's cache has none. Servers that want one refuse the cookie.
        let verifier = dir.place.lock().verifier.unwrap_or_default();
        match self.ask(dir, cookie, verifier).await {
            Err(error) if error.status() == Some(Status::BadCookie) && cookie != 0 => {
                let verifier = self.look_for(dir, cookie).await?.ok_or(error)?;
                self.ask(dir, cookie, verifier).await
            }
            part => part,
        }
    }

    /// Looks for an entry with `cookie` from the beginning, and returns the verifier that the server
    /// takes with it now. RFC 1813 section 3.3.16: the server has refused the older one. Some servers
    /// change it with the directory's times, though their cookies stay valid.
    async fn look_for(&self, dir: &DirHandle, cookie: u64) -> FsResult<Option<Verifier>> {
        let (mut at, mut verifier, mut way) = (0, Verifier::default(), Place::default());
        loop {
            let part = self.ask(dir, at, verifier).await?;
            verifier = dir.place.lock().verifier.unwrap_or_default();
            if part.entries.iter().any(|entry| entry.cookie == cookie) {
                return Ok(Some(verifier));
            }
            if part.eof {
                return Ok(None);
            }
            at = part.next;
            way.goes_on(at)?;
            not_abandoned()?;
        }
    }

    /// Requests the page at `cookie`, so that the server reads it while the kernel takes the part
    /// before. This is done only from the second part on, as many listings end in the first.
    fn ask_ahead(self: &Arc<Self>, dir: &Arc<DirHandle>, cookie: u64) {
        let (arrived, ahead) = oneshot::channel();
        let verifier = {
            let mut place = dir.place.lock();
            if place.ahead_is_vain {
                return;
            }
            place.ahead = Some((cookie, ahead));
            place.verifier.unwrap_or_default()
        };
        let (fs, dir) = (self.clone(), dir.clone());
        exec::spawn(async move {
            // The listing may have been left meanwhile.
            let _ = arrived.send(fs.ask(&dir, cookie, verifier).await);
        });
    }

    /// The page at `cookie`, if it was requested ahead and holds.
    async fn part_ahead(&self, dir: &DirHandle, cookie: u64) -> Option<Part> {
        let (of, ahead) = dir.place.lock().ahead.take()?;
        let part = match of == cookie {
            true => ahead.await.ok().and_then(|part| part.ok()),
            false => None,
        };
        let part = part.filter(|part| self.holds(&dir.inode, part));
        dir.place.lock().ahead_is_vain |= part.is_none();
        part
    }

    /// The size of the page to request: the fewer, the more directories are open, because each keeps
    /// a page and perhaps the next one until it is closed.
    fn page_bytes(&self) -> u32 {
        let open = self.dirs.len().max(1);
        let share = (PAGES_BYTES / open).max(LEAST_PAGE) as u32;
        share.min(self.limits().dtpref)
    }

    async fn ask(&self, dir: &DirHandle, cookie: u64, verifier: Verifier) -> FsResult<Part> {
        let inode = &dir.inode;
        let count = self.page_bytes();
        loop {
            let stamp = Stamp::now();
            let asked = self.now();
            let epoch = inode.state.lock().epoch;
            let plus = self.readdirplus.load(Ordering::Relaxed);
            let answer = if plus {
                self.nfs
                    .readdirplus(&dir.cred, &inode.handle, cookie, verifier, count, count)
                    .await
            } else {
                self.nfs
                    .readdir(&dir.cred, &inode.handle, cookie, verifier, count)
                    .await
            };
            match answer {
                Ok(page) => return self.take_in(dir, cookie, page, asked, (stamp, epoch)).await,
                Err(NfsError::Status(Status::NotSupp)) if plus => {
                    self.readdirplus.store(false, Ordering::Relaxed);
                }
                Err(error) => return Err(self.note_error(inode, error)),
            }
        }
    }

    async fn take_in(
        &self,
        dir: &DirHandle,
        cookie: u64,
        mut page: DirPage,
        asked: Nanos,
        (stamp, epoch): (Stamp, u64),
    ) -> FsResult<Part> {
        let inode = &dir.inode;
        self.apply_post_op_attr(inode, stamp, page.dir.as_ref());
        {
            let mut state = inode.state.lock();
            let listed = state.listed_mut();
            listed.pages = match cookie {
                0 => 1,
                _ => listed.pages.saturating_add(1),
            };
        }
        let last = page.entries.last().map(|entry| entry.cookie);
        if !page.eof && last.is_none_or(|last| last == cookie || last == 0) {
            return Err(NfsError::misbehaved("a directory page without progress").into());
        }
        // Cookie 0 means the beginning of the directory, so nothing can be read after such an
        // entry. As long as the page is at hand, the kernel can go on from there.
        for entry in page.entries.iter_mut().filter(|entry| entry.cookie == 0) {
            entry.cookie = NOWHERE;
        }
        let last = page.entries.last().map(|entry| entry.cookie);
        let next = last.unwrap_or(cookie);
        dir.place.lock().verifier = Some(page.verifier);
        let mut entries = Vec::with_capacity(page.entries.len());
        let mut searched = true;
        for entry in page.entries {
            if !Name(&entry.name).is_component() {
                odd_entry("cannot be used and is left out", &entry.name);
                continue;
            }
            match self.listed(dir, entry, (stamp, epoch), &mut searched).await {
                Ok(listed) => entries.push(listed),
                // The name was removed between the listing and the look-up.
                Err(error) if error.status() == Some(Status::NoEnt) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Part {
            start: cookie,
            entries,
            next,
            eof: page.eof,
            taken: AtomicUsize::new(0),
            asked,
            stamp,
            epoch,
        })
    }

    async fn listed(
        &self,
        dir: &DirHandle,
        entry: DirEntry,
        (stamp, epoch): (Stamp, u64),
        searched: &mut bool,
    ) -> FsResult<Listed> {
        let dot = matches!(&*entry.name, b"." | b"..");
        let inode = if dot {
            None
        } else {
            // The kernel needs at least the type, which READDIR does not return.
            match (&entry.handle, &entry.attributes) {
                // It is listed as DT_UNKNOWN; the rest of the directory is not its fault.
                (_, Some(attributes)) if attributes.kind == FileType::Unknown => {
                    odd_entry("is of a type that NFSv3 does not define", &entry.name);
                    None
                }
                (Some(handle), Some(attributes)) => Some(self.intern(stamp, handle, attributes)),
                _ if !*searched => None,
                _ => match self.child(&dir.cred, &dir.inode, &entry.name).await {
                    Ok(inode) => Some(inode),
                    Err(error) if error.status() == Some(Status::NoEnt) => return Err(error),
                    Err(error) if error.status().is_some() => {
                        // If the caller may not search, the other names cannot be looked up either.
                        *searched = error.status() != Some(Status::Access);
                        None
                    }
                    // What the server says of this name makes no sense, which is logged. That is no fault of the other names.
                    Err(FsError::Nfs(NfsError::PeerMisbehaved(_) | NfsError::Refused(_))) => None,
                    Err(error) => return Err(error),
                },
            }
        };
        if let Some(inode) = &inode {
            let child = Child::Is(inode.clone());
            self.remember_name(&dir.inode, stamp, epoch, &entry.name, child);
        }
        Ok(Listed {
            name: entry.name,
            fileid: match &entry.attributes {
                Some(attributes) if !dot => self.table.visible_fileid(attributes),
                _ => entry.fileid,
            },
            kind: match dot {
                true => Some(FileType::Directory),
                false => inode.as_ref().map(|inode| inode.kind),
            }
            .filter(|kind| *kind != FileType::Unknown),
            cookie: entry.cookie,
            inode,
        })
    }

    /// An entry of a listing for FUSE_READDIRPLUS; the kernel gets a reference to the inode. `None` for `.` and `..`,
    /// for an object without known attributes or of which the kernel has old pages, and if a name may lead elsewhere
    /// by now, because the directory has changed: the kernel would put it in the place of what it knows better.
    pub fn listed_entry(&self, listing: &Listing, entry: &Listed) -> Option<Entry> {
        let inode = entry.inode.as_ref()?;
        let part = &listing.part;
        {
            let state = listing.dir.state.lock();
            if !state.undisturbed(part.stamp) || state.epoch != part.epoch {
                return None;
            }
        }
        let attributes = *inode.state.lock().attributes()?;
        let listed = inode;
        let inode = self.table.adopt(listed);
        // The name of the one that was listed is cached.
        if !Arc::ptr_eq(&inode, listed) {
            let child = Child::Is(inode.clone());
            self.cache_name(&listing.dir, part.epoch, &entry.name, child);
        }
        let entry = self.entry(&listing.dir, &inode, attributes);
        self.without_old_pages(&inode, entry)
    }
}
