//! The memory that a known inode takes, counted by the allocator, and its record, which is not allocated there. After
//! the death of the process, the next one takes hardly any for it. There is only one test in this process, because the
//! count is that of all threads.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use nfsrdma_fs::fs::{Clock, Fs, FsConfig, ROOT};
use nfsrdma_memory_server::MemoryServer;
use nfsrdma_nfs3::{Cred, Credential};
use nfsrdma_rdma::Pool;
use nfsrdma_record::{Node, Table};
use nfsrdma_rpcrdma::exec::block_on;
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes in use.
static USED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: the system allocator does all the work, by its own rules.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        USED.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promises hold for the system allocator as well.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const FILES: usize = 100_000;
/// The most bytes for a known inode, including its name and all tables.
const MOST: usize = 520;
/// The most bytes for one that the last process has left, and that nothing has led to since.
const MOST_LEFT: usize = 16;

/// Lists the root as the kernel does, which then knows every entry. Returns their node ids.
fn list(fs: &Arc<Fs<MemoryServer>>, cred: &Cred) -> Vec<u64> {
    let opened = block_on(fs.opendir(cred, ROOT)).unwrap();
    let (mut known, mut offset) = (Vec::with_capacity(FILES), 0);
    loop {
        let listing = match fs.readdir_cached(opened.handle, offset) {
            Some(listing) => listing.unwrap(),
            None => block_on(fs.readdir(opened.handle, offset)).unwrap(),
        };
        let Some(last) = listing.entries().last() else {
            break;
        };
        offset = last.cookie;
        let entries = listing.entries().iter();
        known.extend(
            entries
                .filter_map(|listed| fs.listed_entry(&listing, listed))
                .map(|entry| entry.nodeid),
        );
    }
    fs.releasedir(opened.handle).unwrap();
    known
}

#[test]
fn a_known_inode_takes_at_most_520_bytes() {
    let server = MemoryServer::new();
    for n in 0..FILES {
        server.plant(&format!("file-number-{n:06}"), b"");
    }
    let cred: Cred = Arc::new(Credential {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
    });
    let mount = |name_entries: usize, records: Table| {
        let config = FsConfig {
            name_entries,
            ..FsConfig::default()
        };
        let pool = Pool::new(config.pool_bytes()).unwrap();
        let (clock, records) = (Clock::default(), Arc::new(records));
        Fs::new(server.clone(), server.root(), pool, config, clock, records)
    };

    let table = Table::create().unwrap();
    let memfd = table.fd().unwrap().try_clone_to_owned().unwrap();
    let fs = mount(2 * FILES, table);
    let before = USED.load(Relaxed);
    let known = list(&fs, &cred);
    let different: HashSet<_> = known.iter().collect();
    assert_eq!([known.len(), different.len()], [FILES; 2]);
    drop(different);
    let list_itself = known.capacity() * size_of::<u64>();
    let records = FILES * size_of::<Node>();
    let taken = USED.load(Relaxed) - before - list_itself + records;
    println!("{} bytes for each of {FILES} inodes", taken / FILES);
    assert!(taken <= FILES * MOST, "{} bytes each", taken / FILES);
    std::mem::forget(fs);

    let before = USED.load(Relaxed);
    let fs = mount(2 * FILES, Table::open(memfd).unwrap());
    fs.restore();
    let taken = USED.load(Relaxed) - before;
    println!("{} bytes for each that is left", taken / FILES);
    assert!(taken <= FILES * MOST_LEFT, "{taken} bytes");
    for &node in &known {
        block_on(fs.getattr(&cred, node, true)).unwrap();
    }
    drop(fs);

    // After FORGET, inodes are kept only by cached names, whose number is limited.
    let fs = mount(FILES / 50, Table::anonymous());
    let before = USED.load(Relaxed);
    for node in list(&fs, &cred) {
        fs.forget(node, 1);
    }
    let left = USED.load(Relaxed) - before;
    println!("{left} bytes are left of forgotten ones");
    assert!(left <= FILES * MOST / 4, "{left} bytes");
}
