//! The end of a mount's locks, and the locks that killed mounts have left at the server.

use super::manager::Locks;
use super::repeat::is_unanswered;
use nfsrdma_nfs3::nlm::{Abandoned, Journal, LockCall, LockTarget, Orphan};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

impl Locks {
    /// The mount has ended: unlocks everything, within `patience`. Returns how many locks are left
    /// at the server.
    ///
    /// If the mount was aborted (`umount -f`), files are open and get no FLUSH or RELEASE.
    pub async fn finish(self: &Arc<Self>, patience: Duration) -> usize {
        self.unused.fire();
        let held: Vec<_> = self.state.lock().holdings.keys().copied().collect();
        for (file, owner) in held {
            let this = self.clone();
            self.spawn(async move {
                // No program waits for this result.
                let _ = this.unlock_all(file, owner).await;
            });
        }
        self.unlock_unknown();
        let mut running = self.running.subscribe();
        let _ = tokio::time::timeout(patience, running.wait_for(|of| *of == 0)).await;
        self.ending.fire();
        self.server.end().await;
        if let Some(journal) = &self.journal {
            journal.end();
        }
        self.state.lock().table.len()
    }

    /// A process that has died may have entered owners in the journal whose locks it did not record, mostly as it had not
    /// asked for them. Nobody uses their numbers now.
    fn unlock_unknown(self: &Arc<Self>) {
        let all = self.journal.iter().flat_map(Journal::all);
        let known: HashSet<_> = {
            let state = self.state.lock();
            let holdings = state.holdings.values();
            holdings.map(|of| (of.svid, of.file.handle)).collect()
        };
        for orphan in all.filter(|of| !known.contains(&(of.svid, of.file))) {
            let this = self.clone();
            self.spawn(async move {
                if this.unlock_of(&orphan).await
                    && let Some(journal) = &this.journal
                {
                    this.journaled(journal.remove(orphan.svid, &orphan.file));
                }
            });
        }
    }

    /// Unlocks what killed mounts of this machine have left, according to their journals.
    pub async fn unlock_orphans(&self, journals: Vec<Abandoned>) {
        self.server.settled().await;
        for journal in journals {
            let count = journal.orphans.len();
            for orphan in &journal.orphans {
                if !self.unlock_of(orphan).await {
                    return;
                }
            }
            if count > 0 {
                tracing::info!(count, "unlocked what a mount that was killed had locked");
            }
            journal.done();
        }
    }

    /// Unlocks what an owner has on a file that is not known here. False if the mount ends before.
    async fn unlock_of(&self, orphan: &Orphan) -> bool {
        let target = LockTarget {
            file: orphan.file,
            svid: orphan.svid,
            offset: 0,
            length: 0,
        };
        let unlock = LockCall::Unlock;
        let unlocked = self.repeat(&orphan.cred, &target, unlock, is_unanswered);
        unlocked.await.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Lasting;
    use super::super::fake_server::{CONFIG, FakeServer, lock, range, request};
    use super::super::range::Mode;
    use super::*;
    use tokio::runtime::Handle;

    #[tokio::test]
    async fn an_orderly_end_leaves_no_journal_whoever_still_has_the_locks() {
        let dir = std::env::temp_dir().join(format!("nfsrdma-ending-{:x}", fastrand::u64(..)));
        let journal = Journal::create(&dir, "192.0.2.1".parse().unwrap(), true).unwrap();
        let server = Arc::new(FakeServer::default());
        let asked = request(1, range(20, 29), Mode::Write);
        // A process that has died left this, and no record.
        journal.add(7, &asked.file.handle, &asked.cred).unwrap();
        server.known.lock().lock(7, asked.range, Some(asked.mode));
        let lasting = Lasting {
            journal: Some(journal),
            ..Lasting::default()
        };
        let locks = Locks::new(server.clone(), CONFIG, lasting, Handle::current());
        lock(&locks, &request(1, range(0, 9), Mode::Write)).await;
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        assert_eq!(locks.finish(Duration::from_secs(60)).await, 0);
        assert!(!dir.exists() && server.known.lock().held.is_empty());
        drop(locks);
    }
}
