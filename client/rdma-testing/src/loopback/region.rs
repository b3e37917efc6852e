//! Memory that a peer may access by handle, and copying to and from it.

use nfsrdma_rdma::buf::KeepAlive;
use nfsrdma_rdma::{BufMut, Exposure, Handle, Memory, RemoteSegment, Segs};
use std::collections::HashMap;
use std::ptr::NonNull;

/// The access that a handle allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Write,
    Read,
}

/// An exposed buffer.
struct Piece {
    at: NonNull<u8>,
    len: usize,
    _alive: KeepAlive,
}

// SAFETY: only the table that contains a piece gives access to its memory, while the table is
// borrowed; the block cannot return to its pool before the piece is dropped.
unsafe impl Send for Piece {}

struct Region {
    access: Access,
    /// Address of the first byte in the peer's terms.
    base: u64,
    len: u64,
    pieces: Vec<Piece>,
}

/// The handles of one side of a connection. `None` stands for one that is already invalid.
#[derive(Default)]
pub(super) struct Regions {
    table: HashMap<Handle, Option<Region>>,
}

/// Why an access was refused, in the terms of RFC 5040 section 7.2 and RFC 5041 section 7.2.
pub(super) type Refusal = &'static str;

const INVALID_HANDLE: Refusal = "invalid handle";
const OUT_OF_BOUNDS: Refusal = "base or bounds violation";
const ACCESS: Refusal = "access rights violation";

fn random() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(u64::from_ne_bytes(bytes))
}

impl Regions {
    /// Exposes `memory` under new, unpredictable handles (RFC 8166 section 8.1.2): one for all, or
    /// one for each buffer. The base address is random, too, so that no user can rely on zero.
    pub(super) fn expose(
        &mut self,
        mut memory: Memory,
        one_handle: bool,
    ) -> Result<Exposure, (std::io::Error, Memory)> {
        let (access, pieces): (_, Vec<Piece>) = match &mut memory {
            Memory::Sink(bufs) => (Access::Write, bufs.iter_mut().map(sink_piece).collect()),
            Memory::Source(bufs) => (
                Access::Read,
                bufs.iter()
                    .map(|buf| Piece {
                        at: NonNull::new(buf.as_raw_ptr().cast_mut())
                            .expect("a block is not at address zero"),
                        len: buf.len(),
                        _alive: buf.keep_alive(),
                    })
                    .collect(),
            ),
        };
        let lists: Vec<Vec<Piece>> = if one_handle {
            vec![pieces]
        } else {
            pieces.into_iter().map(|piece| vec![piece]).collect()
        };
        let mut segments: Segs<RemoteSegment> = Segs::new();
        for pieces in lists {
            let (handle, base) = loop {
                match (random(), random()) {
                    (Ok(a), Ok(b)) => {
                        let handle = Handle(a as u32);
                        if !self.table.contains_key(&handle) {
                            break (handle, b >> 16);
                        }
                    }
                    (Err(error), _) | (_, Err(error)) => {
                        for segment in &segments {
                            self.table.remove(&segment.handle);
                        }
                        return Err((error, memory));
                    }
                }
            };
            let len = pieces.iter().map(|p| p.len as u64).sum::<u64>();
            segments.push(RemoteSegment {
                handle,
                length: len as u32,
                offset: base,
            });
            self.table.insert(
                handle,
                Some(Region {
                    access,
                    base,
                    len,
                    pieces,
                }),
            );
        }
        Ok(Exposure::new(segments, memory))
    }

    /// Invalidates a handle, for a peer's Send with Invalidate.
    pub(super) fn invalidate_remotely(&mut self, handle: Handle) -> Result<(), Refusal> {
        match self.table.get_mut(&handle) {
            Some(region @ Some(_)) => {
                *region = None;
                Ok(())
            }
            _ => Err(INVALID_HANDLE),
        }
    }

    /// Invalidates the handles and returns the memory.
    ///
    /// # Panics
    /// If the exposure does not belong to this table.
    pub(super) fn invalidate(&mut self, exposure: Exposure) -> Memory {
        for segment in exposure.segments() {
            let known = self.table.remove(&segment.handle);
            assert!(known.is_some(), "an exposure of this connection");
        }
        // SAFETY: the handles were in this table, so nothing else accesses the memory, and now they
        // are removed; accesses happen only while the table is borrowed.
        unsafe { exposure.into_memory() }
    }

    /// Makes every handle invalid.
    pub(super) fn invalidate_all(&mut self) {
        for region in self.table.values_mut() {
            *region = None;
        }
    }

    fn find(&self, target: RemoteSegment, access: Access) -> Result<(&Region, usize), Refusal> {
        let region = self
            .table
            .get(&target.handle)
            .and_then(Option::as_ref)
            .ok_or(INVALID_HANDLE)?;
        if region.access != access {
            return Err(ACCESS);
        }
        let from = target
            .offset
            .checked_sub(region.base)
            .ok_or(OUT_OF_BOUNDS)?;
        let to = from
            .checked_add(u64::from(target.length))
            .ok_or(OUT_OF_BOUNDS)?;
        if to > region.len {
            return Err(OUT_OF_BOUNDS);
        }
        Ok((region, from as usize))
    }

    /// An RDMA Write of `source` to `target`, which has the same length. With zero bytes any handle
    /// is allowed (RFC 5041 section 5.2: there is nothing to check).
    pub(super) fn write<'a>(
        &mut self,
        target: RemoteSegment,
        source: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Refusal> {
        if target.length == 0 {
            return Ok(());
        }
        let (region, mut at) = self.find(target, Access::Write)?;
        for mut bytes in source {
            while let (Some((piece, offset)), false) = (region.piece(at), bytes.is_empty()) {
                let n = bytes.len().min(piece.len - offset);
                // SAFETY: `offset + n` is inside the piece, a live sink: its BufMut is in an
                // Exposure, so nobody else accesses the bytes, and `bytes`, which belong to another
                // owner, do not overlap them.
                unsafe {
                    let to = piece.at.as_ptr().add(offset);
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, n);
                }
                bytes = &bytes[n..];
                at += n;
            }
        }
        Ok(())
    }

    /// An RDMA Read of `source` into `sink`, which has the same length.
    pub(super) fn read(
        &self,
        source: RemoteSegment,
        sink: &mut Segs<BufMut>,
    ) -> Result<(), Refusal> {
        if source.length == 0 {
            return Ok(());
        }
        let (region, mut at) = self.find(source, Access::Read)?;
        for buf in sink.iter_mut() {
            let mut done = 0;
            while let (Some((piece, offset)), true) = (region.piece(at), done < buf.len()) {
                let n = (buf.len() - done).min(piece.len - offset);
                // SAFETY: `offset + n` is inside the piece, a live source: a Buf of it is in an
                // Exposure, so nobody changes the bytes.
                let bytes = unsafe { std::slice::from_raw_parts(piece.at.as_ptr().add(offset), n) };
                buf[done..done + n].copy_from_slice(bytes);
                done += n;
                at += n;
            }
        }
        Ok(())
    }
}

impl Region {
    /// The piece that contains the byte `at`, and the offset in it.
    fn piece(&self, mut at: usize) -> Option<(&Piece, usize)> {
        for piece in &self.pieces {
            if at < piece.len {
                return Some((piece, at));
            }
            at -= piece.len;
        }
        None
    }
}

fn sink_piece(buf: &mut BufMut) -> Piece {
    Piece {
        at: NonNull::new(buf.as_mut_ptr()).expect("a block is not at address zero"),
        len: buf.len(),
        _alive: buf.keep_alive(),
    }
}
