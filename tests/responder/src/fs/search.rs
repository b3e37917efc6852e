//! Finds objects by identity where the kernel cannot open them by handle: without the privilege, or
//! on file systems without handles. Places of objects are remembered; others (after a restart, or
//! moved by others) are searched for in the whole export.

use super::export::{Export, open_component};
use super::status::{self, Result};
use crate::sys::{self, KernelHandle};
use lru::LruCache;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat, StatxFlags};
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The type of a handle that is made here, of inode number and birth time. The kernel's types are
/// not negative.
const OWN: i32 = -1;
/// Most places that are remembered.
const PLACES: NonZeroUsize = NonZeroUsize::new(1 << 17).unwrap();
/// Directories deeper than this are not searched.
const DEPTH_MAX: usize = 256;

/// The identity of an object for its lifetime: the kernel's handle, or where the file system has
/// none, inode number and birth time (which differs if the number is reused).
pub(super) fn identify(fd: BorrowedFd<'_>, stat: &Stat) -> Result<KernelHandle> {
    match sys::handle_of(fd) {
        Ok(handle) if handle.kind >= 0 && handle.data.len() <= super::handle::KERNEL_MAX => {
            return Ok(handle);
        }
        Ok(_) => {}
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::EOPNOTSUPP | libc::EOVERFLOW | libc::EPERM | libc::ENOSYS)
            ) => {}
        Err(e) => return Err(status::of_io(e)),
    }
    let extended =
        rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME).map_err(status::of)?;
    let mut data = stat.st_ino.to_be_bytes().to_vec();
    if extended.stx_mask & StatxFlags::BTIME.bits() != 0 {
        data.extend_from_slice(&extended.stx_btime.tv_sec.to_be_bytes());
        data.extend_from_slice(&extended.stx_btime.tv_nsec.to_be_bytes());
    }
    Ok(KernelHandle { kind: OWN, data })
}

#[derive(Debug)]
struct Place {
    parent: KernelHandle,
    name: Box<[u8]>,
}

/// The places where objects were seen.
#[derive(Debug)]
pub(super) struct Places {
    seen: Mutex<LruCache<(u32, KernelHandle), Place>>,
}

impl Default for Places {
    fn default() -> Self {
        Places {
            // It grows as needed, since most servers never use it.
            seen: Mutex::new(LruCache::unbounded()),
        }
    }
}

impl Places {
    pub(super) fn remember(
        &self,
        export: u32,
        object: KernelHandle,
        parent: KernelHandle,
        name: &[u8],
    ) {
        let mut seen = self.seen.lock();
        seen.put(
            (export, object),
            Place {
                parent,
                name: name.into(),
            },
        );
        while seen.len() > PLACES.get() {
            seen.pop_lru();
        }
    }

    /// Opens the object by the remembered place, or by a search.
    pub(super) fn find(&self, export: &Export, object: &KernelHandle) -> Option<OwnedFd> {
        self.by_place(export, object, 0)
            .or_else(|| self.by_search(export, object))
    }

    fn by_place(&self, export: &Export, object: &KernelHandle, depth: usize) -> Option<OwnedFd> {
        if depth > DEPTH_MAX {
            return None;
        }
        let root = export.root.try_clone().ok()?;
        if &identity(root.as_fd())? == object {
            return Some(root);
        }
        let (parent, name) = {
            let mut seen = self.seen.lock();
            let place = seen.get(&(export.id, object.clone()))?;
            (place.parent.clone(), place.name.clone())
        };
        let parent = self.by_place(export, &parent, depth + 1)?;
        let found = open_component(parent.as_fd(), &name).ok()?;
        // The name may belong to another object by now.
        (&identity(found.as_fd())? == object).then_some(found)
    }

    /// Searches the export, and remembers all objects on the way.
    fn by_search(&self, export: &Export, object: &KernelHandle) -> Option<OwnedFd> {
        let mut stack = vec![(export.root.try_clone().ok()?, 0)];
        while let Some((dir, depth)) = stack.pop() {
            let here = identity(dir.as_fd())?;
            if &here == object {
                return Some(dir);
            }
            for (name, kind) in list(dir.as_fd()) {
                let Ok(found) = open_component(dir.as_fd(), &name) else {
                    continue;
                };
                let Some(identity) = identity(found.as_fd()) else {
                    continue;
                };
                let hit = &identity == object;
                self.remember(export.id, identity, here.clone(), &name);
                if hit {
                    return Some(found);
                }
                let descend = matches!(kind, FileType::Directory | FileType::Unknown);
                if descend && depth < DEPTH_MAX && stack.len() < 512 {
                    stack.push((found, depth + 1));
                }
            }
        }
        None
    }
}

fn identity(fd: BorrowedFd<'_>) -> Option<KernelHandle> {
    let stat = rustix::fs::fstat(fd).ok()?;
    identify(fd, &stat).ok()
}

fn list(dir: BorrowedFd<'_>) -> Vec<(Vec<u8>, FileType)> {
    let mut names = Vec::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(open) = rustix::fs::openat(dir, c".", flags, Mode::empty()) else {
        return names;
    };
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(open, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push((name.to_vec(), entry.file_type()));
        }
    }
    names
}
