//! Memory for RDMA: one arena for each process, divided into blocks of a power of two.
//!
//! A [`Pool`] owns an arena (one anonymous mapping, which a verbs provider registers once for local
//! use) and allocates page-aligned blocks of 4 KiB times a power of two. A [`BufMut`] is the only
//! owner of its bytes; [`BufMut::freeze`] makes it a [`Buf`], which is shared and constant. A block
//! returns to the pool with its last owner.
//!
//! The arena may lie in a memfd ([`Pool::in_memfd`]), which outlives the process if another one keeps it. Whoever
//! goes on with it ([`Pool::of_memfd`]) says which blocks it wants as they are; the others are free, and empty.
//!
//! A block takes no memory of the system until it is allocated and touched.
//! [`Pool::release_unused`] returns to the system what was not needed since its last call, unless a
//! device holds the pages ([`Pool::keep_resident`]).

use crate::sync::Mutex;
use crate::{Error, Result};
use arena::{Arena, memfd};
use rustix::fs::fstat;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

// With a path, because `tests/models` builds this file in another place.
#[path = "buf/arena.rs"]
mod arena;

/// Smallest block, in bytes.
pub const MIN_BLOCK: usize = 4096;
/// log2 of [`MAX_BLOCK`] / [`MIN_BLOCK`].
const MAX_ORDER: usize = 10;
/// Largest block, in bytes.
pub const MAX_BLOCK: usize = MIN_BLOCK << MAX_ORDER;

/// An arena that buffers are allocated from. Clones share the arena.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    arena: Arena,
    free: Mutex<Buddies>,
    /// Blocks as another process has left them, by their places, until [`Pool::forget_claimed`].
    claimed: Mutex<BTreeMap<u32, Buf>>,
}

impl Inner {
    /// Returns the memory of a block to the system. Whether it could.
    ///
    /// # Safety
    ///
    /// It is a block that nobody has.
    unsafe fn release(&self, at: u32, order: usize) -> bool {
        let from = at as usize * MIN_BLOCK;
        // SAFETY: as the caller promises.
        unsafe { self.arena.release(from, MIN_BLOCK << order) }
    }
}

/// Where a buffer lies in its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its block, in units of [`MIN_BLOCK`].
    pub at: u32,
    /// log2 of the size of the block in these units.
    pub order: u32,
    /// Where the buffer begins in the block, and its length, in bytes.
    pub start: u32,
    pub len: u32,
}

/// log2 of [`PIECE`] / [`MIN_BLOCK`]. A piece is the least memory that is returned to the system,
/// 64 KiB; the largest block has 64 pieces, one bit each in a word.
const PIECE_ORDER: usize = MAX_ORDER - 6;
const PIECE: usize = MIN_BLOCK << PIECE_ORDER;

/// Free blocks by order, as offsets in units of [`MIN_BLOCK`].
struct Buddies {
    free: [BTreeSet<u32>; MAX_ORDER + 1],
    /// Free blocks of the smallest size, at most [`AT_HAND`], that are not joined with their
    /// neighbours: the next allocations take them without a search.
    at_hand: Vec<u32>,
    free_bytes: usize,
    /// Pieces allocated since they were last returned to the system: a word for each largest block.
    touched: Vec<u64>,
    /// Number of bits set in `touched`.
    touched_pieces: usize,
    /// The lowest value of `free_bytes` since [`Pool::release_unused`] was last called.
    least_free: usize,
    /// Whether a device holds the pages.
    resident: bool,
}

/// How many of the smallest blocks are kept at hand.
const AT_HAND: usize = 64;

/// The index of the word in `touched`, and the bits in it, for a block.
fn pieces(at: u32, order: usize) -> (usize, u64) {
    let first = (at as usize >> PIECE_ORDER) % 64;
    let number = 1 << order.saturating_sub(PIECE_ORDER);
    let bits = u64::MAX >> (64 - number);
    (at as usize >> MAX_ORDER, bits << first)
}

impl Buddies {
    fn take(&mut self, order: usize) -> Option<u32> {
        if order == 0
            && let Some(at) = self.at_hand.pop()
        {
            self.free_bytes -= MIN_BLOCK;
            self.least_free = self.least_free.min(self.free_bytes);
            // Its piece was not returned to the system meanwhile, and is still touched.
            return Some(at);
        }
        let found = |free: &[BTreeSet<u32>]| (order..=MAX_ORDER).find(|&o| !free[o].is_empty());
        let from = found(&self.free).or_else(|| {
            self.join_all();
            found(&self.free)
        })?;
        let at = self.free[from].pop_first()?;
        for half in (order..from).rev() {
            self.free[half].insert(at + (1 << half));
        }
        self.taken(at, order);
        Some(at)
    }

    /// Takes this block, if all of it is free.
    fn take_at(&mut self, at: u32, order: usize) -> bool {
        let holds = |from: &usize| at & !((1 << from) - 1);
        let Some(from) = (order..=MAX_ORDER).find(|from| self.free[*from].remove(&holds(from)))
        else {
            return false;
        };
        for half in (order..from).rev() {
            self.free[half].insert(holds(&half) ^ (1 << half));
        }
        self.taken(at, order);
        true
    }

    fn taken(&mut self, at: u32, order: usize) {
        self.free_bytes -= MIN_BLOCK << order;
        self.least_free = self.least_free.min(self.free_bytes);
        let (word, bits) = pieces(at, order);
        self.touched_pieces += (bits & !self.touched[word]).count_ones() as usize;
        self.touched[word] |= bits;
    }

    /// A free block, of at least one piece, that contains touched pieces: the largest, and of these
    /// the last, so that the blocks in use stay together at the beginning of the arena.
    fn touched_block(&self) -> Option<(u32, usize)> {
        let orders = (PIECE_ORDER..=MAX_ORDER).rev();
        let mut blocks = orders.flat_map(|order| {
            let of_order = self.free[order].iter().rev();
            of_order.map(move |&at| (at, order))
        });
        blocks.find(|&(at, order)| {
            let (word, bits) = pieces(at, order);
            self.touched[word] & bits != 0
        })
    }

    /// Takes the free blocks for which this is false out for good.
    fn keep_if(&mut self, mut is_good: impl FnMut(u32, usize) -> bool) {
        self.join_all();
        for (order, blocks) in self.free.iter_mut().enumerate() {
            let before = blocks.len();
            blocks.retain(|&at| is_good(at, order));
            self.free_bytes -= (before - blocks.len()) * (MIN_BLOCK << order);
        }
        self.least_free = self.free_bytes;
    }

    fn give(&mut self, at: u32, order: usize) {
        self.free_bytes += MIN_BLOCK << order;
        match order == 0 && self.at_hand.len() < AT_HAND {
            true => self.at_hand.push(at),
            false => self.join(at, order),
        }
    }

    /// Joins the blocks at hand with their free neighbours.
    fn join_all(&mut self) {
        while let Some(at) = self.at_hand.pop() {
            self.join(at, 0);
        }
    }

    /// Enters a free block, joined with its free neighbours.
    fn join(&mut self, mut at: u32, mut order: usize) {
        while order < MAX_ORDER && self.free[order].remove(&(at ^ (1 << order))) {
            at &= !(1 << order);
            order += 1;
        }
        self.free[order].insert(at);
    }
}

/// The size of a pool for `bytes`.
pub fn pool_len(bytes: usize) -> Result<usize> {
    bytes
        .max(1)
        .checked_next_multiple_of(MAX_BLOCK)
        .filter(|len| len / MIN_BLOCK <= u32::MAX as usize)
        .ok_or(Error::Misuse("a buffer pool of 16 TiB or more"))
}

impl Pool {
    /// A pool of `bytes`, rounded up to a multiple of the largest block. The memory is reserved but
    /// not touched, and is left out of core dumps, because it holds data of other users' files.
    pub fn new(bytes: usize) -> Result<Self> {
        let len = pool_len(bytes)?;
        let arena = Arena::new(len, None).map_err(|error| {
            Error::local(
                format!("cannot map {len} bytes for the buffer pool; ask for a smaller cache"),
                error,
            )
        })?;
        Ok(Self::of(arena))
    }

    /// The same in a memfd; see [`Pool::fd`].
    pub fn in_memfd(bytes: usize) -> Result<Self> {
        let len = pool_len(bytes)?;
        let arena = memfd(len).and_then(|fd| Arena::new(len, Some(fd)));
        let arena = arena.map_err(|error| Error::local("cannot make the pool's memfd", error))?;
        Ok(Self::of(arena))
    }

    /// The pool that another process had, which has ended. The blocks at `wanted` keep their contents, and are
    /// found by [`Pool::claimed`]. The memory of all others is returned to the system: a device
    /// of the other process may still write to it. What the system does not take is not used again.
    pub fn of_memfd(fd: OwnedFd, wanted: impl IntoIterator<Item = Place>) -> Result<Self> {
        let size = fstat(&fd).map(|stat| stat.st_size as usize);
        let size = size.map_err(|error| Error::local("cannot use a memfd", error.into()))?;
        if size == 0 || pool_len(size)? != size {
            return Err(Error::Misuse("a memfd that is not that of a pool"));
        }
        let arena = Arena::new(size, Some(fd))
            .map_err(|error| Error::local("cannot map the pool's memfd", error))?;
        let pool = Self::of(arena);
        let mut free = pool.inner.free.lock();
        for Place { at, order, .. } in wanted {
            let order = order as usize;
            if order <= MAX_ORDER && at.is_multiple_of(1 << order) && free.take_at(at, order) {
                let whole = pool.block(at, order, MIN_BLOCK << order).freeze();
                // The kernel fails a reply whose data is on a page that a process that is being killed has not
                // looked at yet.
                whole.iter().step_by(MIN_BLOCK).for_each(|byte| {
                    std::hint::black_box(*byte);
                });
                pool.inner.claimed.lock().insert(at, whole);
            }
        }
        // SAFETY: the blocks are free, and `free` is locked.
        free.keep_if(|at, order| unsafe { pool.inner.release(at, order) });
        drop(free);
        Ok(pool)
    }

    /// A buffer that another process has left there; `None` if there is no such block.
    pub fn claimed(&self, place: Place) -> Option<Buf> {
        let claimed = self.inner.claimed.lock();
        let whole = claimed.get(&place.at)?;
        let end = place.start.checked_add(place.len)? as usize;
        let fits = whole.block.order == place.order as usize && end <= whole.len();
        fits.then(|| whole.slice(place.start as usize..end))
    }

    /// From now on a block that another process has left belongs to whoever has got it.
    pub fn forget_claimed(&self) {
        let claimed = std::mem::take(&mut *self.inner.claimed.lock());
        drop(claimed);
    }

    /// The memfd, for whoever keeps it beyond the life of this process; `None` if there is none.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.arena.fd.as_ref().map(AsFd::as_fd)
    }

    fn of(arena: Arena) -> Self {
        let len = arena.len;
        let mut free: [BTreeSet<u32>; MAX_ORDER + 1] = Default::default();
        free[MAX_ORDER] = (0..(len / MIN_BLOCK) as u32)
            .step_by(1 << MAX_ORDER)
            .collect();
        Pool {
            inner: Arc::new(Inner {
                arena,
                free: Mutex::new(Buddies {
                    free,
                    at_hand: Vec::with_capacity(AT_HAND),
                    free_bytes: len,
                    touched: vec![0; len / MAX_BLOCK],
                    touched_pieces: 0,
                    least_free: len,
                    resident: false,
                }),
                claimed: Mutex::default(),
            }),
        }
    }

    /// The only owner of a block.
    fn block(&self, at: u32, order: usize, len: usize) -> BufMut {
        // SAFETY: `at` is a block of the arena, so the offset stays inside the mapping.
        let base = unsafe { self.inner.arena.base.add(at as usize * MIN_BLOCK) };
        BufMut {
            block: Arc::new(Block {
                base,
                at,
                order,
                pool: self.clone(),
            }),
            start: 0,
            len,
        }
    }

    /// Allocates a buffer of `len` bytes; its block is the next power of two. `None` if no block is
    /// free or `len` exceeds [`MAX_BLOCK`]. It contains what the block held before, so it must be
    /// filled before anything in it is shown to a user.
    pub fn alloc(&self, len: usize) -> Option<BufMut> {
        let blocks = len.max(1).div_ceil(MIN_BLOCK).next_power_of_two();
        let order = blocks.trailing_zeros() as usize;
        if order > MAX_ORDER {
            return None;
        }
        let at = self.inner.free.lock().take(order)?;
        Some(self.block(at, order, len))
    }

    /// Size of the arena in bytes.
    pub fn capacity(&self) -> usize {
        self.inner.arena.len
    }

    /// Bytes that are not allocated.
    pub fn free_bytes(&self) -> usize {
        self.inner.free.lock().free_bytes
    }

    /// For providers: a device holds the arena's pages, so from now on none may be returned to the
    /// system.
    pub fn keep_resident(&self) {
        self.inner.free.lock().resident = true;
    }

    /// Memory of the system that the arena takes at most, in bytes: pieces that were allocated and
    /// not returned since.
    pub fn touched_bytes(&self) -> usize {
        self.inner.free.lock().touched_pieces * PIECE
    }

    /// Returns to the system memory that was free during the whole time since the last call. If it
    /// is called at intervals, the pool keeps as much as was needed at the peak of the last
    /// interval. Returns the number of bytes returned.
    pub fn release_unused(&self) -> usize {
        let mut given = 0;
        let keep = {
            let mut free = self.inner.free.lock();
            free.join_all();
            let keep = self.inner.arena.len - free.least_free;
            free.least_free = free.free_bytes;
            keep
        };
        loop {
            // The lock is taken anew for each block, so that others can allocate in between.
            let mut free = self.inner.free.lock();
            if free.resident || free.touched_pieces * PIECE <= keep {
                return given;
            }
            let Some((at, order)) = free.touched_block() else {
                return given;
            };
            // SAFETY: the block is free and stays free while `free` is locked, so nobody has access
            // to its bytes.
            if !unsafe { self.inner.release(at, order) } {
                return given;
            }
            let (word, bits) = pieces(at, order);
            let taken = (free.touched[word] & bits).count_ones() as usize;
            free.touched[word] &= !bits;
            free.touched_pieces -= taken;
            given += taken * PIECE;
        }
    }

    /// First byte of the arena, for a device to register; its length is [`Pool::capacity`].
    pub fn base(&self) -> NonNull<u8> {
        self.inner.arena.base
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("capacity", &self.capacity())
            .field("free_bytes", &self.free_bytes())
            .finish()
    }
}

/// An allocated block. Dropping it returns the block to the pool.
struct Block {
    base: NonNull<u8>,
    at: u32,
    order: usize,
    pool: Pool,
}

// SAFETY: `base` points to memory that this block alone owns; access follows the borrow rules of
// `BufMut` and `Buf`.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        self.pool.inner.free.lock().give(self.at, self.order);
    }
}

/// A buffer with one owner, who may change it.
pub struct BufMut {
    block: Arc<Block>,
    start: usize,
    len: usize,
}

impl BufMut {
    /// Length up to which [`BufMut::resize`] can go.
    pub fn capacity(&self) -> usize {
        (MIN_BLOCK << self.block.order) - self.start
    }

    /// Changes the length. Added bytes contain what the block held before.
    ///
    /// # Panics
    /// If `len` exceeds the capacity.
    pub fn resize(&mut self, len: usize) {
        assert!(len <= self.capacity(), "resize within the block's capacity");
        self.len = len;
    }

    /// Makes the bytes shared and constant.
    pub fn freeze(self) -> Buf {
        Buf {
            block: self.block,
            start: self.start,
            len: self.len,
        }
    }

    /// For providers: the first byte, for a device or a system call to write to. The memory stays
    /// alive while a [`KeepAlive`] exists.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        // SAFETY: `start` is inside the block.
        unsafe { self.block.base.as_ptr().add(self.start) }
    }

    /// For providers: keeps the block from returning to the pool.
    pub fn keep_alive(&self) -> KeepAlive {
        KeepAlive {
            _block: self.block.clone(),
        }
    }
}

/// Keeps a block from returning to the pool. Gives no access to its memory.
pub struct KeepAlive {
    _block: Arc<Block>,
}

impl fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepAlive")
    }
}

impl Deref for BufMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is inside the block, initialised (mmap gives zeros), and nobody
        // else has access while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.block.base.as_ptr().add(self.start), self.len) }
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `self` is the only owner of the bytes.
        unsafe {
            std::slice::from_raw_parts_mut(self.block.base.as_ptr().add(self.start), self.len)
        }
    }
}

impl fmt::Debug for BufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufMut({} bytes)", self.len)
    }
}

/// A buffer that is shared and constant.
#[derive(Clone)]
pub struct Buf {
    block: Arc<Block>,
    start: usize,
    len: usize,
}

impl Buf {
    /// A part of the buffer, sharing its memory.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Buf {
        let from = match range.start_bound() {
            Bound::Included(&n) => n,
            Bound::Excluded(&n) => n.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&n) => n.saturating_add(1),
            Bound::Excluded(&n) => n,
            Bound::Unbounded => self.len,
        };
        assert!(from <= to && to <= self.len, "slice inside the buffer");
        Buf {
            block: self.block.clone(),
            start: self.start + from,
            len: to - from,
        }
    }

    /// Makes the buffer changeable again, if nobody else holds a part of its block.
    pub fn try_into_mut(mut self) -> std::result::Result<BufMut, Buf> {
        if Arc::get_mut(&mut self.block).is_none() {
            return Err(self);
        }
        Ok(BufMut {
            block: self.block,
            start: self.start,
            len: self.len,
        })
    }

    /// Where it lies in its pool.
    pub fn place(&self) -> Place {
        Place {
            at: self.block.at,
            order: self.block.order as u32,
            start: self.start as u32,
            len: self.len as u32,
        }
    }

    /// For providers: the first byte, for a device to read.
    pub fn as_raw_ptr(&self) -> *const u8 {
        // SAFETY: `start` is inside the block.
        unsafe { self.block.base.as_ptr().add(self.start) }
    }

    /// For providers: keeps the block from returning to the pool.
    pub fn keep_alive(&self) -> KeepAlive {
        KeepAlive {
            _block: self.block.clone(),
        }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is inside the block and initialised; no BufMut of the block
        // exists while a Buf does, so nobody changes it.
        unsafe { std::slice::from_raw_parts(self.block.base.as_ptr().add(self.start), self.len) }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

// With a path, because `tests/models` builds this file in another place.
#[cfg(test)]
#[path = "buf/tests.rs"]
mod tests;
