//! What a process does that goes on with a mount after another one has died: from the records it knows again
//! what was open and what was hidden ([`nfsrdma_record`]).
//!
//! It is not known what else of the dead process's calls the server has carried out, nor what the kernel was
//! told last. So the kernel drops the pages of open files, and a listing goes on at the server at the
//! position that the kernel has.

use super::Fs;
use super::dir_handle::DirHandle;
use super::error::FsError;
use super::inode::{Inode, Silly};
use super::open_file::OpenFile;
use super::unwritten::log_lost;
use crate::cache::place_of;
use crate::credential::cred_of;
use nfsrdma_nfs3::{Nfs3, NfsError};
use nfsrdma_record::{Extent, Hidden, Open, Record};
use nfsrdma_rpcrdma::exec;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<N: Nfs3> Fs<N> {
    /// Goes on with what was open. To be called before anything is served; more calls do nothing.
    pub fn restore(self: &Arc<Self>) {
        let mut with_errors = self.table.with_errors();
        for open in self.records.opens().restore() {
            self.restore_open(open);
        }
        let unsafe_ = self.restore_data();
        for hidden in self.records.hidden().restore() {
            self.restore_hidden(hidden);
        }
        with_errors.extend(unsafe_.iter().filter(|of| of.may_have_lost()).cloned());
        self.restore_errors(with_errors);
        for inode in unsafe_ {
            let recorded = self.data(&inode).with(|inner| inner.pages().outlives());
            self.unsafe_files.lock().insert(&inode, recorded, true);
        }
    }

    /// What the server may not have on stable storage is dirty again. Returns the files with such data.
    fn restore_data(&self) -> Vec<Arc<Inode>> {
        let mut extents = self.records.extents().restore();
        // The numbers of later ones are higher.
        extents.sort_by_key(|extent| Reverse(extent.number()));
        let mut files: BTreeMap<u64, Arc<Inode>> = BTreeMap::new();
        for extent in extents {
            let nodeid = extent.nodeid;
            let known = files.get(&nodeid).cloned();
            let known = known.or_else(|| self.table.get(nodeid));
            let Some(inode) = known.or_else(|| self.table.forgotten(nodeid)) else {
                continue;
            };
            if !self.restore_extent(&inode, extent) {
                inode.unsafe_.store(1, Ordering::Relaxed);
            }
            files.entry(inode.nodeid).or_insert(inode);
        }
        self.pool.forget_claimed();
        files.into_values().collect()
    }

    /// False if the data is not there.
    fn restore_extent(&self, inode: &Arc<Inode>, extent: Record<Extent>) -> bool {
        let range = extent.range();
        if range.is_empty() {
            // Its process was killed before it used the record.
            return true;
        }
        let found = self.pool.claimed(place_of(&extent));
        let buf = found.filter(|_| range.end <= extent.len);
        let Some(buf) = buf else { return false };
        let now = self.now();
        let mut alloc = |len| self.pool.alloc(len);
        self.data(inode).with(|inner| {
            let write_back = inner.write_back();
            write_back.restore(extent, &buf, now, &mut alloc)
        })
    }

    /// Data that the server did not have on stable storage is lost, and there may be errors of writing
    /// that no program was told. Each open file tells it.
    fn restore_errors(&self, mut inodes: Vec<Arc<Inode>>) {
        let mut lost = Vec::new();
        inodes.sort_by_key(|inode| inode.nodeid);
        inodes.dedup_by_key(|inode| inode.nodeid);
        for inode in inodes {
            if inode.unsafe_.load(Ordering::Relaxed) != 0 {
                // In this order: whoever comes after this process must find one of them.
                inode.errno.store(libc::EIO as u8, Ordering::Relaxed);
                inode.unsafe_.store(0, Ordering::Relaxed);
                lost.push(inode.fileid);
            }
            let errors = &self.data(&inode).errors;
            let errno = inode.errno.load(Ordering::Relaxed);
            errors.record(&FsError::Before(errno.into()));
        }
        log_lost(lost.into_iter());
    }

    fn restore_open(&self, record: Record<Open>) {
        // The kernel knows what it has open, but its record may be lost for want of memory.
        let Some(inode) = self.table.get(record.nodeid) else {
            return;
        };
        inode.opens.fetch_add(1, Ordering::Relaxed);
        let cred = cred_of(&record.cred);
        if inode.is_dir() {
            let dir = DirHandle::new(inode, cred, record);
            self.dirs.insert(dir.handle(), Arc::new(dir));
        } else {
            self.add(OpenFile::new(inode, cred, record));
        }
    }

    /// A file has a hidden name, or was about to get it. What comes next waits until the server has said.
    fn restore_hidden(self: &Arc<Self>, name: Record<Hidden>) {
        let cred = cred_of(&name.cred);
        let (fs, inode) = (self.clone(), self.table.get(name.nodeid));
        let dir = self.hidden_in(name.dir_node);
        let silly = Silly { name, cred, dir };
        match inode {
            Some(inode) => {
                self.resume_hiding(&inode);
                exec::spawn(async move {
                    let _hiding = fs.resumed_hiding(&inode);
                    let found = fs
                        .nfs
                        .lookup(&silly.cred, &silly.name.dir, &silly.name.name);
                    let gone = |error: NfsError| FsError::from(error).says_gone();
                    if !found.await.is_err_and(gone) {
                        fs.hidden(silly, &inode).await;
                    }
                });
            }
            // It was closed, and the kernel has forgotten it.
            None => {
                exec::spawn(async move { fs.remove_silly(silly).await });
            }
        }
    }
}
