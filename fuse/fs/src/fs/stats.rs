//! The counters of the file system, for the statistics of a mount.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What the file system counts.
        #[derive(Debug, Default)]
        pub struct Stats { $($(#[$doc])* pub $name: Count,)* }

        impl Stats {
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

stats! {
    /// Reads answered from the page cache; `read_misses`: reads that waited for the server.
    read_hits,
    read_misses,
    read_bytes,
    /// Bytes of READs that were started ahead.
    readahead_bytes,
    write_bytes,
    /// WRITEs and COMMITs sent.
    writes_sent,
    commits_sent,
    /// READs sent.
    reads_sent,
    /// Waits of writes for memory, a flush, or less dirty data.
    write_waits,
    /// Replies to WRITE and COMMIT whose write verifier shows that the server has restarted.
    verifier_changes,
    attribute_hits,
    attribute_misses,
    name_hits,
    name_negative_hits,
    name_misses,
    access_hits,
    access_misses,
    /// Invalidations of cached contents because somebody else changed a file or directory.
    foreign_changes,
    silly_renames,
    write_errors,
}
