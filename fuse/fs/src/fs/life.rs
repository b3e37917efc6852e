//! What happens about once a second ([`Fs::tick`]), and at the end of the mount ([`Fs::shutdown`]).

use super::Fs;
use super::clock::{Nanos, nanos};
use super::inode::Inode;
use super::unwritten::Unwritten;
use crate::sync::Mutex;
use nfsrdma_nfs3::Nfs3;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pool memory that has been free for this long is given back to the system.
const REST: Nanos = 10_000_000_000;
/// How long the end of the mount waits for the removal of hidden names, which a server may put off.
const LAST_WAIT: Duration = Duration::from_secs(10);

impl<N: Nfs3> Fs<N> {
    /// Starts the write-back of files that have been dirty for longer than the configuration
    /// allows, and other periodic work. To be called about once a second.
    pub fn tick(self: &Arc<Self>) {
        self.check_open_files();
        self.check_export();
        let now = self.now();
        let calls = self.nfs.calls_at_a_time();
        self.shared.calls.store(calls, Ordering::Relaxed);
        self.log_failures();
        if now.saturating_sub(self.rested.load(Ordering::Relaxed)) >= REST {
            self.rested.store(now, Ordering::Relaxed);
            self.pool.release_unused();
        }
        let before = now.saturating_sub(nanos(self.config.dirty_age));
        let mut files: HashMap<u32, Vec<Arc<Inode>>> = HashMap::new();
        for inode in self.unsafe_inodes() {
            let Some(data) = inode.data() else { continue };
            // WRITEs that the server answered with FILE_SYNC, and COMMITs for lack of memory, leave
            // nothing to do that would remove the file. It must not keep the mount busy.
            self.note_safe(&inode);
            let due_for = data.with(|inner| {
                let write_back = inner.write_back();
                let due = write_back.is_due(before) && !write_back.is_flushing();
                due.then(|| write_back.unsafe_cred().map(|cred| cred.uid))
            });
            if let Some(user) = due_for.flatten() {
                files.entry(user).or_default().push(inode);
            }
        }
        self.sweep(files);
    }

    /// Writes back files of these users, a few at a time: other calls must not wait for those of thousands of
    /// files. Those for which there is no place now are found again by the next tick.
    fn sweep(self: &Arc<Self>, files: HashMap<u32, Vec<Arc<Inode>>>) {
        let users = files.len();
        for (user, files) in files {
            let files = Arc::new(Mutex::new(files));
            while !files.lock().is_empty()
                && let Some(place) = self.sweeps.enter(user, users)
            {
                let (fs, files) = (self.clone(), files.clone());
                nfsrdma_rpcrdma::exec::spawn(async move {
                    let next = || files.lock().pop();
                    while let Some(inode) = next() {
                        fs.write_back(&inode, true).await;
                    }
                    drop(place);
                });
            }
        }
    }

    /// Call after the connection to the kernel has ended. Writes back and commits everything,
    /// removes the hidden files, and returns the data that could not be written.
    pub async fn shutdown(self: &Arc<Self>) -> Vec<Unwritten> {
        self.close();
        // If the mount was aborted (`umount -f`), files are still open and get no RELEASE.
        let open = self.files.select(|_| true);
        self.write_back_all().await;
        for (_, file) in open {
            if let Some(silly) = file.inode.take_hidden(true) {
                self.remove_hidden(&file.inode, silly).await;
            }
        }
        self.until_none_is_hidden(None, LAST_WAIT).await;
        let lost = std::mem::take(&mut *self.lost.lock()).all();
        self.with_names(lost)
    }
}
