//! Users who have no valid ticket.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use nfsrdma_nfs3::{Credential, NfsError};
use std::collections::HashMap;

/// The users of whom the last WRITE or COMMIT was not made because they have no valid ticket, and why.
#[derive(Debug, Default)]
pub(super) struct Ticketless {
    any: AtomicBool,
    users: Mutex<HashMap<u32, NfsError>>,
}

impl Ticketless {
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(super) fn why(&self, cred: &Credential) -> Option<NfsError> {
        if !self.any() {
            return None;
        }
        self.users.lock().get(&cred.uid).cloned()
    }

    pub(super) fn insert(&self, cred: &Credential, why: NfsError) {
        let mut users = self.users.lock();
        users.insert(cred.uid, why);
        self.any.store(true, Ordering::Relaxed);
    }

    /// A call was made for this user.
    pub(super) fn remove(&self, cred: &Credential) {
        if self.any() {
            let mut users = self.users.lock();
            users.remove(&cred.uid);
            self.any.store(!users.is_empty(), Ordering::Relaxed);
        }
    }
}
