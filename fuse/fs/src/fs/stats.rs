//! The counters of the file system.

use crate::counters::counters;

counters! {
    /// What the file system counts.
    Stats {
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
}
