//! The commands that have no directory of their own. Each takes its arguments from
//! [`cli`](crate::cli) and returns when it is done; `mount` returns in the parent, while its child
//! becomes the serving process.

pub(crate) mod dead;
pub(crate) mod fstab;
pub(crate) mod log;
pub(crate) mod mount;
mod remount;
pub(crate) mod serve;
pub(crate) mod server;
pub(crate) mod sleep;
pub(crate) mod unmount;
pub(crate) mod upgrade;
