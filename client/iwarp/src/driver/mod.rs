//! Sockets and threads.

pub(crate) mod connect;
pub(crate) mod listen;
pub(crate) mod poller;
pub(crate) mod region;
pub(crate) mod shared;
pub(crate) mod spin;
pub(crate) mod sys;
