//! Data that is kept because the user who wrote it has no valid ticket.
//!
//! It is what was written before that was known: no more is taken of such a user ([`super::sync`]). It is tried again
//! by each fsync(2) and close(2) of this user, and by the tick. It is given up, as what the server refuses, when an
//! operation of somebody else who may write the file needs it at the server ([`Files::write_back_for`]), when its
//! user gives up a lock, or when it takes too much of the room for everybody's data.

use super::file::{FileData, FileState};
use super::files::Files;
use super::inode::Inode;
use nfsrdma_nfs3::{Credential, Nfs3, NfsError};

impl<N: Nfs3> Files<N> {
    /// Whether a WRITE or COMMIT is not made now, and its data kept, because its user has no valid ticket: until
    /// there is one, or the mount ends.
    pub(super) fn waits_for_ticket(&self, error: &NfsError) -> bool {
        let lacks = matches!(error, NfsError::Expired(_) | NfsError::NoCredential(_));
        lacks && self.config.hard && !self.at_end()
    }

    /// Why the data of a file is kept; `None` if it is not.
    pub(super) fn no_ticket(&self, inner: &mut FileState) -> Option<NfsError> {
        let cred = inner.write_back().unsafe_cred()?;
        self.shared.ticketless.why(cred)
    }

    /// Whether the data of a file that is not safe is that of the user of `cred`.
    pub(super) fn has_written(&self, cred: &Credential, inode: &Inode) -> bool {
        let own = |inner: &mut FileState| {
            let known = inner.write_back().unsafe_cred();
            known.is_some_and(|known| known.uid == cred.uid)
        };
        inode.data().is_some_and(|data| data.with(own))
    }

    /// Gives up the kept data of a file, if it is kept still.
    pub(super) fn give_up(&self, inode: &Inode) {
        let Some(data) = inode.data() else { return };
        let given_up = data.with(|inner| {
            let why = self.no_ticket(inner)?;
            Some((why, inner.write_back().give_up()))
        });
        let Some((why, lost)) = given_up else { return };
        self.write_failed(inode, data, &lost, &why.into());
        data.with(|inner| inner.write_back().write_ended(0..0));
        data.changed.notify_waiters();
        self.shared.room.notify_one();
    }

    /// The user of `cred` gives a lock up. What was written under it cannot be written later, over what the next holder
    /// writes.
    pub(super) fn give_up_with_lock(&self, cred: &Credential, inode: &Inode) {
        if self.has_written(cred, inode) {
            self.give_up(inode);
        }
    }

    /// Memory is short: gives up kept data of the largest files, until it takes no more than half of the room
    /// for all dirty data.
    pub(super) fn limit_ticketless(&self) {
        if !self.shared.ticketless.any() {
            return;
        }
        let takes = |data: &FileData| {
            data.with(|inner| {
                self.no_ticket(inner)?;
                Some(inner.pages().dirty_held())
            })
        };
        let files: Vec<_> = self.unsafe_files.lock().values().cloned().collect();
        let mut kept: Vec<_> = files
            .into_iter()
            .filter_map(|inode| Some((takes(inode.data()?)?, inode)))
            .collect();
        kept.sort_by_key(|(takes, _)| *takes);
        let mut sum: u64 = kept.iter().map(|(takes, _)| takes).sum();
        while sum > self.config.dirty_bytes as u64 / 2
            && let Some((takes, inode)) = kept.pop()
        {
            self.give_up(&inode);
            sum -= takes;
        }
    }
}
