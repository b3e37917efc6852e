//! How commands and the processes that serve mounts talk to each other: Unix sockets in private
//! directories, named by the mount's device number, so that no file system has to be asked.

pub(crate) mod client;
pub(crate) mod control;
pub(crate) mod exit_watch;
pub(crate) mod flush_request;
pub(crate) mod pending;
pub(crate) mod sockets;
