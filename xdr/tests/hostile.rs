//! Gives arbitrary bytes to every decoder: it must not panic, must terminate, and may use memory
//! only in proportion to the bytes.

use nfsrdma_xdr::codec::{Decode, Encode};
use nfsrdma_xdr::nfs3::{DirList, EntryPlus, Name, ReaddirplusRes, Reply, Verifier};
use nfsrdma_xdr::support::{decoders, locking, security, strategies};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Largest memory that a decoder may use for each byte of its input. The worst case is a list of
/// READDIRPLUS entries: 32 bytes on the wire become about 200, in a vector that exists twice while
/// it grows, and whose new copy has twice the size.
const FACTOR: usize = 24;
/// Memory that a decoder may use in addition, for small fixed items.
const FREE: usize = 4096;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// Counts the bytes that the current thread has allocated.
struct Counting;

fn count(grown: usize, shrunk: usize) {
    let live = LIVE.get().saturating_add(grown).saturating_sub(shrunk);
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

// SAFETY: every call goes to `System` unchanged; counting allocates nothing (thread-locals
// with constant initializers and no destructor).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's contract is `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller's contract is `System`'s.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Largest number of bytes allocated on this thread while `body` runs.
fn peak_of(body: impl FnOnce()) -> usize {
    LIVE.set(0);
    PEAK.set(0);
    body();
    PEAK.get()
}

/// Runs every decoder, and checks its memory against the length of the input. After decoding, a
/// check holds the value twice, and its encoding.
fn decode_within_bounds(bytes: &[u8]) {
    for (name, check) in decoders::TYPES.iter().chain(decoders::OTHERS) {
        let peak = peak_of(|| check(bytes));
        let bound = FREE + 3 * FACTOR * bytes.len();
        assert!(peak <= bound, "{name}: {peak} bytes for {}", bytes.len());
    }
}

/// Encoded messages of every type.
fn encoded() -> impl Strategy<Value = Vec<u8>> {
    macro_rules! any_of {
        ($($strategy:expr),* $(,)?) => {
            proptest::strategy::Union::new([
                $($strategy.prop_map(|value| value.to_xdr()).boxed(),)*
            ])
        };
    }
    any_of![
        strategies::setattr_args(),
        strategies::lookup_res(),
        strategies::readlink_res(),
        strategies::read_res(),
        strategies::write_args(),
        strategies::create_args(),
        strategies::create_res(),
        strategies::symlink_args(),
        strategies::mknod_args(),
        strategies::rename_res(),
        strategies::link_res(),
        strategies::readdir_res(),
        strategies::readdirplus_res(),
        strategies::fsinfo_res(),
        strategies::mount_res(),
        strategies::mount_list(),
        strategies::exports(),
        strategies::mappings(),
        strategies::bindings(),
        strategies::call(),
        strategies::rpc_reply(),
        strategies::header(),
        locking::nlm_lock_args(),
        locking::nlm_test_res(),
        locking::nsm_monitor(),
        locking::getacl_res(),
        locking::setacl_args(),
        security::gss_credential(),
        security::gss_init_res(),
        security::gss_integrity_body(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8 * ProptestConfig::default().cases))]

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        decode_within_bounds(&bytes);
    }

    /// Booleans, counts and lengths are small numbers.
    #[test]
    fn arbitrary_words(words in prop::collection::vec(
        prop_oneof![6 => 0u32..4, 2 => 0u32..100, 1 => any::<u32>(), 1 => Just(u32::MAX)], 0..120,
    )) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        decode_within_bounds(&bytes);
    }

    /// Messages with some words replaced, and with parts cut or repeated.
    #[test]
    fn mutated_messages(
        message in encoded(),
        words in prop::collection::vec(
            (any::<prop::sample::Index>(), prop_oneof![0u32..9, any::<u32>()]), 0..4,
        ),
        cut in any::<prop::sample::Index>(),
        double in any::<bool>(),
    ) {
        let mut message = message;
        for (at, word) in words {
            if message.len() >= 4 {
                let at = at.index(message.len() / 4) * 4;
                message[at..at + 4].copy_from_slice(&word.to_be_bytes());
            }
        }
        message.truncate(cut.index(message.len() + 1).max(message.len() / 2));
        if double {
            message.extend_from_within(..);
        }
        decode_within_bounds(&message);
    }
}

/// The largest counts and lengths, with too few bytes after them.
#[test]
fn announced_lengths_allocate_nothing() {
    for count in [64, 400, 1024, 65_536, 1 << 24, u32::MAX] {
        for leading in 0..12 {
            let mut bytes = vec![0; leading * 4];
            bytes.extend(count.to_be_bytes());
            bytes.resize(bytes.len() + 64, 0);
            decode_within_bounds(&bytes);
        }
    }
}

/// The same for the segments of a Write chunk, within the bound of a message.
#[test]
fn announced_segments_allocate_nothing() {
    let words = [1u32, 1, 1, 0, 0, 0, 1, 1000, 0, 0, 0, 0];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    decode_within_bounds(&bytes);
}

/// Long lists of the smallest entries.
#[test]
fn long_lists_stay_in_proportion() {
    let entry = EntryPlus {
        fileid: 1,
        name: Name(b""),
        cookie: 1,
        attributes: None,
        handle: None,
    };
    let list: ReaddirplusRes<'_> = Reply::Ok(DirList {
        dir: None,
        verifier: Verifier::default(),
        entries: vec![entry; 5000],
        eof: false,
    });
    let bytes = list.to_xdr();
    let peak = peak_of(|| {
        assert_eq!(ReaddirplusRes::from_xdr(&bytes).as_ref(), Ok(&list));
    });
    assert!(peak <= FREE + FACTOR * bytes.len(), "{peak}");
    // Memory is really counted:
    assert!(peak >= 5000 * size_of::<EntryPlus<'_>>(), "{peak}");
}
