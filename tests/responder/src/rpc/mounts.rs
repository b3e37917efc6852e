//! Who has mounted what, for DUMP of MOUNT.

use parking_lot::Mutex;
use std::collections::VecDeque;

/// Mounts remembered for DUMP; the oldest are forgotten first.
const REMEMBERED: usize = 256;

/// Who has mounted what: advice only, as clients may go without a word.
#[derive(Debug, Default)]
pub struct Mounts {
    pub(super) list: Mutex<VecDeque<(String, Vec<u8>)>>,
}

impl Mounts {
    pub(super) fn add(&self, host: String, path: &[u8]) {
        self.remove(&host, Some(path));
        let mut list = self.list.lock();
        if list.len() == REMEMBERED {
            list.pop_front();
        }
        list.push_back((host, path.to_vec()));
    }

    pub(super) fn remove(&self, host: &str, path: Option<&[u8]>) {
        self.list
            .lock()
            .retain(|(h, p)| h != host || path.is_some_and(|path| p != path));
    }
}
