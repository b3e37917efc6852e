//! The records of one kind.

use crate::chunk::{CHUNK, Mapping};
use crate::head::Shared;
use crate::kinds::Plain;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The records of one kind, in a table.
pub struct Region<T> {
    shared: Arc<Shared>,
    kind: usize,
    slots: Mutex<Slots>,
    of: PhantomData<T>,
}

impl<T> fmt::Debug for Region<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({})", self.kind)
    }
}

/// Which slots are free is known only to the process, and found out when it opens the table.
#[derive(Debug, Default)]
struct Slots {
    chunks: Vec<Chunk>,
    /// The chunks in which a record can be made. The first one is used, so that the others may get empty.
    roomy: BTreeSet<usize>,
    /// A chunk without records that keeps its memory, so that few records do not give back and take a chunk
    /// again and again.
    spare: Option<usize>,
    found: Found,
}

/// The slots of a chunk.
#[derive(Debug)]
struct Chunk {
    mapping: Mapping,
    /// Whether it has memory. Otherwise it has no records.
    held: bool,
    /// Slots that were used.
    free: Vec<u16>,
    /// The first slot that was not used.
    next: u16,
}

impl Chunk {
    fn new(mapping: Mapping, held: bool) -> Self {
        Chunk {
            mapping,
            held,
            free: Vec::new(),
            next: 0,
        }
    }

    fn is_empty(&self) -> bool {
        usize::from(self.next) == self.free.len()
    }

    fn take(&mut self) -> u16 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

/// The records that were found in the table and have no owner yet, a bit for each slot.
#[derive(Debug, Default)]
struct Found(Vec<u64>);

impl Found {
    fn add(&mut self, slot: usize) {
        if self.0.len() <= slot / 64 {
            self.0.resize(slot / 64 + 1, 0);
        }
        self.0[slot / 64] |= 1 << (slot % 64);
    }

    fn has(&self, slot: usize) -> bool {
        let word = self.0.get(slot / 64);
        word.is_some_and(|word| word >> (slot % 64) & 1 != 0)
    }

    fn remove(&mut self, slot: usize) {
        self.0[slot / 64] &= !(1 << (slot % 64));
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(at, &word)| {
            let first = at * 64;
            let rest = std::iter::successors(Some(word), |word| Some(word & word.checked_sub(1)?));
            rest.take_while(|&word| word != 0)
                .map(move |word| first + word.trailing_zeros() as usize)
        })
    }
}

/// A record that is not as it was made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

impl<T: Plain> Region<T> {
    /// The slots of a chunk.
    const IN_CHUNK: usize = {
        let in_chunk = CHUNK / size_of::<T>();
        assert!(in_chunk < u16::MAX as usize);
        in_chunk
    };

    pub(crate) fn new(shared: &Arc<Shared>, kind: usize) -> Self {
        Region {
            shared: shared.clone(),
            kind,
            slots: Mutex::default(),
            of: PhantomData,
        }
    }

    /// Adds a chunk that was found in a table, with its records. `held`: it has memory.
    pub(crate) fn found(&mut self, chunk: Mapping, held: bool) -> Result<(), Damaged> {
        let slots = self.slots.get_mut();
        let index = slots.chunks.len();
        let first = index * Self::IN_CHUNK;
        let mut chunk = Chunk::new(chunk, held);
        for at in 0..Self::IN_CHUNK {
            if !held {
                break;
            }
            let slot = u32::try_from(first + at).map_err(|_| Damaged)?;
            let place: NonNull<T> = chunk.mapping.place(at * size_of::<T>());
            // SAFETY: the place is that of a record, and nobody has it.
            let number = unsafe { place.cast::<AtomicU64>().as_ref() }.load(Ordering::Acquire);
            if number == 0 {
                continue;
            }
            // SAFETY: as above.
            let sums = unsafe { (sum_of(place, number), sum_place(place).read()) };
            if number as u32 != slot + 1 || sums.0 != sums.1 {
                return Err(Damaged);
            }
            chunk.free.extend(chunk.next..at as u16);
            chunk.next = at as u16 + 1;
            slots.found.add(first + at);
        }
        if !chunk.free.is_empty() || usize::from(chunk.next) < Self::IN_CHUNK {
            slots.roomy.insert(index);
        }
        if held && chunk.is_empty() {
            slots.spare = Some(index);
        }
        slots.chunks.push(chunk);
        Ok(())
    }

    /// A slot for a record.
    fn take(&self, slots: &mut Slots) -> usize {
        while let Some(&index) = slots.roomy.first() {
            let chunk = &mut slots.chunks[index];
            if !chunk.held && self.shared.refill(&chunk.mapping).is_err() {
                slots.roomy.remove(&index);
                continue;
            }
            chunk.held = true;
            let at = usize::from(chunk.take());
            if chunk.free.is_empty() && usize::from(chunk.next) == Self::IN_CHUNK {
                slots.roomy.remove(&index);
            }
            if slots.spare == Some(index) {
                slots.spare = None;
            }
            return index * Self::IN_CHUNK + at;
        }
        let index = slots.chunks.len();
        let mut chunk = Chunk::new(self.shared.grow(self.kind), true);
        let at = usize::from(chunk.take());
        slots.chunks.push(chunk);
        slots.roomy.insert(index);
        index * Self::IN_CHUNK + at
    }

    fn give_back(&self, slots: &mut Slots, slot: usize) {
        let index = slot / Self::IN_CHUNK;
        let chunk = &mut slots.chunks[index];
        chunk.free.push((slot % Self::IN_CHUNK) as u16);
        slots.roomy.insert(index);
        if !chunk.is_empty() {
            return;
        }
        // As it was when it was new.
        chunk.free.clear();
        chunk.next = 0;
        if slots.spare.is_none() {
            slots.spare = Some(index);
            return;
        }
        chunk.free = Vec::new();
        if self.shared.release(&chunk.mapping).is_ok() {
            chunk.held = false;
        }
    }

    fn place(slots: &Slots, slot: usize) -> NonNull<T> {
        let chunk = &slots.chunks[slot / Self::IN_CHUNK];
        chunk.mapping.place(slot % Self::IN_CHUNK * size_of::<T>())
    }

    /// Makes a record. Its number is new, and replaces the one in `value`.
    ///
    /// If there is no memory, or if there are already 2^32 - 1 records, the process ends as it does without any
    /// other memory.
    pub fn alloc(self: &Arc<Self>, mut value: T) -> Record<T> {
        let mut slots = self.slots.lock();
        let slot = self.take(&mut slots);
        let place = Self::place(&slots, slot);
        let made = &self.shared.head().made[self.kind];
        let before = made.load(Ordering::Relaxed);
        made.store(before.wrapping_add(1), Ordering::Relaxed);
        drop(slots);
        let low = u32::try_from(slot + 1).expect("no more than 2^32 - 1 records");
        let number = u64::from(before) << 32 | u64::from(low);
        // SAFETY: the place is that of a record, and free, so nobody else has it.
        unsafe {
            let local = NonNull::from(&mut value);
            sum_place(local).write(sum_of(local, number));
            local.cast::<u64>().write(0);
            place.write(value);
            // What was written before is there if this is.
            place
                .cast::<AtomicU64>()
                .as_ref()
                .store(number, Ordering::Release);
        }
        let region = self.clone();
        Record { place, region }
    }

    /// Whether the first record is there.
    pub(crate) fn has_first(&self) -> bool {
        self.slots.lock().found.has(0)
    }

    /// Whether all records of the table outlive the process.
    pub fn lasts(&self) -> bool {
        self.shared.has_all()
    }

    /// Looks at each record that was found in the table and has no owner yet. `of` must not use the region.
    pub fn each(&self, mut of: impl FnMut(&T)) {
        let slots = self.slots.lock();
        for slot in slots.found.iter() {
            // SAFETY: the record is valid, and nobody can become its owner as long as the slots are locked.
            of(unsafe { Self::place(&slots, slot).as_ref() });
        }
    }

    /// Something of each record that was found in the table and has no owner yet.
    pub fn peek<R>(&self, of: impl Fn(&T) -> R) -> Vec<R> {
        let mut all = Vec::new();
        self.each(|record| all.push(of(record)));
        all
    }

    /// Something of the record in a slot, the lower half of its number, if it was found there and has no owner
    /// yet. `of` must not use the region.
    pub fn look<R>(&self, low: u32, of: impl FnOnce(&T) -> R) -> Option<R> {
        let slots = self.slots.lock();
        let slot = (low as usize).checked_sub(1)?;
        let found = slots.found.has(slot);
        // SAFETY: as in `each`.
        found.then(|| of(unsafe { Self::place(&slots, slot).as_ref() }))
    }

    /// The record with this number, if it was found in the table and has no owner yet.
    pub fn claim(self: &Arc<Self>, number: u64) -> Option<Record<T>> {
        let mut slots = self.slots.lock();
        let slot = (number as u32 as usize).checked_sub(1)?;
        if !slots.found.has(slot) {
            return None;
        }
        let place = Self::place(&slots, slot);
        // SAFETY: a record begins with its number, which stays as long as it is valid.
        if unsafe { place.cast::<u64>().read() } != number {
            return None;
        }
        slots.found.remove(slot);
        let region = self.clone();
        Some(Record { place, region })
    }

    /// The records that were found in the table and have no owner yet.
    pub fn restore(self: &Arc<Self>) -> Vec<Record<T>> {
        let mut slots = self.slots.lock();
        let found = std::mem::take(&mut slots.found);
        let record = |slot| Record {
            place: Self::place(&slots, slot),
            region: self.clone(),
        };
        found.iter().map(record).collect()
    }
}

/// A record, and its only owner. It is freed when this is dropped, unless the process dies before.
pub struct Record<T: Plain> {
    place: NonNull<T>,
    region: Arc<Region<T>>,
}

// SAFETY: it is the owner of a value, which may be sent as `Plain` says, and of a region, which is shared.
unsafe impl<T: Plain> Send for Record<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Record<T> {}

impl<T: Plain> Record<T> {
    /// The number of the record, which is never that of another one of its kind.
    pub fn number(&self) -> u64 {
        // SAFETY: a record begins with its number, which stays while it has an owner.
        unsafe { self.place.cast::<u64>().read() }
    }
}

impl<T: Plain + fmt::Debug> fmt::Debug for Record<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Plain> Deref for Record<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the record is valid while it has an owner, and its region keeps the memory.
        unsafe { self.place.as_ref() }
    }
}

impl<T: Plain> Drop for Record<T> {
    fn drop(&mut self) {
        let slot = self.number() as u32 as usize - 1;
        // SAFETY: a record begins with its number.
        let number = unsafe { self.place.cast::<AtomicU64>().as_ref() };
        number.store(0, Ordering::Release);
        let mut slots = self.region.slots.lock();
        self.region.give_back(&mut slots, slot);
    }
}

/// # Safety
///
/// The place is that of a value.
unsafe fn sum_place<T: Plain>(place: NonNull<T>) -> NonNull<u32> {
    // SAFETY: `Plain` promises the offset.
    unsafe { place.byte_add(T::SUM) }.cast()
}

/// The check sum of the bytes that stay as they are.
///
/// # Safety
///
/// The place is that of a value, which nobody changes meanwhile.
unsafe fn sum_of<T: Plain>(place: NonNull<T>, number: u64) -> u32 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let start = size_of::<u64>();
    // SAFETY: `Plain` promises that the bytes are initialised and constant.
    let bytes = unsafe {
        let first = place.cast::<u8>().add(start).as_ptr();
        std::slice::from_raw_parts(first, T::FIXED - start)
    };
    let mut sum = number.wrapping_mul(ODD);
    let mut add = |word: u64| sum = (sum ^ word).wrapping_mul(ODD).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|word| add(u64::from_ne_bytes(*word)));
    rest.iter().for_each(|byte| add(u64::from(*byte)));
    (sum ^ sum >> 32) as u32
}
