//! RELEASEs under way that write data or give locks back, which takes calls.
//!
//! Until such a RELEASE has ended, its file counts as open: who removes the file's name meanwhile hides it,
//! and the RELEASE finally removes the hidden name. But no program has the file open any more, and a
//! program that removes the file and then its directory expects both to succeed. So RMDIR waits for these
//! RELEASEs as for hidden names that are being removed (`remove.rs`).

use super::inode::Inode;
use crate::sync::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The files by their nodes, each with the number of its RELEASEs. The kernel has a limited number of
/// RELEASEs under way (`max_background`), so they are few.
#[derive(Debug, Default)]
pub(super) struct Releases(Mutex<FxHashMap<u64, (Arc<Inode>, u32)>>);

/// While this lives, the RELEASE is under way.
pub(super) struct UnderWay<'a> {
    releases: &'a Releases,
    node: u64,
}

impl Releases {
    pub(super) fn begin(&self, inode: &Arc<Inode>) -> UnderWay<'_> {
        let node = inode.nodeid;
        let mut files = self.0.lock();
        files.entry(node).or_insert_with(|| (inode.clone(), 0)).1 += 1;
        UnderWay {
            releases: self,
            node,
        }
    }

    pub(super) fn any(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// Whether one of the files has a hidden name, in this directory or in any, and is open only by its
    /// RELEASEs.
    pub(super) fn hold_in(&self, dir: Option<u64>) -> bool {
        let wanted = |hidden_in| dir.is_none_or(|dir| dir == hidden_in);
        let files = self.0.lock();
        files.values().any(|(inode, releases)| {
            inode.opens.load(Ordering::SeqCst) <= *releases && inode.hidden_in().is_some_and(wanted)
        })
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut files = self.releases.0.lock();
        if let Some((_, releases)) = files.get_mut(&self.node) {
            *releases -= 1;
            if *releases == 0 {
                files.remove(&self.node);
            }
        }
    }
}
