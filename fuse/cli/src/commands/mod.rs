//! The commands that have no directory of their own. Each takes its arguments from
//! [`cli`](crate::cli) and returns when it has done its work; `mount` ends as the serving process.

pub(crate) mod fstab;
pub(crate) mod log;
pub(crate) mod mount;
mod remount;
pub(crate) mod server;
pub(crate) mod unmount;
