//! Cached data of a file that somebody else has changed.
//!
//! A reply that shows such a change gives the file a new epoch at once, in its
//! [`State`](super::inode::State), which has a lock of its own. The thread that handles the reply
//! drops the cached data only then, and may have to wait for the lock of the [`FileState`]. Another
//! thread knows of the change meanwhile, and may even have answered an open that shows it. So
//! whoever uses cached bytes, which is possible only with the `FileState` locked, compares the epoch
//! of the file with that of the bytes first, and drops them if it is another one.
//!
//! The `FileState` is always locked before the `State`.

use super::file::FileState;
use super::inode::Inode;
use super::inode_flags::Flag;

/// Drops cached data that somebody else has changed, as far as that is known. `inner` is the state
/// of the data of `inode`.
pub(super) fn drop_outdated(inner: &mut FileState, inode: &Inode) {
    let epoch = inode.state.lock().epoch;
    inner.has_epoch(epoch);
}

/// The file's size, if it is known, including data that the server does not have yet. The file's
/// lock is held, so `end` forgets data only after the attributes include it.
pub(super) fn size_with(inner: &FileState, inode: &Inode) -> Option<u64> {
    let end = inner.end();
    let size = inode.state.lock().attributes()?.size;
    Some(size.max(end))
}

/// As [`size_with`], for who then uses cached bytes: [`drop_outdated`] in addition, with the state
/// locked once. `None` also if the server does not know the file any more: it did not end there.
pub(super) fn current_size(inner: &mut FileState, inode: &Inode) -> Option<u64> {
    let end = inner.end();
    let (size, epoch) = {
        let state = inode.state.lock();
        (state.attributes().map(|known| known.size), state.epoch)
    };
    inner.has_epoch(epoch);
    match inode.flags.has(Flag::Stale) {
        true => None,
        false => Some(size?.max(end)),
    }
}

#[cfg(test)]
#[path = "outdated_tests.rs"]
mod tests;
