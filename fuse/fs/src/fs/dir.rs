//! OPENDIR, READDIR, READDIRPLUS, RELEASEDIR (RFC 1813 sections 3.3.16 and 3.3.17).
//!
//! The kernel's position in a directory is the server's cookie. A reply of the server (a page) has
//! many entries, which are kept as a part, and of which the kernel takes a few at a time. From the
//! second part on, the next page is requested while the kernel takes this part. Entries are
//! requested with attributes (READDIRPLUS) even for a plain listing, because FUSE entries have a
//! type, which READDIR does not return. Where the server gives no attributes, names are looked up.
//! Those that cannot be looked up, as in a directory that the caller may read but not search, are
//! listed without a type (DT_UNKNOWN of readdir(3)). If the server no longer accepts a cookie
//! (NFS3ERR_BAD_COOKIE), the listing starts over and leaves out the names given already.

use super::Fs;
use super::changing::not_abandoned;
use super::clock::{Nanos, nanos};
use super::dir_handle::{
    Ahead, DirHandle, Listed, Listing, Page, Part, Place, going_round, listing,
};
use super::entry::Entry;
use super::error::{FsError, FsResult};
use super::inode::{Inode, Stamp, State};
use super::names::Child;
use super::open_file::Opened;
use nfsrdma_nfs3::{Cred, DirEntry, DirPage, Nfs3, NfsError};
use nfsrdma_rpcrdma::exec;
use nfsrdma_rpcrdma::throttle::{Throttle, and_more};
use nfsrdma_xdr::nfs3::{FileType, Name, Status, Verifier};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// How often a listing starts over without a new name. Otherwise it would never end if the server
/// refuses each cookie that it has given.
const MOST_VAIN_RESTARTS: u32 = 16;
/// The size of the pages of all open directories together, up to [`LEAST_PAGE`] of each.
const PAGES_BYTES: usize = 4 << 20;
/// The least size of a page that is requested: many entries of the longest name.
const LEAST_PAGE: usize = 4096;
/// The position after an entry to which the server gives cookie 0, towards the kernel.
const NOWHERE: u64 = u64::from_be_bytes(*b"nowhere!");

/// How long a page that was requested ahead may wait for the kernel.
const AHEAD_AGE: Nanos = 1_000_000_000;

/// Logs an entry that is not as it should be, once a minute at most.
fn odd_entry(how: &str, name: &[u8]) {
    static LOG: parking_lot::Mutex<Throttle<Instant>> = parking_lot::Mutex::new(Throttle::new());
    if let Some(more) = LOG.lock().event(Instant::now()) {
        let more = and_more(more);
        tracing::warn!(
            "the name \"{}\" in a directory {how}{more}",
            name.escape_ascii()
        );
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
        self.listings.lock().opened(nodeid);
        let dir = Arc::new(DirHandle::new(inode, cred.clone()));
        let handle = self.dirs.write().insert(dir) as u64;
        Ok(Opened { handle, keep_cache })
    }

    /// Whether the kernel should list the directory from the server although its own copy of the
    /// names is still valid. A program that looks at each child (`ls -l`) would cost a GETATTR for
    /// each child whose attributes have expired; READDIRPLUS fetches those of hundreds at a time.
    fn children_need_attributes(&self, state: &State, now: Nanos) -> bool {
        state.listed().is_some_and(|listed| {
            let age = now.saturating_sub(listed.with_attributes);
            listed.lists_attributes && age >= nanos(self.config.acregmin)
        })
    }

    /// The kernel requests entries from position `offset` on with the attributes of the children
    /// (FUSE_READDIRPLUS). It does so for the first entries of every listing, and for later ones
    /// only if a program looked at the children before.
    pub fn listing_with_attributes(&self, handle: u64, offset: u64) {
        if let Ok(dir) = self.dir(handle) {
            let now = self.now();
            let mut state = dir.inode.state.lock();
            let listed = state.listed_mut();
            listed.with_attributes = now;
            listed.lists_attributes |= offset != 0;
        }
    }

    /// The kernel requests entries without attributes (FUSE_READDIR): no program looks at the
    /// children.
    pub fn listing_without_attributes(&self, handle: u64) {
        if let Ok(dir) = self.dir(handle) {
            let mut state = dir.inode.state.lock();
            state.listed_mut().lists_attributes = false;
        }
    }

    fn dir(&self, handle: u64) -> FsResult<Arc<DirHandle>> {
        let dir = self.dirs.read().get(handle as usize).cloned();
        let dir = dir.ok_or(FsError::UnknownHandle)?;
        Ok(dir)
    }

    pub fn releasedir(&self, handle: u64) -> FsResult<()> {
        let dir = self.dirs.write().try_remove(handle as usize);
        let dir = dir.ok_or(FsError::UnknownHandle)?;
        let forgotten = self.listings.lock().closed(dir.inode.nodeid);
        for dir in forgotten.into_iter().filter_map(|dir| self.table.get(dir)) {
            dir.state.lock().listed_mut().forgotten = true;
        }
        Ok(())
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
            let mut place = dir.place.lock();
            *place = Place::beginning(place.asked_ahead);
        } else if let Some(listing) = listing(&dir, offset) {
            return listing;
        }
        {
            let mut place = dir.place.lock();
            let part = place.part.clone();
            if part.as_ref().is_none_or(|part| part.next != offset) {
                place.starts.clear();
            }
            if offset != 0 && part.is_none_or(|part| !part.reaches(offset)) {
                // seekdir(3): the names given so far are not those before the position.
                place.given = Vec::new();
                place.skip = None;
                place.complete = false;
            }
        }
        let mut at = offset;
        loop {
            let part = self.read_part(&dir, at).await?;
            let part = Arc::new(Part {
                start: offset,
                asked: part.start == at,
                ..part
            });
            let done = part.eof || !part.entries.is_empty();
            at = part.next;
            {
                let mut place = dir.place.lock();
                place.part = Some(part.clone());
                if done {
                    place.vain_restarts = 0;
                }
            }
            if done {
                if !part.eof && offset != 0 {
                    self.ask_ahead(&dir, part.next);
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
        let mut cookie = cookie;
        let mut renewed = false;
        for _ in 0..8 {
            let verifier = match cookie {
                0 => Verifier::default(),
                _ => {
                    let known = dir.place.lock().verifier;
                    known.unwrap_or_else(|| {
                        let state = dir.inode.state.lock();
                        state
                            .listed()
                            .map_or_else(Verifier::default, |listed| listed.cookies)
                    })
                }
            };
            let answer = match self.page_ahead(dir, cookie).await {
                Some(page) => Ok(page),
                None => self.ask(dir, cookie, verifier).await,
            };
            match answer {
                Ok((page, stamp, epoch)) => {
                    return self.take_in(dir, cookie, page, stamp, epoch).await;
                }
                // The first names came from the kernel's cache, so it is not known which to leave
                // out. Some servers change the verifier with the directory's times though their
                // cookies stay valid: the cookie is tried with the current verifier.
                Err(error)
                    if error.status() == Some(Status::BadCookie)
                        && cookie != 0
                        && !renewed
                        && !dir.place.lock().complete =>
                {
                    renewed = true;
                    let (page, ..) = self.ask(dir, 0, Verifier::default()).await?;
                    dir.place.lock().verifier = Some(page.verifier);
                }
                // RFC 1813 section 3.3.16: the cookie is no longer valid, so start over. All names
                // given so far have to be known, because they must not be given again.
                Err(error) if error.status() == Some(Status::BadCookie) && cookie != 0 => {
                    self.shared.stats.directory_restarts.add(1);
                    let mut place = dir.place.lock();
                    if !place.complete || place.vain_restarts == MOST_VAIN_RESTARTS {
                        return Err(error);
                    }
                    place.vain_restarts += 1;
                    let given = std::mem::take(&mut place.given);
                    place.skip.get_or_insert_default().extend(given);
                    place.starts.clear();
                    cookie = 0;
                }
                Err(error) => return Err(error),
            }
        }
        Err(FsError::Nfs(NfsError::Status(Status::BadCookie)))
    }

    /// Requests the page at `cookie`, so that the server reads it while the kernel takes the part
    /// before. This is done only from the second part on, as many listings end in the first.
    fn ask_ahead(self: &Arc<Self>, dir: &Arc<DirHandle>, cookie: u64) {
        let (number, verifier) = {
            let mut place = dir.place.lock();
            let Some(verifier) = place.verifier else {
                return;
            };
            if place.ahead_is_vain || place.ahead.is_some() {
                return;
            }
            place.asked_ahead += 1;
            let number = place.asked_ahead;
            place.ahead = Some(Ahead {
                cookie,
                number,
                page: None,
            });
            (number, verifier)
        };
        let (fs, dir) = (self.clone(), dir.clone());
        exec::spawn(async move {
            let page = fs.ask(&dir, cookie, verifier).await;
            let page = (fs.now(), page);
            if let Some(ahead) = &mut dir.place.lock().ahead
                && ahead.number == number
            {
                ahead.page = Some(page);
            }
            dir.arrived.notify_waiters();
        });
    }

    /// The page at `cookie`, if it was requested ahead, has not waited long for the kernel (its
    /// attributes would be taken for new ones), and the directory has not changed since: a removed
    /// name must not be listed.
    async fn page_ahead(&self, dir: &DirHandle, cookie: u64) -> Option<Page> {
        loop {
            let mut arrived = std::pin::pin!(dir.arrived.notified());
            arrived.as_mut().enable();
            let ahead = {
                let mut place = dir.place.lock();
                let on_its_way = |ahead: &Ahead| ahead.cookie == cookie && ahead.page.is_none();
                match place.ahead.take()? {
                    ahead if on_its_way(&ahead) => {
                        place.ahead = Some(ahead);
                        None
                    }
                    ahead => Some(ahead),
                }
            };
            let Some(ahead) = ahead else {
                arrived.await;
                continue;
            };
            let page = ahead
                .page
                .filter(|_| ahead.cookie == cookie)
                .filter(|(arrived, _)| self.now().saturating_sub(*arrived) <= AHEAD_AGE)
                .and_then(|(_, page)| page.ok())
                .filter(|(_, stamp, epoch)| {
                    let state = dir.inode.state.lock();
                    state.undisturbed(*stamp) && state.epoch == *epoch
                });
            dir.place.lock().ahead_is_vain |= page.is_none();
            return page;
        }
    }

    /// The size of the page to request: the fewer, the more directories are open, because each keeps
    /// a page and perhaps the next one until it is closed.
    fn page_bytes(&self) -> u32 {
        let open = self.dirs.read().len().max(1);
        let share = (PAGES_BYTES / open).max(LEAST_PAGE) as u32;
        share.min(self.limits().dtpref)
    }

    async fn ask(
        &self,
        dir: &DirHandle,
        cookie: u64,
        verifier: Verifier,
    ) -> FsResult<(DirPage, Stamp, u64)> {
        let inode = &dir.inode;
        let count = self.page_bytes();
        loop {
            let stamp = Stamp::now();
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
                Ok(page) => return Ok((page, stamp, epoch)),
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
        stamp: Stamp,
        epoch: u64,
    ) -> FsResult<Part> {
        let inode = &dir.inode;
        self.apply_post_op_attr(inode, stamp, page.dir.as_ref());
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
        inode.state.lock().listed_mut().cookies = page.verifier;
        let mut entries = Vec::with_capacity(page.entries.len());
        {
            let mut place = dir.place.lock();
            place.verifier = Some(page.verifier);
            place.starts.insert(cookie);
            if page.eof {
                place.given = Vec::new();
            } else if place.starts.contains(&next) {
                return Err(going_round());
            }
        }
        let mut searched = true;
        for entry in page.entries {
            if !Name(&entry.name).is_component() {
                odd_entry("cannot be used and is left out", &entry.name);
                continue;
            }
            let hash = dir.hasher.hash_one(&entry.name);
            {
                let mut place = dir.place.lock();
                if place.skip.as_ref().is_some_and(|skip| skip.contains(&hash)) {
                    continue;
                }
                if !page.eof {
                    place.give(hash);
                }
            }
            match self
                .listed(dir, &entry, (stamp, epoch), &mut searched)
                .await
            {
                Ok(listed) => entries.push(listed),
                // The name was removed between the listing and the look-up.
                Err(error) if error.status() == Some(Status::NoEnt) => {}
                Err(error) => return Err(error),
            }
        }
        dir.place.lock().limit();
        Ok(Part {
            start: cookie,
            asked: true,
            entries,
            next,
            eof: page.eof,
            taken: AtomicUsize::new(0),
            stamp,
            epoch,
        })
    }

    async fn listed(
        &self,
        dir: &DirHandle,
        entry: &DirEntry,
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
                    Err(error) => return Err(error),
                },
            }
        };
        if let Some(inode) = &inode {
            self.list_name(&dir.inode, stamp, epoch, &entry.name, inode);
        }
        Ok(Listed {
            name: entry.name.clone(),
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

    /// An entry of a listing for FUSE_READDIRPLUS; the kernel gets a reference to the inode. `None`
    /// for `.` and `..`, for an object without known attributes or of which the kernel has old pages,
    /// and for a name that may lead elsewhere by now: the kernel would put it in the place of what it
    /// knows better.
    pub fn listed_entry(&self, listing: &Listing, entry: &Listed) -> Option<Entry> {
        let inode = entry.inode.as_ref()?;
        let epoch = self.still_leads_to(listing, &entry.name, inode)?;
        let attributes = *inode.state.lock().attributes()?;
        let inode = self.table.adopt(inode);
        let child = Child::Is(inode.clone());
        self.cache_name(&listing.dir, epoch, &entry.name, child);
        let entry = self.entry(&listing.dir, &inode, attributes);
        self.without_old_pages(&inode, entry)
    }

    /// The directory's epoch, if nothing has happened to a listed name since its page was requested.
    /// After a change of the directory by this mount, it is known which names were not affected.
    fn still_leads_to(&self, listing: &Listing, name: &[u8], inode: &Arc<Inode>) -> Option<u64> {
        let (dir, part) = (&listing.dir, &listing.part);
        let epoch = {
            let state = dir.state.lock();
            if state.undisturbed(part.stamp) && state.epoch == part.epoch {
                return Some(part.epoch);
            }
            if state.is_changing() {
                return None;
            }
            state.epoch
        };
        let listed = self.listings.lock().get(dir.nodeid, epoch, name);
        let known = match listed {
            Some(listed) => Some(Child::Is(listed)),
            None => self.names.get(dir.nodeid, epoch, name),
        };
        matches!(known, Some(Child::Is(known)) if Arc::ptr_eq(&known, inode)).then_some(epoch)
    }

    /// NFS servers put directory changes on stable storage before they answer.
    pub fn fsyncdir(&self, handle: u64) -> FsResult<()> {
        self.dir(handle).map(|_| ())
    }
}
