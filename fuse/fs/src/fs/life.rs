//! What happens about once a second ([`Fs::tick`]), and at the end of the mount ([`Fs::shutdown`]).

use super::Fs;
use super::clock::{Nanos, nanos};
use super::inode::Inode;
use super::unwritten::Unwritten;
use crate::sync::Mutex;
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rpcrdma::exec;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pool memory that has been free for this long is given back to the system.
const REST: Nanos = 10_000_000_000;
/// The most files of one user that are written back at a time because of their age: other calls must not
/// wait for those of thousands. Where one user's have no answer, as while the server keeps saying
/// NFS3ERR_JUKEBOX, or there is no Kerberos context for him, the data of others is not held up.
const MOST_AT_A_TIME: usize = 16;
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
        if now.saturating_sub(self.rested.load(Ordering::Relaxed)) >= REST {
            self.rested.store(now, Ordering::Relaxed);
            self.pool.release_unused();
        }
        let before = now.saturating_sub(nanos(self.config.dirty_age));
        let mut under_way: HashMap<u32, usize> = HashMap::new();
        let mut due: HashMap<u32, Vec<Arc<Inode>>> = HashMap::new();
        for inode in self.unsafe_inodes() {
            let Some(data) = inode.data() else { continue };
            // WRITEs that the server answered with FILE_SYNC, and COMMITs for lack of memory, leave
            // nothing to do that would remove the file. It must not keep the mount busy.
            self.note_safe(&inode);
            let state = data.with(|inner| {
                let write_back = inner.write_back();
                let user = write_back.unsafe_cred()?.uid;
                Some((user, write_back.is_flushing(), write_back.is_due(before)))
            });
            match state {
                Some((user, true, _)) => *under_way.entry(user).or_default() += 1,
                Some((user, false, true)) => due.entry(user).or_default().push(inode),
                _ => {}
            }
        }
        for (user, files) in due {
            let busy = under_way.get(&user).copied().unwrap_or(0);
            let places = MOST_AT_A_TIME.saturating_sub(busy).min(files.len());
            let files = Arc::new(Mutex::new(files));
            for _ in 0..places {
                let (fs, files) = (self.clone(), files.clone());
                exec::spawn(async move {
                    let next = || files.lock().pop();
                    while let Some(inode) = next() {
                        fs.write_back(&inode, true).await;
                    }
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
