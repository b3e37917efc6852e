//! How much a server takes and gives at a time: asked when mounting, and again after the
//! connection was lost, because the server that answers then may be set up otherwise.

use crate::api::{Cred, Limits};
use crate::options::WriteChunk;
use nfsrdma_rdma::Buf;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_xdr::nfs3::{FileHandle, FsinfoOk, IO_MAX};
use parking_lot::RwLock;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// rsize and wsize without an option, at most.
const DEFAULT_IO: u32 = 1 << 20;
/// What every server takes and gives.
const LEAST: u32 = 4096;
/// Room for what stands before the data of a WRITE: RPC header with the largest AUTH_SYS
/// credential, file handle, offset, count, stability, length of the data.
const WRITE_HEAD: u32 = 1024;
/// Data of a WRITE are a multiple of this, if there is room for one.
const PAGE: u32 = 4096;

/// The most data of a WRITE that goes as a Position Zero Read chunk, with which the whole call,
/// head and data, stays within the server's wtmax. RFC 8166 section 3.5.3 asks no such thing:
/// wtmax counts data (RFC 1813 section 3.3.19). But NFS-Ganesha (6.5, ntirpc 6.3) reads the
/// chunk into a buffer of wtmax bytes, and the tail of the call lands in the next one.
const fn position_zero_wtmax(wtmax: u32) -> u32 {
    match wtmax.saturating_sub(WRITE_HEAD) {
        // A WRITE as small goes inline, whatever the thresholds' default.
        0..WRITE_HEAD => wtmax,
        room @ WRITE_HEAD..PAGE => room / 512 * 512,
        room => room / PAGE * PAGE,
    }
}

/// Whom to ask, and what the mount's options allow.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) root: FileHandle,
    pub(crate) cred: Cred,
    pub(crate) rsize: Option<u32>,
    pub(crate) wsize: Option<u32>,
    pub(crate) write_chunk: WriteChunk,
}

impl Source {
    /// FSINFO's limits, and the options'. A server without an opinion (0) is taken to mean
    /// what every server can.
    fn limits(&self, fsinfo: &FsinfoOk) -> Limits {
        let size = |option: Option<u32>, max: u32| {
            let max = if max == 0 { LEAST } else { max };
            option.unwrap_or(DEFAULT_IO).min(max).min(IO_MAX as u32)
        };
        Limits {
            rtmax: size(self.rsize, fsinfo.rtmax),
            wtmax: size(
                self.wsize,
                match self.write_chunk {
                    WriteChunk::PositionZero => position_zero_wtmax(fsinfo.wtmax),
                    WriteChunk::Reduced => fsinfo.wtmax,
                },
            ),
            dtpref: fsinfo.dtpref.clamp(LEAST, DEFAULT_IO),
            max_file_size: match fsinfo.max_file_size {
                0 => i64::MAX as u64,
                size => size.min(i64::MAX as u64),
            },
        }
    }
}

/// The limits in force.
#[derive(Debug)]
pub(crate) struct Known {
    limits: RwLock<Limits>,
    /// Unknown while mounting.
    source: OnceLock<Source>,
    /// After how many lost connections they were asked for.
    asked: AtomicU64,
}

impl Known {
    /// Until FSINFO says more.
    pub(crate) fn new() -> Self {
        Known {
            limits: RwLock::new(Limits {
                rtmax: LEAST,
                wtmax: LEAST,
                dtpref: LEAST,
                max_file_size: i64::MAX as u64,
            }),
            source: OnceLock::new(),
            asked: AtomicU64::new(0),
        }
    }

    /// FSINFO's answer at mount, and whom to ask from now on.
    pub(crate) fn set(&self, source: Source, fsinfo: &FsinfoOk) {
        *self.limits.write() = source.limits(fsinfo);
        // A client is mounted once.
        let _ = self.source.set(source);
    }

    /// Whom to ask; None while mounting.
    pub(crate) fn source(&self) -> Option<&Source> {
        self.source.get()
    }

    /// Takes a later answer of FSINFO. Returns the limits before and after.
    pub(crate) fn renew(&self, source: &Source, fsinfo: &FsinfoOk) -> (Limits, Limits) {
        let new = source.limits(fsinfo);
        (std::mem::replace(&mut *self.limits.write(), new), new)
    }

    pub(crate) fn get(&self) -> Limits {
        *self.limits.read()
    }

    /// Whether it is time to ask again, and the caller is the one to do it.
    pub(crate) fn are_old(&self, lost: u64) -> bool {
        self.asked.load(Relaxed) != lost
            && self.source.get().is_some()
            && self.asked.swap(lost, Relaxed) != lost
    }
}

/// The first `len` bytes of it.
pub(crate) fn cut(data: Segs<Buf>, mut len: usize) -> Segs<Buf> {
    let mut pieces = Segs::new();
    for piece in data {
        if len == 0 {
            break;
        }
        let now = piece.len().min(len);
        len -= now;
        pieces.push(piece.slice(..now));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_and_data_stay_within_wtmax() {
        assert_eq!(position_zero_wtmax(1 << 20), 1_044_480);
        assert_eq!(position_zero_wtmax(512 << 10), 520_192);
        assert_eq!(position_zero_wtmax(4096), 3072);
        assert_eq!(position_zero_wtmax(8192), 4096);
        for wtmax in (0..70_000).chain([u32::MAX - 1, u32::MAX]) {
            let most = position_zero_wtmax(wtmax);
            assert!(most <= wtmax && (most > 0) == (wtmax > 0), "{wtmax}");
            assert!(wtmax < 2048 || most + WRITE_HEAD <= wtmax, "{wtmax}");
        }
    }
}
