//! Numbers of lock owners.
//!
//! A server tells lock owners apart by the client's address and a number, `svid`, alone (seen with
//! Linux's). So two mounts of one machine must not use the same number, whoever mounted them. The
//! scope of an address is a network namespace, and so is that of names of abstract sockets
//! (unix(7)): a mount takes a block of numbers by binding the name of the block. The kernel frees
//! the name when the process ends, however it ends.
//!
//! Linux's own NFS client counts up from 0. The blocks lie above 2^30.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Numbers in a block.
pub const SVID_BLOCK: u32 = 1 << 14;
const FIRST: u32 = 1 << 30;
const BLOCKS: u32 = (1 << 30) / SVID_BLOCK;
/// Blocks that are tried.
const TRIES: u32 = 1024;

/// A block of numbers that no other process of this network namespace has.
#[derive(Debug)]
pub struct SvidBlock {
    first: u32,
    /// Holds the name.
    _name: UnixDatagram,
}

impl SvidBlock {
    /// Takes a free block.
    pub fn claim() -> io::Result<Self> {
        let start = getrandom::u32().map_err(|error| io::Error::other(error.to_string()))?;
        for step in 0..TRIES {
            let block = start.wrapping_add(step) % BLOCKS;
            match Self::claim_number(block) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                result => return result,
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    fn claim_number(block: u32) -> io::Result<Self> {
        let name = format!("nfsrdma-svid-{block}");
        let address = SocketAddr::from_abstract_name(name)?;
        Ok(SvidBlock {
            first: FIRST + block * SVID_BLOCK,
            _name: UnixDatagram::bind_addr(&address)?,
        })
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
            // Positive as the signed number that it is on the wire.
            assert!((first + SVID_BLOCK - 1).cast_signed() > 0);
        }
        let number = (blocks[0].first() - FIRST) / SVID_BLOCK;
        let taken = SvidBlock::claim_number(number).map(|block| block.first());
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(blocks);
        assert!(SvidBlock::claim_number(number).is_ok());
    }
}
