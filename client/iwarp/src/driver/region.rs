//! Memory that the peer may write, and the only code that writes it while it is exposed.
//!
//! The owner of the buffers keeps them in the `Exposure`, and this module has raw pointers to them.
//! The receiving thread must hold the [`Sink`]'s lock to write; [`Sink::end`] removes the pointers
//! under that lock. So nobody writes after it has returned (RFC 5040 section 8.1.1), and it waits
//! for a writer for at most one system call. Memory that the peer reads is shared and constant, and
//! needs no such protection.

use nfsrdma_rdma::buf::KeepAlive;
use nfsrdma_rdma::{Buf, BufMut, Segs};
use parking_lot::{Mutex, MutexGuard};
use std::fmt;

/// The memory of an STag.
#[derive(Debug)]
pub(crate) enum Region {
    /// Memory that the peer writes.
    Sink(Sink),
    /// Memory that the peer reads; it is shared and constant, so it needs no lock.
    Source(Segs<Buf>),
}

/// The raw parts of a scatter list, valid while `_keep` holds their memory.
struct Parts {
    list: Segs<(*mut u8, usize)>,
    _keep: Segs<KeepAlive>,
}

// SAFETY: the pointers are to pool memory that `_keep` keeps alive; the lock around the parts
// decides which thread may use them.
unsafe impl Send for Parts {}

/// A scatter list that the peer may write until [`Sink::end`]. A writer holds the lock while it
/// copies or receives, so nobody writes after `end` has returned.
pub(crate) struct Sink {
    parts: Mutex<Option<Parts>>,
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sink")
    }
}

impl Sink {
    /// Makes a sink of `bufs`, which their owner must not touch until [`Sink::end`].
    pub(crate) fn new(bufs: &mut [BufMut]) -> Self {
        let mut parts = Parts {
            list: Segs::new(),
            _keep: Segs::new(),
        };
        for buf in bufs {
            parts.list.push((buf.as_mut_ptr(), buf.len()));
            parts._keep.push(buf.keep_alive());
        }
        Sink {
            parts: Mutex::new(Some(parts)),
        }
    }

    //= RFC 5040, Section 8.1.1
    //# An RNIC MUST ensure that the network interface can no longer modify an Advertised Buffer
    //# after the ULP revokes remote access rights for an STag.
    //= RFC 5041, Section 8.3.1
    //# An RNIC MUST ensure that the network interface can no longer modify an Advertised Buffer
    //# after the ULP revokes remote access rights for an STag.
    /// Ends all writing. Waits for a writer, for at most one system call.
    pub(crate) fn end(&self) {
        *self.parts.lock() = None;
    }

    /// The right to write, or `None` after [`Sink::end`].
    pub(crate) fn lock(&self) -> Option<Writer<'_>> {
        let guard = self.parts.lock();
        guard.is_some().then_some(Writer { guard })
    }
}

/// Sole access to the memory of a [`Sink`].
pub(crate) struct Writer<'a> {
    guard: MutexGuard<'a, Option<Parts>>,
}

impl Writer<'_> {
    /// The pieces of memory for `len` bytes from `at`, limited to the sink's end.
    pub(crate) fn slices(&mut self, at: usize, len: usize) -> Segs<&mut [u8]> {
        let mut out = Segs::new();
        let (mut skip, mut left) = (at, len);
        for &(base, size) in self.guard.iter().flat_map(|parts| &parts.list) {
            if skip >= size {
                skip -= size;
                continue;
            }
            let n = left.min(size - skip);
            if n == 0 {
                break;
            }
            // SAFETY: the range lies inside a buffer whose block `_keep` keeps alive. Its
            // BufMut was moved into an exposure or a pending RDMA Read and is not touched
            // until `end`, which needs the lock held here; two ranges of one list do not
            // overlap, because two BufMuts never share memory.
            out.push(unsafe { std::slice::from_raw_parts_mut(base.add(skip), n) });
            left -= n;
            skip = 0;
        }
        out
    }
}

/// The buffers for `len` bytes from `at` of a gather list, by reference.
pub(crate) fn source_slices(bufs: &[Buf], at: usize, len: usize) -> Segs<Buf> {
    let mut out = Segs::new();
    let (mut skip, mut left) = (at, len);
    for buf in bufs {
        if skip >= buf.len() {
            skip -= buf.len();
            continue;
        }
        let n = left.min(buf.len() - skip);
        if n == 0 {
            break;
        }
        out.push(buf.slice(skip..skip + n));
        left -= n;
        skip = 0;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfsrdma_rdma::Pool;

    #[test]
    fn slices_follow_the_scatter_list() {
        let pool = Pool::new(1 << 20).unwrap();
        let mut bufs: Vec<BufMut> = [10usize, 0, 5000, 1]
            .iter()
            .map(|&n| pool.alloc(n).unwrap())
            .collect();
        let sink = Sink::new(&mut bufs);
        let mut writer = sink.lock().unwrap();
        let lens = |w: &mut Writer<'_>, at, len| -> Vec<usize> {
            w.slices(at, len).iter().map(|s| s.len()).collect()
        };
        assert_eq!(lens(&mut writer, 0, 5011), [10, 5000, 1]);
        assert_eq!(lens(&mut writer, 9, 2), [1, 1]);
        assert_eq!(lens(&mut writer, 10, 5000), [5000]);
        assert_eq!(lens(&mut writer, 5010, 1), [1]);
        assert_eq!(lens(&mut writer, 5011, 1), [0; 0]);
        for (i, byte) in writer.slices(0, 5011).into_iter().flatten().enumerate() {
            *byte = i as u8;
        }
        drop(writer);
        sink.end();
        assert!(sink.lock().is_none());
        let flat: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        assert!(flat.iter().enumerate().all(|(i, b)| *b == i as u8));

        let frozen: Vec<Buf> = bufs.into_iter().map(BufMut::freeze).collect();
        let part: Vec<u8> = source_slices(&frozen, 9, 5002)
            .iter()
            .flat_map(|b| b.iter().copied())
            .collect();
        assert_eq!(part, flat[9..]);
    }
}
