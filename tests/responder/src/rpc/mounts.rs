//! The list of mounts, for the procedure DUMP of MOUNT.

use parking_lot::Mutex;
use std::collections::VecDeque;

/// Most mounts that are remembered. The oldest are forgotten first.
const REMEMBERED: usize = 256;

/// The mounts of clients. The list is only advice, since clients may go without a notice.
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
