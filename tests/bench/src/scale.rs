//! How much data the rows work on.

/// How much of everything there is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Bytes of the large file.
    pub(crate) large: u64,
    /// Small files to stat, create, unlink.
    pub(crate) files: usize,
    /// Entries of the large directory.
    pub(crate) entries: usize,
    /// 4 KiB reads at depth 1.
    pub(crate) reads: usize,
    /// 4 KiB writes before one fsync.
    pub(crate) writes: usize,
    /// Files of the source tree.
    pub(crate) source: usize,
    /// The rows of `workload::daily` do so many times fewer operations.
    pub(crate) shrink: usize,
}

impl Scale {
    pub(crate) const FULL: Scale = Scale {
        large: 1 << 30,
        files: 10_000,
        entries: 100_000,
        reads: 20_000,
        writes: 5_000,
        source: 2_000,
        shrink: 1,
    };
    pub(crate) const QUICK: Scale = Scale {
        large: 256 << 20,
        files: 2_000,
        entries: 20_000,
        reads: 5_000,
        writes: 1_000,
        source: 400,
        shrink: 10,
    };
}
