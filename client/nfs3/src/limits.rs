//! How much a server takes and gives at a time: asked when mounting, and again after the
//! connection was lost, because the server that answers then may be set up otherwise.

use super::api::*;
use super::client::Nfs3Client;
use crate::options::WriteChunk;
use nfsrdma_rdma::Buf;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rpcrdma::exec;
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
pub(super) struct Known {
    limits: RwLock<Limits>,
    /// Unknown while mounting.
    source: OnceLock<Source>,
    /// After how many lost connections they were asked for.
    asked: AtomicU64,
}

impl Known {
    /// Until FSINFO says more.
    pub(super) fn new() -> Self {
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

    pub(super) fn get(&self) -> Limits {
        *self.limits.read()
    }

    /// Whether it is time to ask again, and the caller is the one to do it.
    pub(super) fn are_old(&self, lost: u64) -> bool {
        self.asked.load(Relaxed) != lost
            && self.source.get().is_some()
            && self.asked.swap(lost, Relaxed) != lost
    }
}

impl Nfs3Client {
    /// What the server said when it was mounted.
    pub(crate) fn set_limits(&self, source: Source, fsinfo: &FsinfoOk) {
        *self.known().limits.write() = source.limits(fsinfo);
        // A client is mounted once.
        let _ = self.known().source.set(source);
    }

    /// Asks the server again, beside what the caller does.
    pub(super) fn renew_limits_soon(&self) {
        let client = self.clone();
        exec::spawn(async move { client.renew_limits().await });
    }

    /// Asks the server again. A failure leaves what is known.
    async fn renew_limits(&self) {
        let Some(source) = self.known().source.get() else {
            return;
        };
        let Ok(fsinfo) = self.fsinfo(&source.cred, &source.root).await else {
            return;
        };
        let new = source.limits(&fsinfo);
        let old = std::mem::replace(&mut *self.known().limits.write(), new);
        if (old.rtmax, old.wtmax) != (new.rtmax, new.wtmax) {
            tracing::warn!(
                "the server's limits changed: it gives {} bytes to a READ and takes {} of a WRITE",
                new.rtmax,
                new.wtmax
            );
        }
    }

    /// A WRITE of `len` bytes was refused by RPC or RDMA: how many bytes the server takes
    /// now, if that is less.
    pub(super) async fn smaller_write(&self, len: usize) -> Option<usize> {
        let takes = || self.known().get().wtmax.max(1) as usize;
        if takes() >= len {
            self.renew_limits().await;
        }
        Some(takes()).filter(|most| *most < len)
    }
}

/// The first `len` bytes of it.
pub(super) fn cut(data: Segs<Buf>, mut len: usize) -> Segs<Buf> {
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
