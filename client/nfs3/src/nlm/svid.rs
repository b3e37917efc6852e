//! The numbers of lock owners.
//!
//! A server (seen with Linux's) tells lock owners apart only by the client's address and a number,
//! `svid`. So two mounts of one machine must not use the same number, even if different users
//! mounted them. Addresses belong to a network namespace, and so do the names of abstract sockets
//! (unix(7)): a mount takes a block of numbers by binding a socket to the block's name. The kernel
//! frees the name when the process ends, in whatever way.
//!
//! A local user can bind all of these names. A mount then chooses a random block from another
//! range, without a name; the chance that another such mount has the same block is 1 in 32,768.
//!
//! Linux's own NFS client counts up from 0. The blocks lie above 2^30, those without a name
//! between 2^29 and 2^30.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// How many numbers a block has.
pub const SVID_BLOCK: u32 = 1 << 14;
const FIRST: u32 = 1 << 30;
const BLOCKS: u32 = (1 << 30) / SVID_BLOCK;
const UNNAMED_FIRST: u32 = 1 << 29;
const UNNAMED_BLOCKS: u32 = (1 << 29) / SVID_BLOCK;
/// Largest number of blocks tried.
const TRIES: u32 = 1024;

fn bind(block: u32) -> io::Result<UnixDatagram> {
    let name = format!("nfsrdma-svid-{block}");
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// A block of numbers that no other process of this network namespace uses, if it has a name.
#[derive(Debug)]
pub struct SvidBlock {
    first: u32,
    /// The socket that holds the name, if one was free.
    name: Option<OwnedFd>,
}

impl SvidBlock {
    /// Takes a free block.
    pub fn claim() -> io::Result<Self> {
        Self::claim_by(bind)
    }

    fn claim_by(bind: impl Fn(u32) -> io::Result<UnixDatagram>) -> io::Result<Self> {
        let start = getrandom::u32().map_err(|error| io::Error::other(error.to_string()))?;
        let mut why = io::Error::from(io::ErrorKind::AddrInUse);
        for step in 0..TRIES {
            let block = start.wrapping_add(step) % BLOCKS;
            match bind(block) {
                Ok(name) => {
                    return Ok(SvidBlock {
                        first: FIRST + block * SVID_BLOCK,
                        name: Some(name.into()),
                    });
                }
                Err(error) => why = error,
            }
            if why.kind() != io::ErrorKind::AddrInUse {
                break;
            }
        }
        tracing::warn!(
            "no name for numbers of lock owners is free ({why}): they are taken by chance, and \
             may be those of another mount of this machine; 'grep nfsrdma-svid /proc/net/unix' \
             shows the names, which a local user may have made"
        );
        Ok(SvidBlock {
            first: UNNAMED_FIRST + start % UNNAMED_BLOCKS * SVID_BLOCK,
            name: None,
        })
    }

    /// The block of a process that has died, whose name was kept.
    pub fn kept(first: u32, name: OwnedFd) -> Self {
        SvidBlock {
            first,
            name: Some(name),
        }
    }

    /// What holds the name, if there is one.
    pub fn name(&self) -> Option<BorrowedFd<'_>> {
        self.name.as_ref().map(AsFd::as_fd)
    }

    /// The first of [`SVID_BLOCK`] numbers.
    pub fn first(&self) -> u32 {
        self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_have_one_block() {
        let blocks: Vec<_> = (0..64).map(|_| SvidBlock::claim().unwrap()).collect();
        let first: HashSet<_> = blocks.iter().map(SvidBlock::first).collect();
        assert_eq!(first.len(), blocks.len());
        for first in first {
            assert!(first >= FIRST && first.checked_add(SVID_BLOCK - 1).is_some());
            // It is sent as a signed number, and must be positive.
            assert!((first + SVID_BLOCK - 1).cast_signed() > 0);
        }
        let number = (blocks[0].first() - FIRST) / SVID_BLOCK;
        assert_eq!(bind(number).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(blocks);
        assert!(bind(number).is_ok());
    }

    #[test]
    fn numbers_are_there_though_every_name_is_taken() {
        for kind in [io::ErrorKind::AddrInUse, io::ErrorKind::PermissionDenied] {
            for _ in 0..1000 {
                let block = SvidBlock::claim_by(|_| Err(kind.into())).unwrap();
                // Outside the range of blocks with names.
                assert!(block.first() >= UNNAMED_FIRST);
                assert!(block.first() + SVID_BLOCK <= FIRST);
            }
        }
    }
}
