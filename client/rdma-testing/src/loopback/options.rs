//! The properties in which devices differ.

/// The properties of the simulated device.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether one handle covers a list of buffers, as in soft-iWARP, or one buffer only.
    pub scatter_handle: bool,
    /// Whether Send with Invalidate is supported.
    pub remote_invalidate: bool,
    /// Whether an invalidation takes a work request, as memory windows do.
    pub posted_invalidation: bool,
    /// Largest Send, in bytes.
    pub max_message: usize,
    /// Largest number of buffers in one exposure.
    pub max_segments: usize,
    /// Whether private data is padded with zeros to
    /// [`PRIVATE_DATA_MAX`](nfsrdma_rdma::PRIVATE_DATA_MAX), as InfiniBand does.
    pub pad_private_data: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            scatter_handle: true,
            remote_invalidate: true,
            posted_invalidation: false,
            max_message: 1 << 20,
            max_segments: 256,
            pad_private_data: false,
        }
    }
}
