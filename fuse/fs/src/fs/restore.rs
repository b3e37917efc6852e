//! What a process does that goes on with a mount after another one has died: from the records it knows again
//! what was open and what was hidden ([`nfsrdma_record`]).
//!
//! It is not known what else of the dead process's calls the server has carried out, nor what the kernel was
//! told last. So the kernel drops the pages of open files, and a listing goes on at the server at the
//! position that the kernel has.

use super::Fs;
use super::dir_handle::DirHandle;
use super::error::FsError;
use super::inode::Silly;
use super::open_file::OpenFile;
use crate::credential::cred_of;
use crate::named;
use nfsrdma_nfs3::{Nfs3, NfsError};
use nfsrdma_record::{Hidden, Open, Record};
use nfsrdma_rpcrdma::exec;
use nfsrdma_rpcrdma::words::counted;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most files with lost data that have a line of their own in the log.
const MOST_NAMED: usize = 20;

fn log_lost(files: &[u64]) {
    for &fileid in files.iter().take(MOST_NAMED) {
        tracing::error!(
            "data may be lost that programs have written to {}: the process that served the mount died before \
             the server had it on stable storage; programs that have the file open get EIO",
            named::file(None, fileid)
        );
    }
    if files.len() > MOST_NAMED {
        let more = counted((files.len() - MOST_NAMED) as u64, "more file");
        tracing::error!("the same of {more}");
    }
}

impl<N: Nfs3> Fs<N> {
    /// Goes on with what was open. To be called before anything is served; more calls do nothing.
    pub fn restore(self: &Arc<Self>) {
        for open in self.records.opens().restore() {
            self.restore_open(open);
        }
        for hidden in self.records.hidden().restore() {
            self.restore_hidden(hidden);
        }
        self.restore_errors();
    }

    /// Data that the server did not have on stable storage is lost, and there may be errors of writing
    /// that no program was told. Each open file tells it, as if it had written the data.
    fn restore_errors(&self) {
        let mut lost = Vec::new();
        for inode in self.table.with_errors() {
            if inode.unsafe_.load(Ordering::Relaxed) != 0 {
                // In this order: whoever comes after this process must find one of them.
                inode.errno.store(libc::EIO as u8, Ordering::Relaxed);
                inode.unsafe_.store(0, Ordering::Relaxed);
                lost.push(inode.fileid);
            }
            let errors = &self.data(&inode).errors;
            for (_, file) in self.open_for_writing(&inode) {
                file.told.wrote(errors);
            }
            let errno = inode.errno.load(Ordering::Relaxed);
            errors.record(&FsError::Before(errno.into()));
        }
        log_lost(&lost);
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
        let (dir, silly) = (name.dir_node, Silly { name, cred });
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
                self.begin_removal(dir);
                exec::spawn(async move {
                    let _removal = fs.begun_removal(dir);
                    fs.remove_silly(silly).await;
                });
            }
        }
    }
}
