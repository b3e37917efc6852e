//! The steering tags of one connection.
//!
//! An STag is 32 random bits, so a peer cannot guess the memory of another RPC; a wrong guess ends
//! the connection. The tagged offset of its first byte is random as well: a page-aligned address of
//! 47 bits, like those that peers see of any user-space RDMA program, and never close to a wrap.
//! Each connection has its own table, so an STag of another stream is invalid here.

use crate::wire::rdmap::TerminateCode;
use rustc_hash::FxBuildHasher;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

/// What the peer may do with a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
    /// Only the response to our own RDMA Read.
    ReadSink,
}

/// Why an access is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// There is no such STag.
    Invalid,
    /// The STag does not allow this kind of access.
    Rights,
    /// The range is not inside the buffer.
    Bounds,
    /// The sum of offset and length exceeds 64 bits.
    Wrap,
}

impl Denied {
    /// The code for a tagged segment (RFC 5041 section 7.2).
    pub fn tagged(self) -> TerminateCode {
        match self {
            // DDP has no code for access rights, and RDMAP's is for RDMA Read Requests and for Sends
            // that invalidate (RFC 5040 Figure 10): for this operation there is no such STag.
            Denied::Invalid | Denied::Rights => TerminateCode::DDP_INVALID_STAG,
            Denied::Bounds => TerminateCode::DDP_BASE_OR_BOUNDS,
            Denied::Wrap => TerminateCode::DDP_TO_WRAP,
        }
    }

    /// The code for the source of an RDMA Read Request (RFC 5040 section 7.2).
    pub fn read_request(self) -> TerminateCode {
        match self {
            Denied::Invalid => TerminateCode::RDMAP_INVALID_STAG,
            Denied::Rights => TerminateCode::RDMAP_ACCESS_RIGHTS,
            Denied::Bounds => TerminateCode::RDMAP_BASE_OR_BOUNDS,
            Denied::Wrap => TerminateCode::RDMAP_TO_WRAP,
        }
    }
}

/// A buffer that the peer may access.
#[derive(Debug)]
struct Entry<R> {
    access: Access,
    base: u64,
    len: u64,
    region: R,
}

/// Random bytes of the kernel, fetched in blocks.
struct Random {
    lot: [u8; 512],
    used: usize,
}

impl Random {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], getrandom::Error> {
        if self.used + N > self.lot.len() {
            getrandom::fill(&mut self.lot)?;
            self.used = 0;
        }
        let mut out = [0; N];
        out.copy_from_slice(&self.lot[self.used..self.used + N]);
        self.lot[self.used..self.used + N].fill(0);
        self.used += N;
        Ok(out)
    }
}

//= RFC 8166, Section 8.1
//# It is REQUIRED that any RDMA provider used for RPC transport be conformant to the requirements
//# of [RFC5042] in order to satisfy these protections.
//= RFC 5040, Section 7.2
//# The STag MUST be associated to this RDMAP Stream.
//# The Data Source STag MUST be associated to this RDMAP Stream.
//= RFC 5040, Section 8.1.1
//# An RNIC MUST ensure that a specific Stream in a specific Protection Domain cannot access an STag
//# in a different Protection Domain.
//# An RNIC MUST ensure that if an STag is limited in scope to a single Stream, no other Stream can
//# use the STag.
//= RFC 5041, Section 8.2
//# In this case, for an incoming DDP Segment of a Tagged DDP Message on a DDP Stream, if the DDP
//# Stream ID of the DDP Stream is not the same as the DDP Stream ID of the STag targeted by the
//# Tagged DDP Message, then the DDP Segment is not Placed and the DDP layer MUST surface a local
//# error to the ULP.
//= RFC 5041, Section 8.3
//# DDP MUST provide a mechanism for the ULP to communicate the association between a STag and a
//# specific DDP Stream.
//= RFC 5041, Section 8.3.1
//# An RNIC MUST ensure that a specific DDP Stream in a specific Protection Domain cannot access an
//# STag in a different Protection Domain.
//# An RNIC MUST ensure that if an STag is limited in scope to a single DDP Stream, no other DDP
//# Stream can use the STag.
/// The STags of a connection. `R` is the memory of an STag, or a reference to it.
pub struct StagTable<R> {
    /// By random numbers of our own, which no peer can choose so that they collide.
    entries: HashMap<u32, Entry<R>, FxBuildHasher>,
    random: Random,
    closed: bool,
}

impl<R> std::fmt::Debug for StagTable<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StagTable")
            .field("entries", &self.entries.len())
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

impl<R> Default for StagTable<R> {
    fn default() -> Self {
        StagTable {
            entries: HashMap::default(),
            random: Random {
                lot: [0; 512],
                used: 512,
            },
            closed: false,
        }
    }
}

impl<R: Clone> StagTable<R> {
    /// Assigns an STag to `len` bytes; returns it and the tagged offset of their first byte. The
    /// outer error is a lack of random bytes; `Ok(None)` means that the table is closed.
    pub fn insert(
        &mut self,
        access: Access,
        len: u64,
        region: R,
    ) -> Result<Option<(u32, u64)>, getrandom::Error> {
        if self.closed {
            return Ok(None);
        }
        loop {
            //= RFC 5040, Section 8.1.1
            //# An RNIC MUST choose the value of STags in a way difficult to predict.
            let stag = u32::from_le_bytes(self.random.take()?);
            let base = (u64::from_le_bytes(self.random.take()?) >> 28 << 11) & !0xfff;
            if stag == 0 {
                continue;
            }
            if let Slot::Vacant(slot) = self.entries.entry(stag) {
                slot.insert(Entry {
                    access,
                    base,
                    len,
                    region,
                });
                return Ok(Some((stag, base)));
            }
        }
    }

    //= RFC 5040, Section 8.1.1
    //# An RNIC MUST ensure that a Remote Peer is not able to access memory outside of the buffer
    //# specified when the STag was enabled for remote access.
    //= RFC 5041, Section 8.3.1
    //# An RNIC MUST ensure that a Remote Peer is not able to access memory outside the buffer
    //# specified when the STag was enabled for remote access.
    /// Checks an access to `len` bytes at `offset`. Returns the memory, and the offset in it.
    pub fn check(
        &self,
        stag: u32,
        access: Access,
        offset: u64,
        len: u64,
    ) -> Result<(R, usize), Denied> {
        let entry = self.entries.get(&stag).ok_or(Denied::Invalid)?;
        if entry.access != access {
            return Err(Denied::Rights);
        }
        let end = offset.checked_add(len).ok_or(Denied::Wrap)?;
        let at = offset.checked_sub(entry.base).ok_or(Denied::Bounds)?;
        if end - entry.base > entry.len {
            return Err(Denied::Bounds);
        }
        Ok((entry.region.clone(), at as usize))
    }

    /// Removes an STag. `base` distinguishes it from a later one with the same value.
    pub fn remove(&mut self, stag: u32, base: u64) -> Option<R> {
        match self.entries.entry(stag) {
            Slot::Occupied(slot) if slot.get().base == base => Some(slot.remove().region),
            _ => None,
        }
    }

    /// Removes an STag at the peer's request. `None` if there is none, or if its handle was never
    /// given to the peer's ULP; the error is then "STag Cannot be Invalidated" (RFC 5040 section
    /// 5.3).
    pub fn remove_by_peer(&mut self, stag: u32) -> Option<R> {
        match self.entries.entry(stag) {
            Slot::Occupied(slot) if slot.get().access != Access::ReadSink => {
                Some(slot.remove().region)
            }
            _ => None,
        }
    }

    /// Removes all STags, and refuses new ones.
    pub fn close(&mut self) -> Vec<R> {
        self.closed = true;
        self.entries.drain().map(|(_, e)| e.region).collect()
    }

    /// Number of valid STags.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no STag is valid.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn each_denial() {
        let mut table = StagTable::default();
        let (stag, base) = table.insert(Access::Write, 100, 'w').unwrap().unwrap();
        let check = |table: &StagTable<char>, stag, access, offset, len| {
            table.check(stag, access, offset, len)
        };
        assert_eq!(check(&table, stag, Access::Write, base, 100), Ok(('w', 0)));
        assert_eq!(
            check(&table, stag, Access::Write, base + 40, 60),
            Ok(('w', 40))
        );
        assert_eq!(
            check(&table, stag, Access::Write, base + 40, 61),
            Err(Denied::Bounds)
        );
        assert_eq!(
            check(&table, stag, Access::Write, base.wrapping_sub(1), 1),
            Err(if base == 0 {
                Denied::Wrap
            } else {
                Denied::Bounds
            })
        );
        assert_eq!(
            check(&table, stag, Access::Write, u64::MAX, 2),
            Err(Denied::Wrap)
        );
        assert_eq!(
            check(&table, stag, Access::Read, base, 1),
            Err(Denied::Rights)
        );
        assert_eq!(
            check(&table, stag ^ 1, Access::Write, base, 1),
            Err(Denied::Invalid)
        );
        assert_eq!(table.remove(stag, base ^ 0x1000), None, "a later namesake");
        assert_eq!(table.remove(stag, base), Some('w'));
        assert_eq!(
            check(&table, stag, Access::Write, base, 1),
            Err(Denied::Invalid)
        );
    }

    #[test]
    fn read_sinks_are_not_the_peers_to_invalidate() {
        let mut table = StagTable::default();
        let (sink, _) = table.insert(Access::ReadSink, 1, ()).unwrap().unwrap();
        let (source, _) = table.insert(Access::Read, 1, ()).unwrap().unwrap();
        assert_eq!(table.remove_by_peer(sink), None);
        assert_eq!(table.remove_by_peer(source), Some(()));
        assert_eq!(table.remove_by_peer(source), None);
        assert_eq!(table.close().len(), 1);
        assert_eq!(table.insert(Access::Read, 1, ()), Ok(None));
    }

    //= RFC 5040, Section 8.1.1
    //= type=test
    //# An RNIC MUST choose the value of STags in a way difficult to predict.
    #[test]
    fn tags_and_offsets_spread() {
        let mut table = StagTable::default();
        let all: Vec<_> = (0..1000)
            .map(|_| table.insert(Access::Read, 1, ()).unwrap().unwrap())
            .collect();
        let high: HashSet<_> = all.iter().map(|(stag, _)| stag >> 24).collect();
        assert!(high.len() > 200, "the upper bits are random");
        let bases: HashSet<_> = all.iter().map(|(_, base)| base).collect();
        assert!(bases.len() > 990);
        assert!(
            all.iter()
                .all(|(_, base)| base % 4096 == 0 && *base < 1 << 47)
        );
    }

    proptest! {
        //= RFC 5040, Section 8.1.1
        //= type=test
        //# An RNIC MUST ensure that a Remote Peer is not able to access [...]
        //= RFC 5041, Section 8.3.1
        //= type=test
        //# An RNIC MUST ensure that a Remote Peer is [...]
        /// Every access that is allowed lies inside the buffer.
        #[test]
        fn never_outside(len in 0u64..5000, delta in -6000i64..6000, ask: u32) {
            let mut table = StagTable::default();
            let (stag, base) = table.insert(Access::Write, len, ()).unwrap().unwrap();
            let offset = base.wrapping_add(delta as u64);
            let ask = u64::from(ask % 6000);
            let inside = delta >= 0 && delta as u64 + ask <= len;
            match table.check(stag, Access::Write, offset, ask) {
                Ok(((), at)) => {
                    prop_assert!(inside);
                    prop_assert_eq!(at as i64, delta);
                }
                Err(_) => prop_assert!(!inside),
            }
        }
    }
}
