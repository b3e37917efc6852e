//! The FUSE kernel protocol, as include/uapi/linux/fuse.h defines it for ABI 7.31 (Linux 5.10)
//! and later.
//!
//! A process that serves a FUSE mount reads requests from /dev/fuse, one with each read(2), and
//! answers each with one write(2) or writev(2) to the descriptor from which it was read. This crate
//! does both:
//!
//! * [`Request::parse`] decodes a request from the buffer into which it was read. Names and data to
//!   write are borrowed from the buffer. The data of a large WRITE can be read directly into memory
//!   of its handler ([`Landing`]).
//! * [`Reply`] answers one request once, with any number of slices. If it is dropped without an
//!   answer, it answers EIO, so that no caller waits for ever.
//! * [`Notifier`] tells the kernel which of its caches to drop.
//! * [`Channel`] is the mount. It uses `fuser`, to mount, answer INIT and unmount; only [`mount`]
//!   uses that crate. [`Channel::resume`] takes a mount over from a process that has ended.
//!   [`Channel::serve_loops`] starts the threads that read requests, each from a
//!   descriptor of its own (FUSE_DEV_IOC_CLONE).
//!
//! An object has two numbers. The *node id* names it between the kernel and the file system; the
//! file system chooses it, and must not use it for another object while the kernel remembers the
//! first. The *inode number* is what stat(2) shows. `fuser` has one number for both, and therefore
//! its replies are not used.

pub mod abi;
mod clone;
mod device;
mod directory;
mod fields;
mod header;
mod journal;
mod landing;
mod mount;
mod notify;
mod operation;
mod out;
pub mod own_table;
mod reply;
mod request;
mod resume;
mod serve;
mod shown_root;
#[cfg(feature = "test-support")]
pub mod support;

pub use device::{Device, Received};
pub use directory::Directory;
pub use fields::Malformed;
pub use header::Header;
pub use landing::Landing;
pub use mount::{Channel, Features, Wanted};
pub use notify::Notifier;
pub use operation::{Forgets, LockIn, Operation, SetAttr, TimeOrNow, WriteIn};
pub use out::{Attr, Entry, Lock, Statfs};
pub use reply::Reply;
pub use request::Request;
pub use serve::{Handler, Keep, ReadResult, Reader, Serving};
