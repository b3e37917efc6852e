//! What the mount options say to the file system.

use std::time::Duration;

/// Which name look-ups may be answered from memory (`lookupcache=`, nfs(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LookupCache {
    /// Names that exist, and names that do not.
    #[default]
    All,
    /// Only names that exist.
    Positive,
    /// None: each look-up asks the server.
    None,
}

/// Who says what a caller may do (`permissions=`), besides the server, whose word is the last
/// for every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Permissions {
    /// The kernel checks modes (the mount option `default_permissions`) before it asks.
    #[default]
    Kernel,
    /// Nobody does: the server is asked for each caller.
    Server,
    /// The same, and the kernel lets nobody in but this user.
    ServerForOne(u32),
}

/// Settings of one mount.
#[derive(Debug, Clone)]
pub struct FsConfig {
    /// How long attributes of a file are valid: at least and at most. Both zero is `noac`.
    pub acregmin: Duration,
    pub acregmax: Duration,
    /// The same for directories, and for the names in them.
    pub acdirmin: Duration,
    pub acdirmax: Duration,
    pub lookup_cache: LookupCache,
    pub permissions: Permissions,
    /// Do not ask the server at open whether a file changed.
    pub nocto: bool,
    /// Wait as long as it takes for what only this machine lacks, a buffer or a registration.
    pub hard: bool,
    /// Write each WRITE through to stable storage before it is answered (`sync`).
    pub sync: bool,
    /// Ask for attributes with directory entries where it helps.
    pub readdirplus: bool,
    /// Budget of the page cache in bytes. The pool must be larger by what is in flight:
    /// [`FsConfig::pool_bytes`].
    pub cache_bytes: usize,
    /// Bytes of memory held by dirty data of all files above which writers wait.
    pub dirty_bytes: usize,
    /// Bytes of memory held by dirty data of one file above which its writers wait.
    pub dirty_file_bytes: usize,
    /// Age at which dirty data is written back unasked.
    pub dirty_age: Duration,
    /// Largest read-ahead of one open file, in bytes; 0 turns it off.
    pub readahead_bytes: usize,
    /// WRITEs under way at a time, however many calls the server takes.
    pub write_parallel: usize,
    /// Names remembered, existing or not, over all directories.
    pub name_entries: usize,
}

impl Default for FsConfig {
    fn default() -> Self {
        FsConfig {
            acregmin: Duration::from_secs(3),
            acregmax: Duration::from_secs(60),
            acdirmin: Duration::from_secs(30),
            acdirmax: Duration::from_secs(60),
            lookup_cache: LookupCache::All,
            permissions: Permissions::Kernel,
            nocto: false,
            hard: true,
            sync: false,
            readdirplus: true,
            cache_bytes: 256 << 20,
            dirty_bytes: 64 << 20,
            dirty_file_bytes: 32 << 20,
            dirty_age: Duration::from_secs(5),
            readahead_bytes: 4 << 20,
            write_parallel: 256,
            name_entries: 1 << 17,
        }
    }
}

impl FsConfig {
    /// Bytes the buffer pool needs for this configuration, data in flight included; what the
    /// connection takes for messages comes on top.
    pub fn pool_bytes(&self) -> usize {
        self.cache_bytes + (self.cache_bytes / 4).max(32 << 20)
    }
}
