#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use crate::chunk::CHUNK;
use crate::head::{HEAD, Head, offset};
use crate::{Credential, Hidden, Lock, Node, Open, Plain, Record, Refused, Region, Table};
use nfsrdma_xdr::nfs3::FileHandle;
use rustix::fs::{SealFlags, fcntl_add_seals, fstat, ftruncate};
use rustix::io::{pread, pwrite};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::HashSet;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const IN_CHUNK: usize = CHUNK / size_of::<Node>();

fn handle(of: u64) -> FileHandle {
    FileHandle::new(&[of.to_ne_bytes(); 8].concat()).unwrap()
}

fn node(of: u64) -> Node {
    Node::new(handle(of), 1, of)
}

fn fileids(table: &Table) -> Vec<u64> {
    let restored = table.nodes().restore();
    let ids = restored.iter().map(|node| node.fileid).collect();
    // The next process finds them again.
    restored.into_iter().for_each(std::mem::forget);
    ids
}

fn fd(table: &Table) -> OwnedFd {
    table.fd().unwrap().try_clone_to_owned().unwrap()
}

/// The table of a process that was killed.
fn killed(records: impl IntoIterator<Item = Node>) -> OwnedFd {
    let table = Table::create().unwrap();
    for value in records {
        std::mem::forget(table.nodes().alloc(value));
    }
    fd(&table)
}

#[test]
fn the_next_process_has_the_records_of_the_last_one() {
    let table = Table::create().unwrap();
    assert_eq!(table.generation(), 1);
    table.set_features([7, 45, 1 << 39, 1 << 20]);
    assert_eq!(table.fsid(), None);
    table.set_fsid(0);
    let cred = Credential::new(1000, 100, &(0..20).collect::<Vec<_>>());
    let file = table.nodes().alloc(node(5));
    assert_eq!(file.number(), 1, "the root's");
    file.lookups.store(3, Ordering::Relaxed);
    file.unsafe_.store(1, Ordering::Relaxed);
    file.errno.store(28, Ordering::Relaxed);
    let open = table.opens().alloc(Open::new(1, 8, 2, false, cred));
    let gone = table.nodes().alloc(node(6));
    let silly = Hidden::new(1, 9, handle(9), [b'n'; 36], cred);
    let silly = table.hidden().alloc(silly);
    drop(gone);
    let mut range = Lock::new(handle(5), cred);
    (range.owner, range.start, range.end) = (u64::MAX, 7, 9);
    (range.svid, range.exclusive, range.standing) = (u32::MAX, 1, Lock::LOST);
    let range = table.locks().alloc(range);
    let (key, next) = (table.key(), fd(&table));
    let numbers = (file.number(), open.number());
    std::mem::forget((file, open, silly, range));

    let table = Table::open(next).unwrap();
    assert_eq!(table.generation(), 2);
    assert_eq!(table.features(), [7, 45, 1 << 39, 1 << 20]);
    assert_eq!((table.key(), table.fsid()), (key, Some(0)));
    let [file]: [Record<Node>; 1] = table.nodes().restore().try_into().unwrap();
    assert_eq!((file.number(), file.nodeid), (numbers.0, numbers.0));
    assert_eq!((file.fileid, file.handle, file.kind), (5, handle(5), 1));
    let counts = (&file.unsafe_, &file.errno, &file.lookups);
    assert_eq!(counts.0.load(Ordering::Relaxed), 1);
    assert_eq!(counts.1.load(Ordering::Relaxed), 28);
    assert_eq!(counts.2.load(Ordering::Relaxed), 3);
    let [open]: [Record<Open>; 1] = table.opens().restore().try_into().unwrap();
    assert_eq!((open.handle, open.nodeid, open.unique), (numbers.1, 1, 8));
    assert_eq!((open.flags, open.dir, open.cred), (2, 0, cred));
    assert_eq!(open.cred.groups(), (0..16).collect::<Vec<_>>());
    let [silly]: [Record<Hidden>; 1] = table.hidden().restore().try_into().unwrap();
    assert_eq!((silly.nodeid, silly.dir_node, silly.dir), (1, 9, handle(9)));
    assert_eq!((silly.name, silly.cred), ([b'n'; 36], cred));
    let [range]: [Record<Lock>; 1] = table.locks().restore().try_into().unwrap();
    assert_eq!((range.handle, range.cred), (handle(5), cred));
    assert_eq!((range.owner, range.start, range.end), (u64::MAX, 7, 9));
    let standing = (range.exclusive, range.standing);
    assert_eq!((range.svid, standing), (u32::MAX, (1, Lock::LOST)));
    assert!(table.nodes().restore().is_empty(), "each has one owner");
}

#[test]
fn slots_are_used_again_and_numbers_are_not() {
    let table = Table::create().unwrap();
    let (mut seen, mut kept) = (HashSet::new(), Vec::new());
    for round in 0..3 * IN_CHUNK as u64 {
        let record = table.nodes().alloc(node(round));
        assert!(seen.insert(record.number()));
        assert!((record.number() as u32) as usize <= IN_CHUNK + 1);
        if round % 4 == 0 {
            kept.push(record);
        }
    }
    let next = fd(&table);
    let kept: Vec<u64> = kept
        .into_iter()
        .map(|record| {
            let of = record.fileid;
            std::mem::forget(record);
            of
        })
        .collect();
    let table = Table::open(next).unwrap();
    let restored = table.nodes().restore();
    assert_eq!(restored.len(), kept.len());
    for _ in 0..IN_CHUNK - kept.len() {
        let record = table.nodes().alloc(node(0));
        assert!(seen.insert(record.number()), "nor by the next process");
        assert!((record.number() as u32) as usize <= IN_CHUNK);
        std::mem::forget(record);
    }
}

/// Makes and frees records until it is killed.
#[test]
fn a_process_that_is_killed() {
    if std::env::var_os("NFSRDMA_TABLE").is_none() {
        return;
    }
    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    let table = Table::open(stdin.unwrap()).unwrap();
    let mut kept = table.nodes().restore();
    for round in u64::from(table.generation()) << 32.. {
        kept.push(table.nodes().alloc(node(round)));
        while kept.len() > 300 {
            kept.swap_remove(1 + (round % 299) as usize);
        }
    }
}

#[test]
fn a_table_can_be_read_whenever_its_process_was_killed() {
    let next = killed([node(0)]);
    for round in 0..60 {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::a_process_that_is_killed"])
            .env("NFSRDMA_TABLE", "stdin")
            .stdin(Stdio::from(next.try_clone().unwrap()))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let made = offset_of!(Head, made) as u64;
        let begun = || {
            let mut now = [0; 4];
            pread(&next, &mut now, made).unwrap();
            u32::from_ne_bytes(now)
        };
        let before = begun();
        while begun().wrapping_sub(before) < 200 + round * 7 {
            assert!(process.try_wait().unwrap().is_none());
            std::thread::yield_now();
        }
        process.kill().unwrap();
        process.wait().unwrap();
        let table = Table::open(next.try_clone().unwrap()).unwrap();
        let mut restored = table.nodes().restore();
        assert!((100..=302).contains(&restored.len()));
        for node in &restored {
            assert_eq!(node.handle, handle(node.fileid));
        }
        restored.drain(..).for_each(std::mem::forget);
    }
}

fn refused(fd: OwnedFd) -> String {
    let error = Table::open(fd).unwrap_err().to_string();
    assert!(!error.contains('\n') && !error.ends_with('.'), "{error}");
    error
}

#[test]
fn what_is_not_a_whole_table_of_this_version_is_refused_in_one_sentence() {
    let table = || killed((0..10).map(node));
    let changed = |at: u64, bytes: &[u8]| {
        let fd = table();
        pwrite(&fd, bytes, at).unwrap();
        let said = refused(fd.try_clone().unwrap());
        let mut generation = [0; 4];
        let at = offset_of!(Head, generation) as u64;
        pread(&fd, &mut generation, at).unwrap();
        assert_eq!(u32::from_ne_bytes(generation), 1, "it is as it was");
        said
    };
    assert!(Table::open(table()).is_ok());
    assert!(changed(0, b"other").contains("not made by nfsrdma"));
    let version = changed(offset_of!(Head, version) as u64, &9u32.to_ne_bytes());
    assert!(version.contains("format 9") && version.contains("format 3"));
    let sizes = changed(offset_of!(Head, sizes) as u64, &9u32.to_ne_bytes());
    assert!(sizes.contains("sizes"));
    // A chunk of an unknown kind, and one that the file does not have.
    let chunks = offset_of!(Head, chunks) as u64;
    assert!(changed(chunks, &[77]).contains("damaged"));
    assert!(changed(chunks + 1, &[1]).contains("not complete"));

    let empty = rustix::fs::memfd_create("empty", rustix::fs::MemfdFlags::empty()).unwrap();
    assert!(refused(empty).contains("not complete"));
    assert!(refused(killed([])).contains("not complete"), "no root");
    let file = || rustix::fs::memfd_create("cut", rustix::fs::MemfdFlags::empty()).unwrap();
    let mut bytes = vec![0; HEAD + CHUNK];
    assert_eq!(pread(table(), &mut bytes, 0).unwrap(), bytes.len());
    for length in [100, HEAD - 1, HEAD, HEAD + CHUNK - 1] {
        let cut = file();
        pwrite(&cut, &bytes, 0).unwrap();
        ftruncate(&cut, length as u64).unwrap();
        assert!(refused(cut).contains("not complete"), "{length}");
    }
    let whole = file();
    pwrite(&whole, &bytes, 0).unwrap();
    assert_eq!(fileids(&Table::open(whole).unwrap()).len(), 10);

    let third = offset(0) + 3 * size_of::<Node>() as u64;
    for byte in 0..Node::FIXED as u64 {
        let old = bytes[(third + byte) as usize];
        assert!(
            changed(third + byte, &[old ^ 16]).contains("damaged"),
            "{byte}"
        );
    }
    // Counters may have any value.
    for byte in offset_of!(Node, unsafe_)..Node::SUM {
        let fd = table();
        pwrite(&fd, &[0xff], third + byte as u64).unwrap();
        Table::open(fd).unwrap();
    }
    assert!(matches!(
        Table::open(std::fs::File::open("/dev/null").unwrap().into()),
        Err(Refused::Truncated)
    ));
}

#[test]
fn a_memfd_that_is_full_goes_on_in_the_memory_of_the_process() {
    let table = Table::create().unwrap();
    let keep = |of| {
        let record = table.nodes().alloc(node(of));
        let number = record.number();
        std::mem::forget(record);
        number
    };
    let mut numbers: HashSet<u64> = (0..IN_CHUNK as u64).map(keep).collect();
    fcntl_add_seals(table.fd().unwrap(), SealFlags::GROW).unwrap();
    for of in 0..2 * IN_CHUNK as u64 {
        assert!(numbers.insert(keep(IN_CHUNK as u64 + of)));
    }
    let cred = Credential::new(0, 0, &[]);
    let open = table.opens().alloc(Open::new(1, 2, 3, true, cred));
    assert_eq!(open.unique, 2);
    std::mem::forget(open);
    // Those beyond the memfd are lost.
    let next = Table::open(fd(&table)).unwrap();
    assert_eq!(fileids(&next), (0..IN_CHUNK as u64).collect::<Vec<_>>());
    assert!(next.opens().restore().is_empty());
    let nodes: &Arc<Region<Node>> = next.nodes();
    assert!(
        numbers.insert(nodes.alloc(node(7)).number()),
        "a new number"
    );
}

/// The bytes of memory that a table has for records.
fn held(fd: &OwnedFd) -> usize {
    fstat(fd).unwrap().st_blocks as usize * 512 - HEAD
}

#[test]
fn chunks_without_records_give_their_memory_back_and_are_used_again() {
    let table = Table::create().unwrap();
    let memfd = fd(&table);
    let make = |of: Range<usize>| -> Vec<_> {
        of.map(|of| table.nodes().alloc(node(of as u64))).collect()
    };
    let root = make(0..1);
    let all = make(1..9 * IN_CHUNK);
    assert_eq!(held(&memfd), 9 * CHUNK);
    let mut seen: HashSet<u64> = all.iter().map(|record| record.number()).collect();
    drop(all);
    assert_eq!(
        held(&memfd),
        2 * CHUNK,
        "the root's, and one for new records"
    );
    // They come and go without a change of the memory.
    for of in 0..3 {
        drop(make(of * IN_CHUNK..(of + 1) * IN_CHUNK));
        assert_eq!(held(&memfd), 2 * CHUNK);
    }
    let some = make(0..4 * IN_CHUNK);
    assert!((5..=6).contains(&(held(&memfd) / CHUNK)));
    assert!(some.iter().all(|record| seen.insert(record.number())));
    let kept: HashSet<u64> = some.iter().map(|record| record.fileid).collect();
    assert_eq!(kept.len(), some.len(), "each is as it was made");
    drop(make(0..4 * IN_CHUNK));
    let before = held(&memfd);
    (some.into_iter().chain(root)).for_each(std::mem::forget);

    let next = Table::open(memfd.try_clone().unwrap()).unwrap();
    assert_eq!(held(&memfd), before, "the holes are no records");
    assert_eq!(next.nodes().restore().len(), 4 * IN_CHUNK + 1);
    for _ in 0..8 * IN_CHUNK {
        let record = next.nodes().alloc(node(5));
        assert!((record.number() as u32) as usize <= 13 * IN_CHUNK);
        assert!(seen.insert(record.number()));
        std::mem::forget(record);
    }
}

#[test]
fn a_chunk_that_gets_no_memory_again_is_not_used() {
    const CHILD: &str = "NFSRDMA_LIMITED";
    if std::env::var_os(CHILD).is_none() {
        // The limit is one of the whole process.
        let status = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "tests::a_chunk_that_gets_no_memory_again_is_not_used",
            ])
            .env(CHILD, "")
            .stdout(Stdio::null())
            .status();
        return assert!(status.unwrap().success());
    }
    let table = Table::create().unwrap();
    let make = |number: usize| -> Vec<_> {
        let nodes = (0..number as u64).map(|of| table.nodes().alloc(node(of)));
        nodes.collect()
    };
    let root = make(1);
    drop(make(3 * IN_CHUNK));
    // From here on the memfd gets no page.
    let current = Some(1);
    let limit = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current, ..limit }).unwrap();
    let all = make(4 * IN_CHUNK);
    setrlimit(Resource::Fsize, limit).unwrap();
    let files: HashSet<u64> = all.iter().map(|record| record.fileid).collect();
    assert_eq!(files.len(), all.len());
    assert!(!table.nodes().lasts());
    (all.into_iter().chain(root)).for_each(std::mem::forget);
    let next = Table::open(fd(&table)).unwrap();
    let left = next.nodes().restore().len();
    assert_eq!(left, 2 * IN_CHUNK, "those in the memfd");
}

#[test]
fn a_record_that_was_found_can_be_claimed_once() {
    let left = killed((0..200).map(node));
    let table = Table::open(left).unwrap();
    let nodes = table.nodes();
    let number = nodes.look(70, |node| node.nodeid).unwrap();
    assert_eq!(number as u32, 70);
    assert!(nodes.claim(number + (1 << 32)).is_none(), "another one");
    let claimed = nodes.claim(number).unwrap();
    assert_eq!((claimed.number(), claimed.fileid), (number, 69));
    assert!(nodes.claim(number).is_none() && nodes.look(70, |_| ()).is_none());
    for none in [0, 201, 1 << 20] {
        assert!(nodes.look(none, |_| ()).is_none() && nodes.claim(none.into()).is_none());
    }
    let mut left = nodes.peek(|node| node.fileid);
    assert_eq!(left.len(), 199);
    left.dedup();
    assert!(left.is_sorted() && !left.contains(&69));
    drop(claimed);
    assert_eq!(nodes.alloc(node(7)).number() as u32, 70);
}

#[test]
fn a_number_that_wraps_is_still_not_that_of_another_record() {
    let table = killed([node(0), node(1)]);
    pwrite(
        &table,
        &u32::MAX.to_ne_bytes(),
        offset_of!(Head, made) as u64,
    )
    .unwrap();
    let table = Table::open(table).unwrap();
    let _old = table.nodes().restore();
    let numbers = [(); 3].map(|()| {
        let record = table.nodes().alloc(node(2));
        (record.number(), record)
    });
    let numbers = numbers.map(|(number, _record)| number);
    assert_eq!(numbers, [u64::from(u32::MAX) << 32 | 3, 4, 1 << 32 | 5]);
}

#[test]
fn a_table_in_anonymous_memory_is_the_same_without_a_descriptor() {
    let table = Table::anonymous();
    assert!(table.fd().is_none() && table.generation() == 1);
    let record = table.nodes().alloc(node(3));
    assert_eq!((record.number(), record.fileid), (1, 3));
    assert_ne!(table.key(), Table::anonymous().key());
}
