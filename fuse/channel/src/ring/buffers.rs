//! The memory of a ring entry.
//!
//! When an entry is registered, the kernel gets two buffers and keeps them: one for headers and one
//! for the payload. Here they are one mapping,
//!
//! ```text
//! | headers 288 |    | iovecs 32 |          | in_header, first argument | payload ...
//! 0                  512                                                4096
//! ```
//!
//! so that header and first argument, copied to just before the payload, form a request in one
//! piece, as read(2) of /dev/fuse returns it. Pages that were never written take no memory.
//!
//! An entry belongs to the kernel or to this process, and is passed on by an SQE and a CQE. In this
//! process it first belongs to the thread of the ring, which decodes the request, and then to the
//! reply. While the request is in use ([`Buffers::lend`]), the reply must keep its bytes elsewhere,
//! because the names and data of the request are in the payload.

use super::layout::HEADERS;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};

/// The offset of the payload.
const FRONT: usize = 4096;
/// The offset of the two iovecs for the kernel.
const IOVECS: usize = 512;

/// The buffers of one entry; see the head of this module.
#[derive(Debug)]
pub(super) struct Buffers {
    base: NonNull<u8>,
    payload: usize,
    /// The request is in use, and has a payload.
    lent: AtomicBool,
    /// The buffers belong to the kernel, or may.
    in_kernel: AtomicBool,
}

// SAFETY: only this value refers to the memory, and the methods that access it require of their
// callers that nobody else does meanwhile.
unsafe impl Send for Buffers {}
// SAFETY: as above.
unsafe impl Sync for Buffers {}

impl Buffers {
    /// New buffers, with `payload` bytes for the payload.
    pub(super) fn new(payload: usize) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let flags = flags | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), FRONT + payload, prot, flags) }?;
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        let this = Buffers {
            base,
            payload,
            lent: AtomicBool::new(false),
            in_kernel: AtomicBool::new(false),
        };
        let address = |offset: usize| (this.base.as_ptr() as usize + offset) as u64;
        let iovecs = [address(0), HEADERS as u64, address(FRONT), payload as u64];
        // SAFETY: these are 32 bytes within the mapping, aligned to 8, and nothing else refers to
        // the mapping yet. `struct iovec` is an address and a length, of 64 bits each where
        // io_uring is used.
        unsafe { this.at(IOVECS).cast::<[u64; 4]>().write(iovecs) };
        Ok(this)
    }

    /// The address of the iovecs for headers and payload.
    pub(super) fn iovecs(&self) -> u64 {
        self.at(IOVECS) as u64
    }

    /// The size of the payload buffer, in bytes.
    pub(super) fn payload(&self) -> usize {
        self.payload
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Sets whether the buffers belong to the kernel.
    pub(super) fn set_in_kernel(&self, in_kernel: bool) {
        self.in_kernel.store(in_kernel, Ordering::Release);
    }

    pub(super) fn is_in_kernel(&self) -> bool {
        self.in_kernel.load(Ordering::Acquire)
    }

    /// Whether a request with a payload in these buffers is in use.
    pub(super) fn is_lent(&self) -> bool {
        self.lent.load(Ordering::Acquire)
    }

    /// The headers.
    ///
    /// # Safety
    /// The buffers belong to the caller.
    pub(super) unsafe fn headers(&self) -> [u8; HEADERS] {
        // SAFETY: this is within the mapping, and the caller promises that nobody writes.
        unsafe { self.base.cast::<[u8; HEADERS]>().read() }
    }

    /// Replaces the headers.
    ///
    /// # Safety
    /// The buffers belong to the caller.
    pub(super) unsafe fn set_headers(&self, headers: &[u8; HEADERS]) {
        // SAFETY: as in `headers`, and nobody reads.
        unsafe { self.base.cast::<[u8; HEADERS]>().write(*headers) }
    }

    /// Copies these slices one after the other to the payload. False if they are too long.
    ///
    /// # Safety
    /// The buffers belong to the caller, and are not lent.
    pub(super) unsafe fn write_payload(&self, slices: &[&[u8]]) -> bool {
        if slices.iter().map(|slice| slice.len()).sum::<usize>() > self.payload {
            return false;
        }
        let mut offset = FRONT;
        for slice in slices {
            // SAFETY: this is within the mapping, as the lengths were checked; the caller promises
            // that nobody else reads or writes there, so `slice` is other memory.
            unsafe { ptr::copy_nonoverlapping(slice.as_ptr(), self.at(offset), slice.len()) };
            offset += slice.len();
        }
        true
    }

    /// Copies `header` and `first` to just before the payload, and calls `decode` with the whole
    /// request. Its payload has `payload` bytes, at most [`Buffers::payload`].
    ///
    /// # Safety
    /// The buffers belong to the caller until `decode` has returned.
    pub(super) unsafe fn lend<T>(
        &self,
        (header, first): (&[u8], &[u8]),
        payload: usize,
        decode: impl FnOnce(&[u8]) -> T,
    ) -> T {
        /// Ends the lending, even if `decode` panics.
        struct Lent<'a>(&'a AtomicBool);
        impl Drop for Lent<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        let front = header.len() + first.len();
        assert!(front <= FRONT - IOVECS - 32 && payload <= self.payload);
        let begin = FRONT - front;
        // SAFETY: both are within the front page, as asserted; `header` and `first` are slices of
        // other memory, and nobody else uses this memory.
        unsafe {
            ptr::copy_nonoverlapping(header.as_ptr(), self.at(begin), header.len());
            let begin = begin + header.len();
            ptr::copy_nonoverlapping(first.as_ptr(), self.at(begin), first.len());
        }
        // A reply may be written while a request without payload is in use, because it begins where
        // the request ends.
        self.lent.store(payload > 0, Ordering::Release);
        let _lent = Lent(&self.lent);
        // SAFETY: this is within the mapping and initialized (anonymous memory is zero). Nobody
        // writes there while `decode` runs: not the kernel, to which the buffers do not belong, and
        // no reply, which sees that they are lent.
        let request = unsafe { std::slice::from_raw_parts(self.at(begin), front + payload) };
        decode(request)
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if self.is_in_kernel() {
            // The kernel may still write to this memory, so it must not be used for anything else.
            return;
        }
        // SAFETY: this is the mapping that `new` made, and nobody uses it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), FRONT + self.payload) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_first_argument_and_payload_become_one_piece() {
        let buffers = Buffers::new(8192).unwrap();
        // SAFETY: they belong to this test.
        unsafe {
            assert!(buffers.write_payload(&[b"pay", b"load"]));
            assert!(!buffers.write_payload(&[&[0; 8000], &[0; 193]]));
            buffers.lend((b"header ", b"first "), 7, |request| {
                assert_eq!(request, b"header first payload");
                assert!(buffers.is_lent());
            });
            assert!(!buffers.is_lent());
            buffers.lend((b"header", b""), 0, |request| {
                assert_eq!(request, b"header");
                assert!(!buffers.is_lent(), "a reply may be written");
            });
        }
    }

    #[test]
    fn iovecs_name_both_buffers() {
        let buffers = Buffers::new(4096).unwrap();
        // SAFETY: written by `new`.
        let iovecs = unsafe { *(buffers.iovecs() as *const [u64; 4]) };
        let base = buffers.base.as_ptr() as u64;
        assert_eq!(iovecs, [base, 288, base + 4096, 4096]);
    }
}
