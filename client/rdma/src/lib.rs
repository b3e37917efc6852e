//! The contract between whoever speaks RPC-over-RDMA and whatever moves the bytes, in the
//! terms of RDMA verbs: buffers that are registered memory, handles that give a peer access
//! to them, work requests, completions, connections with private data.
//!
//! A provider (soft-iWARP, verbs) implements [`Provider`],
//! [`Listener`], [`QueuePair`] and [`CompletionQueue`]; requester and responder know nothing
//! else of it.

mod attempts;
pub mod buf;
pub mod contract;
pub mod error;
mod event_fd;
mod handshakes;
mod instant;
mod spin;
mod sync;

pub use attempts::Attempts;
pub use buf::{Buf, BufMut, Place, Pool, pool_len};
pub use contract::*;
pub use error::{Error, Result};
pub use event_fd::EventFd;
pub use handshakes::{Handshake, Handshakes};
pub use instant::{Instant, nanoseconds};
pub use spin::Spin;
