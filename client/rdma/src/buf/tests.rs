//! The pool compared with a model, and the guarantees for owners of buffers.

use super::*;
use proptest::prelude::*;

/// The size of the block of a buffer of `len` bytes.
fn block(len: usize) -> usize {
    len.max(1).next_power_of_two().max(MIN_BLOCK)
}

/// The position of a buffer's block in the arena.
fn place(pool: &Pool, buf: &BufMut) -> usize {
    buf.as_ptr() as usize - pool.base().as_ptr() as usize
}

#[derive(Debug, Clone)]
enum Step {
    Take(usize),
    /// Returns one of the buffers held, by index modulo their number.
    Give(usize),
    /// Returns unused memory to the system.
    Release,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![
        0usize..=3 * MIN_BLOCK,
        (0u32..=MAX_ORDER as u32).prop_map(|order| MIN_BLOCK << order),
        0usize..=MAX_BLOCK + 1,
    ];
    let step = prop_oneof![
        3 => len.prop_map(Step::Take),
        2 => any::<usize>().prop_map(Step::Give),
        1 => Just(Step::Release),
    ];
    prop::collection::vec(step, 1..if cfg!(miri) { 20 } else { 200 })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { ProptestConfig::default().cases }))]

    /// Blocks are aligned, inside the arena, and never overlap; the number of free bytes is right;
    /// an allocation fails only if no aligned block of its size is free; in the end the arena is
    /// one free piece again.
    #[test]
    fn the_pool_agrees_with_a_model(steps in steps()) {
        let pool = Pool::new(2 * MAX_BLOCK).unwrap();
        let capacity = pool.capacity();
        prop_assert_eq!(capacity, 2 * MAX_BLOCK);
        let mut taken = vec![false; capacity / MIN_BLOCK];
        let mut held: Vec<BufMut> = Vec::new();
        for step in steps {
            match step {
                Step::Take(len) => {
                    let size = block(len);
                    let fits = size <= MAX_BLOCK
                        && taken.chunks(size / MIN_BLOCK).any(|c| c.iter().all(|t| !t));
                    let buf = pool.alloc(len);
                    prop_assert_eq!(buf.is_some(), fits, "{} bytes", len);
                    if let Some(mut buf) = buf {
                        let with = held.len() as u8;
                        buf.iter_mut().take(1).for_each(|byte| *byte = with);
                        prop_assert_eq!(buf.len(), len);
                        prop_assert_eq!(buf.capacity(), size);
                        let at = place(&pool, &buf);
                        prop_assert_eq!(at % size.min(MAX_BLOCK), 0);
                        for unit in &mut taken[at / MIN_BLOCK..(at + size) / MIN_BLOCK] {
                            prop_assert!(!*unit, "overlap");
                            *unit = true;
                        }
                        held.push(buf);
                    }
                }
                Step::Give(which) if !held.is_empty() => {
                    let buf = held.swap_remove(which % held.len());
                    let (at, size) = (place(&pool, &buf), buf.capacity());
                    drop(buf);
                    taken[at / MIN_BLOCK..(at + size) / MIN_BLOCK].fill(false);
                }
                Step::Give(_) => {}
                Step::Release => {
                    let before: Vec<_> = held.iter().map(|buf| buf.first().copied()).collect();
                    if !cfg!(miri) {
                        pool.release_unused();
                    }
                    let after: Vec<_> = held.iter().map(|buf| buf.first().copied()).collect();
                    prop_assert_eq!(before, after, "memory in use was given back");
                    let used = capacity - pool.free_bytes();
                    prop_assert!(pool.touched_bytes() >= used);
                }
            }
            let free = taken.iter().filter(|t| !**t).count() * MIN_BLOCK;
            prop_assert_eq!(pool.free_bytes(), free);
        }
        drop(held);
        prop_assert_eq!(pool.free_bytes(), capacity);
        let whole = [pool.alloc(MAX_BLOCK), pool.alloc(MAX_BLOCK)];
        prop_assert!(whole.iter().all(Option::is_some), "everything coalesced");
    }

    /// Slices of slices have the same bytes as those of a vector.
    #[test]
    fn slices_agree_with_those_of_a_vector(
        len in 0usize..5000,
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..6),
    ) {
        let pool = Pool::new(1).unwrap();
        let mut buf = pool.alloc(len).unwrap();
        for (n, byte) in buf.iter_mut().enumerate() {
            *byte = n as u8 ^ (n >> 8) as u8;
        }
        let mut model = buf.to_vec();
        let mut buf = buf.freeze();
        for (a, b) in cuts {
            let (a, b) = (a.index(model.len() + 1), b.index(model.len() + 1));
            let (from, to) = (a.min(b), a.max(b));
            model = model[from..to].to_vec();
            buf = buf.slice(from..to);
            prop_assert_eq!(&buf[..], &model[..]);
        }
    }
}

#[test]
fn the_ends_of_a_range_may_be_of_any_kind() {
    let pool = Pool::new(1).unwrap();
    let mut buf = pool.alloc(10).unwrap();
    buf.copy_from_slice(b"0123456789");
    let buf = buf.freeze();
    assert_eq!(&buf.slice(..)[..], b"0123456789");
    assert_eq!(&buf.slice(2..)[..], b"23456789");
    assert_eq!(&buf.slice(..=3)[..], b"0123");
    let range = (Bound::Excluded(1), Bound::Included(4));
    assert_eq!(&buf.slice(range)[..], b"234");
    assert_eq!(&buf.slice(10..)[..], b"");
    for bad in [
        (Bound::Included(5), Bound::Excluded(4)),
        (Bound::Included(0), Bound::Excluded(11)),
        (Bound::Included(0), Bound::Included(usize::MAX)),
        (Bound::Excluded(usize::MAX), Bound::Unbounded),
    ] {
        let buf = buf.clone();
        let cut = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buf.slice(bad)));
        assert!(cut.is_err(), "{bad:?}");
    }
}

/// A pool must be addressable; an impossible size is an error, not a panic.
#[test]
fn a_pool_of_impossible_size_is_an_error() {
    for bytes in [usize::MAX, 1 << 60, 16 << 40] {
        assert!(Pool::new(bytes).is_err(), "{bytes:#x}");
    }
}

#[test]
fn a_buffer_grows_within_its_block() {
    let pool = Pool::new(1).unwrap();
    let mut buf = pool.alloc(5000).unwrap();
    buf.fill(1);
    buf.resize(8192);
    assert_eq!(buf.len(), 8192);
    buf.resize(3);
    assert_eq!(&buf[..], [1, 1, 1]);
    let grow = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buf.resize(8193)));
    assert!(grow.is_err());
}

#[test]
fn only_the_last_owner_may_change_bytes_again() {
    let pool = Pool::new(1).unwrap();
    let mut buf = pool.alloc(100).unwrap();
    buf.fill(9);
    let buf = buf.freeze();
    let part = buf.slice(10..20);
    let buf = buf.try_into_mut().expect_err("a part is held");
    drop(buf);
    let alive = part.keep_alive();
    let part = part.try_into_mut().expect_err("a device may read it");
    drop(alive);
    let mut part = part.try_into_mut().expect("nobody else");
    assert_eq!(&part[..], [9; 10]);
    assert_eq!(
        part.capacity(),
        MIN_BLOCK - 10,
        "what lies before is lost to it"
    );
    part.resize(90);
    assert_eq!(&part[..], [9; 90]);
    drop(part);
    assert_eq!(pool.free_bytes(), pool.capacity());
}

#[test]
fn a_block_returns_with_its_last_owner() {
    let pool = Pool::new(1).unwrap();
    let whole = pool.capacity();
    let buf = pool.alloc(MIN_BLOCK).unwrap();
    let alive = buf.keep_alive();
    drop(buf);
    assert_eq!(pool.free_bytes(), whole - MIN_BLOCK, "kept alive");
    drop(alive);
    assert_eq!(pool.free_bytes(), whole);

    let buf = pool.alloc(MIN_BLOCK).unwrap().freeze();
    let parts = [buf.slice(..1), buf.slice(4095..)];
    drop(buf);
    assert_eq!(pool.free_bytes(), whole - MIN_BLOCK);
    drop(parts);
    assert_eq!(pool.free_bytes(), whole);
}

/// The arena lives longer than the last clone of the pool.
#[test]
fn a_buffer_outlives_its_pool() {
    let pool = Pool::new(1).unwrap();
    let mut buf = pool.alloc(10).unwrap();
    drop(pool);
    buf.fill(3);
    assert_eq!(&buf.freeze()[..], [3; 10]);
}

/// Bytes of the arena that are resident in memory.
#[cfg(not(miri))]
fn resident(pool: &Pool) -> usize {
    let mut pages = vec![0u8; pool.capacity() / MIN_BLOCK];
    // SAFETY: the arena is mapped while `pool` lives, and `pages` has a byte for each of its pages.
    let result = unsafe {
        libc::mincore(
            pool.base().as_ptr().cast(),
            pool.capacity(),
            pages.as_mut_ptr(),
        )
    };
    assert_eq!(result, 0);
    pages.iter().filter(|page| **page & 1 != 0).count() * MIN_BLOCK
}

#[test]
#[cfg(not(miri))]
fn memory_that_is_not_needed_goes_back_to_the_system_and_what_is_in_use_stays() {
    let pool = Pool::new(8 * MAX_BLOCK).unwrap();
    let mut held: Vec<BufMut> = (0..8 * 64).map(|_| pool.alloc(PIECE).unwrap()).collect();
    held.iter_mut().for_each(|buf| buf.fill(7));
    assert_eq!(pool.free_bytes(), 0);
    assert_eq!(pool.touched_bytes(), pool.capacity());
    held.truncate(65);
    // At the peak of the interval, all of it was needed.
    assert_eq!(pool.release_unused(), 0);
    assert_eq!(resident(&pool), pool.capacity());
    assert_eq!(pool.release_unused(), pool.capacity() - 65 * PIECE);
    assert_eq!(resident(&pool), 65 * PIECE);
    assert!(held.iter().all(|buf| buf.iter().all(|&byte| byte == 7)));
    // The memory can be used again.
    held.extend((0..70).map(|_| pool.alloc(PIECE).unwrap()));
    held.iter_mut().for_each(|buf| buf.fill(8));
    assert!(held.iter().all(|buf| buf.iter().all(|&byte| byte == 8)));
    assert_eq!(pool.touched_bytes(), 135 * PIECE);
    drop(held);
    pool.release_unused();
    pool.release_unused();
    assert_eq!((resident(&pool), pool.touched_bytes()), (0, 0));
}

#[test]
#[cfg(not(miri))]
fn memory_that_a_device_holds_stays() {
    let pool = Pool::new(MAX_BLOCK).unwrap();
    pool.keep_resident();
    pool.alloc(MAX_BLOCK).unwrap().fill(1);
    assert_eq!((pool.release_unused(), pool.release_unused()), (0, 0));
    assert_eq!(resident(&pool), MAX_BLOCK);
}

/// Whether this process has each page of `bytes` in its page table.
#[cfg(not(miri))]
fn is_mapped(bytes: &[u8]) -> bool {
    use std::os::unix::fs::FileExt;
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    let first = bytes.as_ptr() as usize / MIN_BLOCK;
    (first..first + bytes.len().div_ceil(MIN_BLOCK)).all(|page| {
        let mut entry = [0; 8];
        pagemap.read_exact_at(&mut entry, 8 * page as u64).unwrap();
        u64::from_ne_bytes(entry) >> 63 == 1
    })
}

/// Another process goes on with the memory, and has the blocks that it wants as they were.
#[test]
#[cfg(not(miri))]
fn a_pool_in_a_memfd_is_as_it_was_left_where_it_is_wanted() {
    let pool = Pool::in_memfd(2 * MAX_BLOCK).unwrap();
    let kept = || pool.fd().unwrap().try_clone_to_owned().unwrap();
    let lens = [MIN_BLOCK, 3 * MIN_BLOCK, MIN_BLOCK, MAX_BLOCK, 100, PIECE];
    let bufs = lens.map(|len| {
        let mut buf = pool.alloc(len).unwrap();
        buf.fill(len as u8 ^ (len >> 12) as u8);
        buf.freeze()
    });
    let part = bufs[1].slice(MIN_BLOCK..2 * MIN_BLOCK);
    let wanted = [&bufs[0], &part, &bufs[3]].map(Buf::place);
    let next = Pool::of_memfd(kept(), wanted).unwrap();
    let claimed = wanted.map(|place| next.claimed(place).unwrap());
    assert!(next.claimed(bufs[2].place()).is_none(), "nobody wanted it");
    assert!(claimed.iter().all(|buf| is_mapped(buf)));
    for (buf, claimed) in [&bufs[0], &part, &bufs[3]].iter().zip(&claimed) {
        assert_eq!((claimed.place(), &claimed[..]), (buf.place(), &buf[..]));
    }
    let used = MIN_BLOCK + 4 * MIN_BLOCK + MAX_BLOCK;
    assert_eq!(next.free_bytes(), next.capacity() - used);
    assert!(bufs[2].iter().chain(&bufs[5][..]).all(|&byte| byte == 0));
    // They are ordinary buffers from now on.
    let [first, second, third] = claimed;
    drop((second, third));
    let first = first.try_into_mut().unwrap_err();
    next.forget_claimed();
    first.try_into_mut().unwrap().fill(1);
    assert_eq!(next.free_bytes(), next.capacity());
    let all: Vec<_> = std::iter::from_fn(|| next.alloc(MIN_BLOCK)).collect();
    assert_eq!(all.len(), next.capacity() / MIN_BLOCK);
    drop(all);
    next.release_unused();
    next.release_unused();
    assert_eq!((resident(&next), resident(&pool)), (0, 0));

    // What cannot be is not there.
    let good = bufs[0].place();
    let wrong = [
        Place {
            at: 1,
            order: 1,
            ..good
        },
        Place {
            at: 4,
            order: 11,
            ..good
        },
        Place {
            at: u32::MAX,
            ..good
        },
        Place { order: 40, ..good },
        Place {
            at: 9,
            start: 1,
            ..good
        },
        Place {
            at: 10,
            start: u32::MAX,
            ..good
        },
        Place {
            at: 11,
            len: u32::MAX,
            ..good
        },
    ];
    let next = Pool::of_memfd(kept(), wrong).unwrap();
    assert!(wrong.iter().all(|&place| next.claimed(place).is_none()));
    next.forget_claimed();
    assert_eq!(next.free_bytes(), next.capacity());
    let twice = [good, Place { order: 3, ..good }];
    let next = Pool::of_memfd(kept(), twice).unwrap();
    assert!(next.claimed(good).is_some() && next.claimed(twice[1]).is_none());
    let file = rustix::fs::memfd_create("no pool", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert!(Pool::of_memfd(file.try_clone().unwrap(), []).is_err());
    rustix::fs::ftruncate(&file, MIN_BLOCK as u64).unwrap();
    assert!(Pool::of_memfd(file, []).is_err());
}

/// A device of a process that has died may still write to them.
#[test]
fn blocks_that_the_system_does_not_take_are_not_used_again() {
    let pool = Pool::new(2 * MAX_BLOCK).unwrap();
    let held = pool.alloc(MIN_BLOCK).unwrap();
    let mut seen = 0;
    let bad = 1..2;
    let refuses = |at, _| {
        seen += 1;
        !bad.contains(&at)
    };
    pool.inner.free.lock().keep_if(refuses);
    assert_eq!(seen, 11, "each free block");
    assert_eq!(pool.free_bytes(), pool.capacity() - 2 * MIN_BLOCK);
    drop(held);
    let all: Vec<_> = std::iter::from_fn(|| pool.alloc(MIN_BLOCK)).collect();
    assert_eq!(all.len(), pool.capacity() / MIN_BLOCK - 1);
    assert!(all.iter().all(|buf| place(&pool, buf) != MIN_BLOCK));
}
