//! How commands talk to the processes that serve mounts: by Unix sockets in private directories,
//! named after the mount's device number, so that no file system has to be asked.

pub(crate) mod client;
pub(crate) mod control;
pub(crate) mod exit_watch;
pub(crate) mod flush_request;
pub(crate) mod pending;
pub(crate) mod sockets;
