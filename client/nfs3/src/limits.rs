//! The sizes of READ and WRITE that a server accepts. They are asked for when mounting, and again
//! after the connection was lost, because a restarted server may have other limits.

use crate::api::Cred;
use crate::options::{ClientOptions, Flavor, Service, WriteChunk};
use crate::transport::Limits;
use nfsrdma_rdma::Buf;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rpcrdma::throttle::{Throttle, and_more};
use nfsrdma_xdr::nfs3::{FileHandle, FsinfoOk, IO_MAX};
use parking_lot::{Mutex, RwLock};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

/// Default of rsize and wsize, unless the server prefers or takes less.
const DEFAULT_IO: u32 = 1 << 20;
/// Size that every server is assumed to accept.
const LEAST: u32 = 4096;
/// Smallest limit that is taken from a server, as in Linux. A server that transfers less returns
/// short counts (RFC 1813 section 3.3.19). With a limit of a few bytes, one request of the kernel
/// would become up to a million calls, and the memory for them is not there.
const LEAST_LIMIT: u32 = 512;
/// Smallest preferred size that is taken from a server, as in Linux.
const LEAST_PREFERRED: u32 = 1024;
/// Room for what precedes the data of a WRITE: RPC header with the largest AUTH_SYS credential,
/// file handle, offset, count, stability, and length of the data.
const WRITE_HEAD: u32 = 1024;
/// The data of a WRITE are a multiple of this, if the limit allows one.
const PAGE: u32 = 4096;

/// The largest WRITE whose call, head and data, fits into the server's wtmax when it is sent as a
/// Position Zero Read chunk. RFC 8166 section 3.5.3 does not require that, because wtmax counts
/// data only (RFC 1813 section 3.3.19). But NFS-Ganesha (6.5, ntirpc 6.3) reads the chunk into a
/// buffer of wtmax bytes, and the end of the call would be placed into the next buffer.
const fn position_zero_wtmax(wtmax: u32) -> u32 {
    match wtmax.saturating_sub(WRITE_HEAD) {
        // A WRITE of this size is sent inline with the default thresholds.
        0..WRITE_HEAD => wtmax,
        room @ WRITE_HEAD..PAGE => room / 512 * 512,
        room => room / PAGE * PAGE,
    }
}

/// A size of READ or WRITE for what is cached in pages: a multiple of one, or a power of two below, as
/// in Linux, whatever multiple (rtmult) the server would like besides.
const fn rounded(size: u32) -> u32 {
    match size {
        0..PAGE => 1 << size.ilog2(),
        _ => size / PAGE * PAGE,
    }
}

/// How to ask for the limits, and the mount's options that bound them.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) root: FileHandle,
    pub(crate) cred: Cred,
    pub(crate) rsize: Option<u32>,
    pub(crate) wsize: Option<u32>,
    /// Whether calls are never reduced.
    pub(crate) position_zero: bool,
    /// Largest READ or WRITE of the transport.
    pub(crate) most: u32,
}

impl Source {
    pub(crate) fn new(
        root: FileHandle,
        cred: Cred,
        options: &ClientOptions,
        flavor: Flavor,
    ) -> Self {
        // Results are a part of the reply then, which is in one buffer of at most IO_MAX.
        let is_sealed = matches!(
            flavor,
            Flavor::Kerberos(Service::Integrity | Service::Privacy)
        );
        Source {
            root,
            cred,
            rsize: options.rsize,
            wsize: options.wsize,
            position_zero: is_sealed || options.transport.write_chunk == WriteChunk::PositionZero,
            most: match is_sealed {
                true => IO_MAX as u32 - PAGE,
                false => IO_MAX as u32,
            },
        }
    }

    /// The limits of FSINFO, bounded by the options. A server that states no limit (0) is assumed
    /// to accept what every server accepts.
    fn limits(&self, fsinfo: &FsinfoOk) -> Limits {
        let size = |option: Option<u32>, preferred: u32, max: u32| {
            let max = if max == 0 { LEAST } else { max };
            let max = max.clamp(LEAST_LIMIT, self.most);
            // "The preferred size of a READ request" (RFC 1813 section 3.3.19) is the default; one
            // that is too small to be meant is none.
            let default = match preferred {
                LEAST_PREFERRED.. => preferred.min(DEFAULT_IO),
                _ => DEFAULT_IO,
            };
            rounded(option.unwrap_or(default).min(max))
        };
        Limits {
            rtmax: size(self.rsize, fsinfo.rtpref, fsinfo.rtmax),
            wtmax: size(
                self.wsize,
                fsinfo.wtpref,
                match self.position_zero {
                    true => position_zero_wtmax(fsinfo.wtmax),
                    false => fsinfo.wtmax,
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
    /// `None` while mounting.
    source: OnceLock<Source>,
    /// The number of lost connections when the limits were last asked for.
    asked: AtomicU64,
    /// Whether they are being asked for. A call that waits for its answer is sent again on the next
    /// connection, so one is enough, however often the connection is lost meanwhile.
    asking: AtomicBool,
    /// Limits the log: a server can return other limits each time.
    log: Mutex<Throttle<Instant>>,
}

impl Known {
    /// The limits before FSINFO was answered.
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
            asking: AtomicBool::new(false),
            log: Mutex::default(),
        }
    }

    /// Sets the limits from FSINFO while mounting, and how to ask for them again.
    pub(crate) fn set(&self, source: Source, fsinfo: &FsinfoOk) {
        *self.limits.write() = source.limits(fsinfo);
        // A client is mounted once.
        let _ = self.source.set(source);
    }

    /// How to ask for the limits; `None` while mounting.
    pub(crate) fn source(&self) -> Option<&Source> {
        self.source.get()
    }

    /// Replaces the limits by those of a later FSINFO. Returns the limits before and after.
    pub(crate) fn renew(&self, source: &Source, fsinfo: &FsinfoOk) -> (Limits, Limits) {
        let new = source.limits(fsinfo);
        (std::mem::replace(&mut *self.limits.write(), new), new)
    }

    pub(crate) fn get(&self) -> Limits {
        *self.limits.read()
    }

    /// Whether the limits have to be asked for again, after `lost` connections were lost. True for
    /// one caller after each loss, who has to call [`Known::answered`] in the end.
    pub(crate) fn are_old(&self, lost: u64) -> bool {
        if self.asked.load(Relaxed) == lost
            || self.source.get().is_none()
            || self.asking.swap(true, Acquire)
        {
            return false;
        }
        let old = self.asked.swap(lost, Relaxed) != lost;
        if !old {
            self.answered();
        }
        old
    }

    /// The limits are no longer being asked for.
    pub(crate) fn answered(&self) {
        self.asking.store(false, Release);
    }

    /// Logs that the limits have changed, once a minute at most.
    pub(crate) fn log_change(&self, new: &Limits) {
        if let Some(more) = self.log.lock().event(Instant::now()) {
            tracing::warn!(
                "the server's limits changed: it gives {} bytes to a READ and takes {} of a WRITE{}",
                new.rtmax,
                new.wtmax,
                and_more(more)
            );
        }
    }
}

/// The first `len` bytes of `data`.
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

    fn source(option: Option<u32>, position_zero: bool) -> Source {
        Source {
            root: FileHandle::new(&[1]).unwrap(),
            cred: crate::mount::identity::own_credential(),
            rsize: option,
            wsize: option,
            position_zero,
            most: IO_MAX as u32,
        }
    }

    fn says(max: u32, preferred: u32) -> FsinfoOk {
        FsinfoOk {
            attributes: None,
            rtmax: max,
            rtpref: preferred,
            rtmult: max,
            wtmax: max,
            wtpref: preferred,
            wtmult: max,
            dtpref: max,
            max_file_size: 0,
            time_delta: nfsrdma_xdr::nfs3::Time::default(),
            properties: 0,
        }
    }

    #[test]
    fn no_server_makes_millions_of_calls_of_a_request() {
        for style in [true, false] {
            for (said, size) in [(0, 4096), (1, 512), (511, 512), (513, 512), (1000, 512)] {
                let limits = source(None, style).limits(&says(said, said));
                assert_eq!((limits.rtmax, limits.wtmax), (size, size), "{said}");
                assert_eq!(limits.dtpref, 4096);
                assert_eq!(limits.max_file_size, i64::MAX as u64);
            }
        }
    }

    #[test]
    fn what_the_server_prefers_is_the_default_and_no_limit() {
        const M: u32 = 1 << 20;
        for (option, max, preferred, size) in [
            (None, M, M, M),
            (None, M, 65_536, 65_536),
            (None, 32_768, 65_536, 32_768),
            (None, 4 * M, 4 * M, M),
            (Some(262_144), M, 65_536, 262_144),
            (Some(16_384), M, 65_536, 16_384),
            // No preference, or none that can be meant.
            (None, M, 0, M),
            (None, M, 1, M),
            (None, M, 100, M),
            (None, 32_768, 1023, 32_768),
            // No multiple of a page.
            (None, M, 100_000, 98_304),
            (None, M, 3000, 2048),
            (None, 100_001, M, 98_304),
            (None, 0, 0, 4096),
            (Some(65_536), 50_000, 5000, 49_152),
        ] {
            let limits = source(option, false).limits(&says(max, preferred));
            assert_eq!(
                (limits.rtmax, limits.wtmax),
                (size, size),
                "{option:?} {preferred}"
            );
        }
    }

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
