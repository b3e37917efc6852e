//! Numbers of the FUSE protocol: operation codes, flags and sizes.
//!
//! The names are those of include/uapi/linux/fuse.h without `FUSE_`. Operation codes have a table
//! of their names, for log messages; the flags of INIT, SETATTR, OPEN and of notifications have a
//! module each.

/// Declares operation codes and a table of their names.
macro_rules! opcodes {
    ($($name:ident = $number:literal),* $(,)?) => {
        /// Operation codes of requests.
        pub mod opcode {
            $(pub const $name: u32 = $number;)*

            /// The name of an operation code, for log messages.
            pub fn name(opcode: u32) -> &'static str {
                match opcode {
                    $($number => stringify!($name),)*
                    _ => "UNKNOWN",
                }
            }

            /// Whether the kernel waits for a reply.
            pub fn has_reply(opcode: u32) -> bool {
                !matches!(opcode, FORGET | BATCH_FORGET | INTERRUPT)
            }

            /// All operation codes.
            pub const ALL: &[u32] = &[$($number),*];
        }
    };
}

opcodes! {
    LOOKUP = 1,
    FORGET = 2,
    GETATTR = 3,
    SETATTR = 4,
    READLINK = 5,
    SYMLINK = 6,
    MKNOD = 8,
    MKDIR = 9,
    UNLINK = 10,
    RMDIR = 11,
    RENAME = 12,
    LINK = 13,
    OPEN = 14,
    READ = 15,
    WRITE = 16,
    STATFS = 17,
    RELEASE = 18,
    FSYNC = 20,
    SETXATTR = 21,
    GETXATTR = 22,
    LISTXATTR = 23,
    REMOVEXATTR = 24,
    FLUSH = 25,
    INIT = 26,
    OPENDIR = 27,
    READDIR = 28,
    RELEASEDIR = 29,
    FSYNCDIR = 30,
    GETLK = 31,
    SETLK = 32,
    SETLKW = 33,
    ACCESS = 34,
    CREATE = 35,
    INTERRUPT = 36,
    BMAP = 37,
    DESTROY = 38,
    IOCTL = 39,
    POLL = 40,
    NOTIFY_REPLY = 41,
    BATCH_FORGET = 42,
    FALLOCATE = 43,
    READDIRPLUS = 44,
    RENAME2 = 45,
    LSEEK = 46,
    COPY_FILE_RANGE = 47,
    SETUPMAPPING = 48,
    REMOVEMAPPING = 49,
    SYNCFS = 50,
    TMPFILE = 51,
    STATX = 52,
}

/// The bit in the number of a request that was read before ([`notify::RESEND`]).
pub const UNIQUE_RESEND: u64 = 1 << 63;

/// The root directory's node id.
pub const ROOT_ID: u64 = 1;
/// Its second one, where the mount shows it as a child of the first ([`Channel::show_root`](super::Channel::show_root)).
pub const SHOWN_ROOT_ID: u64 = u64::MAX;

/// The node id that the file system has chosen, for the one in a request.
pub(crate) fn of_file_system(nodeid: u64) -> u64 {
    match nodeid {
        SHOWN_ROOT_ID => ROOT_ID,
        other => other,
    }
}

/// The length of the header of each request, in bytes.
pub const IN_HEADER: usize = 40;
/// The length of the header of each reply and notification, in bytes.
pub const OUT_HEADER: usize = 16;
/// The kernel refuses a read(2) into a smaller buffer.
pub const MIN_READ_BUFFER: usize = 8192;

/// INIT flags.
pub mod init {
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const HANDLE_KILLPRIV: u64 = 1 << 19;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const HAS_RESEND: u64 = 1 << 39;
}

/// SETATTR flags: which fields are valid.
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
}

/// GETATTR flag: the handle is valid.
pub const GETATTR_FH: u32 = 1 << 0;
/// WRITE flag: the data comes from the page cache (the handle is a guess).
pub const WRITE_CACHE: u32 = 1 << 0;
/// RELEASE flag: the locks of flock(2) end with the open file.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;

/// Flags of the replies to OPEN and OPENDIR.
pub mod fopen {
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NOFLUSH: u32 = 1 << 5;
}

/// Notification codes.
pub mod notify {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    pub const DELETE: i32 = 6;
    pub const RESEND: i32 = 7;
    /// INVAL_ENTRY flag: the name is looked up again before it is used, instead of being dropped.
    pub const EXPIRE_ONLY: u32 = 1 << 0;
}
