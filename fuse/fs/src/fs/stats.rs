//! Counters.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What the file system counts.
        #[derive(Debug, Default)]
        pub struct Stats { $($(#[$doc])* pub $name: Count,)* }

        impl Stats {
            /// All counters by name.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

/// A counter.
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
    /// Reads answered from the page cache, and reads that waited for the server.
    read_hits,
    read_misses,
    read_bytes,
    /// Bytes fetched before they were asked for.
    readahead_bytes,
    write_bytes,
    /// WRITEs and COMMITs sent.
    writes_sent,
    commits_sent,
    /// READs sent.
    reads_sent,
    /// Of these, before a flush, to write pages as a whole.
    gap_reads,
    /// Writes that waited because too much was dirty.
    write_waits,
    /// Blocks written again because the server restarted.
    verifier_changes,
    attribute_hits,
    attribute_misses,
    name_hits,
    name_negative_hits,
    name_misses,
    access_hits,
    access_misses,
    /// Contents voided because somebody else changed them.
    foreign_changes,
    silly_renames,
    directory_restarts,
    write_errors,
}
