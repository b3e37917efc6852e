//! The records of one kind.

use crate::chunk::{CHUNK, Mapping};
use crate::head::Shared;
use crate::kinds::Plain;
use parking_lot::Mutex;
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
    chunks: Vec<Mapping>,
    free: Vec<u32>,
    /// The first slot that has never been used.
    next: u32,
    /// The records that were found in the table, until [`Region::restore`] hands them out.
    found: Vec<u32>,
}

impl Slots {
    fn place<T>(&self, slot: u32) -> NonNull<T> {
        let in_chunk = CHUNK / size_of::<T>();
        let slot = slot as usize;
        self.chunks[slot / in_chunk].place(slot % in_chunk * size_of::<T>())
    }
}

/// A record that is not as it was made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

impl<T: Plain> Region<T> {
    pub(crate) fn new(shared: &Arc<Shared>, kind: usize) -> Self {
        Region {
            shared: shared.clone(),
            kind,
            slots: Mutex::default(),
            of: PhantomData,
        }
    }

    /// Adds a chunk that was found in a table, with its records.
    pub(crate) fn found(&mut self, chunk: Mapping) -> Result<(), Damaged> {
        let in_chunk = CHUNK / size_of::<T>();
        let slots = self.slots.get_mut();
        let first = slots.chunks.len() * in_chunk;
        slots.chunks.push(chunk);
        for at in first..first + in_chunk {
            let slot = u32::try_from(at).map_err(|_| Damaged)?;
            let place: NonNull<T> = slots.place(slot);
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
            slots.free.extend(slots.next..slot);
            slots.next = slot + 1;
            slots.found.push(slot);
        }
        Ok(())
    }

    /// Makes a record. Its number is new, and replaces the one in `value`.
    ///
    /// If there is no memory, or if there are already 2^32 - 1 records, the process ends as it does without any
    /// other memory.
    pub fn alloc(self: &Arc<Self>, mut value: T) -> Record<T> {
        let mut slots = self.slots.lock();
        let slot = slots.free.pop().unwrap_or_else(|| {
            let slot = slots.next;
            slots.next = slot.checked_add(1).expect("no more than 2^32 - 1 records");
            if slot as usize >= slots.chunks.len() * (CHUNK / size_of::<T>()) {
                slots.chunks.push(self.shared.grow(self.kind));
            }
            slot
        });
        let place = slots.place(slot);
        let made = &self.shared.head().made[self.kind];
        let before = made.load(Ordering::Relaxed);
        made.store(before.wrapping_add(1), Ordering::Relaxed);
        drop(slots);
        let number = u64::from(before) << 32 | u64::from(slot + 1);
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
        self.slots.lock().found.first() == Some(&0)
    }

    /// Whether all records of the table outlive the process.
    pub fn lasts(&self) -> bool {
        self.shared.has_all()
    }

    /// Something of each record that [`Region::restore`] will hand out.
    pub fn peek<R>(&self, of: impl Fn(&T) -> R) -> Vec<R> {
        let slots = self.slots.lock();
        // SAFETY: the record is valid, and has no owner yet.
        let value = |&slot: &u32| of(unsafe { slots.place(slot).as_ref() });
        slots.found.iter().map(value).collect()
    }

    /// The records that were in the table when it was opened, once.
    pub fn restore(self: &Arc<Self>) -> Vec<Record<T>> {
        let mut slots = self.slots.lock();
        let found = std::mem::take(&mut slots.found);
        let record = |slot| Record {
            place: slots.place(slot),
            region: self.clone(),
        };
        found.into_iter().map(record).collect()
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
        let slot = self.number() as u32 - 1;
        // SAFETY: a record begins with its number.
        let number = unsafe { self.place.cast::<AtomicU64>().as_ref() };
        number.store(0, Ordering::Release);
        self.region.slots.lock().free.push(slot);
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
