//! Places for the write-back of files that have been dirty for too long.
//!
//! A file keeps its place as long as its WRITE or COMMIT has no answer, as where the server keeps answering
//! NFS3ERR_JUKEBOX, or where no Kerberos context can be made for who wrote it. So users have places of their own: the
//! data of others is not held up.

use crate::sync::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The most files that are written back at the same time, if they are of one user. Several share them, but each
/// has one.
const PLACES: usize = 16;

/// How many places each user holds.
#[derive(Debug, Default)]
pub(super) struct Sweeps(Mutex<HashMap<u32, usize>>);

impl Sweeps {
    /// A place for a user, if there is one, when files of this many users are to be written back.
    pub(super) fn enter(self: &Arc<Self>, uid: u32, users: usize) -> Option<Place> {
        let mut held = self.0.lock();
        let own = held.entry(uid).or_default();
        if *own >= (PLACES / users).max(1) {
            return None;
        }
        *own += 1;
        let sweeps = self.clone();
        Some(Place { sweeps, uid })
    }
}

/// A place of a user.
#[derive(Debug)]
pub(super) struct Place {
    sweeps: Arc<Sweeps>,
    uid: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.sweeps.0.lock();
        if let Some(own) = held.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                held.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_all_places_holds_up_nobody_else() {
        let sweeps = Arc::new(Sweeps::default());
        let all = |uid, users| std::iter::from_fn(|| sweeps.enter(uid, users)).collect::<Vec<_>>();
        let first = all(1, 1);
        assert_eq!(first.len(), PLACES);
        assert_eq!(all(2, 2).len(), PLACES / 2);
        assert_eq!(all(2, 1000).len(), 1);
        assert!(all(1, 1).is_empty());
        drop(first);
        assert_eq!(all(1, 2).len(), PLACES / 2);
        assert!(sweeps.0.lock().is_empty());
    }
}
