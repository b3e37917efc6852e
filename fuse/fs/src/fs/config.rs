//! The settings of the file system, most of which are mount options.

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

/// Who checks permissions (`permissions=`) besides the server, which decides on every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Permissions {
    /// The kernel checks modes (the mount option `default_permissions`) before it asks.
    #[default]
    Kernel,
    /// Only the server, which is asked for each caller.
    Server,
    /// As `Server`, and the kernel admits only this user.
    ServerForOne(u32),
}

/// For how long attributes are valid at least and at most (nfs(5)). All are zero with `noac`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttributeTimes {
    pub acregmin: Duration,
    pub acregmax: Duration,
    /// The same for directories, and for the names in them.
    pub acdirmin: Duration,
    pub acdirmax: Duration,
}

impl AttributeTimes {
    /// As `actimeo`.
    pub fn all(time: Duration) -> Self {
        AttributeTimes {
            acregmin: time,
            acregmax: time,
            acdirmin: time,
            acdirmax: time,
        }
    }
}

impl Default for AttributeTimes {
    fn default() -> Self {
        AttributeTimes {
            acregmin: Duration::from_secs(3),
            acregmax: Duration::from_secs(60),
            acdirmin: Duration::from_secs(30),
            acdirmax: Duration::from_secs(60),
        }
    }
}

/// Settings of one mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FsConfig {
    pub times: AttributeTimes,
    pub lookup_cache: LookupCache,
    pub permissions: Permissions,
    /// Do not ask the server at each open whether a file has changed.
    pub nocto: bool,
    /// Wait without limit for resources of this machine: a buffer or a registration.
    pub hard: bool,
    /// Write each WRITE through to stable storage before it is answered (`sync`).
    pub sync: bool,
    /// Ask for attributes with directory entries where it helps.
    pub readdirplus: bool,
    /// Budget of the page cache in bytes. The pool must be larger, for data in flight
    /// ([`FsConfig::pool_bytes`]).
    pub cache_bytes: usize,
    /// Writers wait while dirty data of all files takes more than this many bytes of memory.
    pub dirty_bytes: usize,
    /// The writers of a file wait while its dirty data takes more than this many bytes of memory.
    pub dirty_file_bytes: usize,
    /// The age at which dirty data is written back.
    pub dirty_age: Duration,
    /// Largest read-ahead of one open file, in bytes; 0 turns it off.
    pub readahead_bytes: usize,
    /// The most names cached for all directories together, existing or not.
    pub name_entries: usize,
    /// The longest name, as statfs(2) shows it: `name_max` of the server's PATHCONF.
    pub name_max: u32,
}

impl Default for FsConfig {
    fn default() -> Self {
        FsConfig {
            times: AttributeTimes::default(),
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
            name_entries: 1 << 17,
            name_max: 255,
        }
    }
}

impl FsConfig {
    /// The bytes that the buffer pool needs for this configuration and its data in flight, without
    /// those that the connection needs for messages.
    pub fn pool_bytes(&self) -> usize {
        self.cache_bytes + (self.cache_bytes / 4).max(32 << 20)
    }
}
