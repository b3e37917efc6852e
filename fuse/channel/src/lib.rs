//! The FUSE kernel protocol, as include/uapi/linux/fuse.h defines it for ABI 7.31 (Linux 5.10)
//! and later.
//!
//! A process that serves a FUSE mount reads requests from /dev/fuse, one with each read(2), and
//! answers each with one write(2) or writev(2) to the descriptor it was read from. This crate
//! has the two sides of that:
//!
//! * [`Request::parse`] decodes a request from the buffer it was read into. Names and data to
//!   write are borrowed from the buffer. The data of a large WRITE can be read into memory that
//!   whoever handles it keeps ([`Landing`]).
//! * [`Reply`] answers one request once, with any number of slices. Dropped without an answer,
//!   it answers EIO, so no caller is left waiting.
//! * [`Notifier`] tells the kernel which of its caches to drop.
//! * [`Channel`] is the mount: it is made by `fuser`, which mounts, answers INIT and unmounts,
//!   and which only [`mount`] names. [`Channel::serve`] starts the threads that read requests,
//!   each from a descriptor of its own (FUSE_DEV_IOC_CLONE).
//!
//! An object has two numbers. The *node id* is what the kernel and the file system call it
//! between themselves; the file system chooses it, and it must not be used for another object
//! while the kernel remembers the first. The *inode number* is what stat(2) shows. `fuser` has
//! one number for both, which is why replies are not left to it.

pub mod abi;
mod clone;
mod device;
mod directory;
mod fields;
mod header;
mod landing;
mod mount;
mod notify;
mod operation;
mod out;
mod reply;
mod request;
mod ring;
mod serve;
#[cfg(feature = "test-support")]
pub mod support;

pub use device::{Device, Received};
pub use directory::{Directory, DirectoryPlus};
pub use fields::Malformed;
pub use header::Header;
pub use landing::Landing;
pub use mount::{Channel, Features, MountOptions, Users, Wanted};
pub use notify::Notifier;
pub use operation::{Forgets, Operation, SetAttr, TimeOrNow, WriteIn};
pub use out::{Attr, Entry, Lock, Statfs};
pub use reply::Reply;
pub use request::Request;
pub use ring::{Ready, Ring, RingRefused, Rounds, rings};
pub use serve::{Handler, ReadResult, Reader, Serving};
