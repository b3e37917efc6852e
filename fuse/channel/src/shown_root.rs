//! A mount that shows its root directory as a child of the kernel's root node.
//!
//! The kernel makes the root node before INIT, when it does not know yet that there are ACLs
//! (FUSE_POSIX_ACL), and never keeps an ACL of a node from that time: for each path that leads through the
//! root, it would ask for the root's ACL, unless the caller owns the root. So the mount is first made where
//! nobody sees it, one name is looked up in it, which leads to the root directory once more, and that is
//! what is shown. Its node has a number of its own, which only this crate knows
//! ([`SHOWN_ROOT_ID`]).

use super::abi::SHOWN_ROOT_ID;
use super::device::Received;
use super::mount::Channel;
use super::operation::Operation;
use super::out::{Attr, Entry};
use super::reply::Reply;
use super::request::Request;
use super::serve::longest_request;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::{Errno, retry_on_intr};
use std::io;
use std::time::Duration;

/// How often to look whether it is done.
const INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

impl Channel {
    /// Answers look-ups of any name by the shown root, until `done`. Nobody else may have access to the mount, and
    /// its requests may not be read elsewhere. `ECONNABORTED` if the mount has ended.
    pub fn show_root(&self, done: impl Fn() -> bool) -> io::Result<()> {
        let mut buffer = vec![0; longest_request(self.features())];
        // With no time for which they are valid: the kernel asks for the true ones.
        let attr = Attr {
            mode: FileType::Directory.as_raw_mode() | 0o755,
            nlink: 2,
            ..Attr::default()
        };
        let device = self.device();
        while !done() {
            let mut polled = [PollFd::new(device, PollFlags::IN)];
            if retry_on_intr(|| poll(&mut polled, Some(&INTERVAL)))? == 0 {
                continue;
            }
            let request = match device.receive(&mut buffer)? {
                Received::Request(bytes) => Request::parse(bytes).map_err(io::Error::other)?,
                Received::Empty => continue,
                Received::Ended => return Err(Errno::CONNABORTED.into()),
            };
            let reply = || Reply::new(device, &request.header);
            match request.operation {
                Operation::Getattr { .. } => reply().attr(Duration::ZERO, &attr),
                Operation::Lookup { .. } => {
                    let entry = Entry::new(SHOWN_ROOT_ID, Duration::ZERO, Duration::ZERO, attr);
                    reply().entry(&entry);
                }
                Operation::Forget { .. }
                | Operation::BatchForget { .. }
                | Operation::Interrupt { .. } => {}
                // EIO.
                _ => drop(reply()),
            }
        }
        Ok(())
    }
}
