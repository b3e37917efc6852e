//! Processes that write a file are killed at any moment. What the next one finds is at least as new as
//! what was answered.

use super::write_back_tests::user_with;
use super::{Action, Goal, Recorder, WriteBack, WriteCall, WriteLimits};
use crate::sync::Mutex;
use nfsrdma_rdma::{Place, Pool};
use nfsrdma_record::Table;
use nfsrdma_xdr::nfs3::{Stable, Verifier};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

const CELLS: usize = 100;
/// Not a part of a page, so that most writes touch several.
const WORDS: usize = 187;
const CELL: usize = 8 * WORDS;
const NAME: &str = "NFSRDMA_EXTENTS";

/// What outlives the processes: the table, the pool, the contents of the file at the server, and for each cell the last
/// version whose write(2) was answered.
struct Shared {
    table: File,
    pool: File,
    server: File,
    answered: File,
}

fn version(of: &File, cell: usize) -> u64 {
    let mut word = [0; 8];
    let _ = of.read_at(&mut word, cell as u64 * 8).unwrap();
    u64::from_ne_bytes(word)
}

impl Shared {
    /// As a process finds it, and the file with what was recorded.
    fn restore(&self) -> (Table, Pool, WriteBack) {
        let fd = |file: &File| OwnedFd::from(file.try_clone().unwrap());
        let table = Table::open(fd(&self.table)).unwrap();
        let places = table.extents().peek(|e| Place {
            at: e.at,
            order: e.order,
            start: e.start,
            len: e.len,
        });
        let pool = Pool::of_memfd(fd(&self.pool), places.clone()).unwrap();
        let recorder = Recorder::new(table.extents(), 1, || ());
        let mut file = WriteBack::recorded(recorder);
        let mut found: Vec<_> = table.extents().restore().into_iter().zip(places).collect();
        found.sort_by_key(|(record, _)| std::cmp::Reverse(record.number()));
        let mut end = 0;
        for (record, place) in found {
            assert_eq!(record.cred.uid, 7);
            if !record.range().is_empty() {
                end = end.max(record.offset + u64::from(record.range().end));
                let buf = pool.claimed(place).unwrap();
                assert!(file.restore(record, &buf, 0, &mut |len| pool.alloc(len)));
            }
        }
        assert_eq!(file.end(), end);
        pool.forget_claimed();
        (table, pool, file)
    }

    /// The contents of the file.
    fn contents(&self, file: &mut WriteBack) -> Vec<u8> {
        let mut contents = vec![0; CELLS * CELL];
        let _ = self.server.read_at(&mut contents, 0).unwrap();
        for range in file.pages().unsaved() {
            let data = file.pages().get(range.clone()).unwrap();
            let data: Vec<u8> = data.iter().flat_map(|part| part.to_vec()).collect();
            contents[range.start as usize..range.end as usize].copy_from_slice(&data);
        }
        contents
    }
}

fn send(shared: &Shared, file: &mut WriteBack, call: WriteCall) {
    let (offset, len) = (call.job.offset, call.job.len);
    let data: Vec<u8> = call
        .job
        .data
        .iter()
        .flat_map(|part| part.to_vec())
        .collect();
    shared.server.write_all_at(&data, offset).unwrap();
    let sent = offset..offset + u64::from(len);
    file.write_answered(sent, len, Stable::Unstable, Verifier::default());
    file.write_ended(0..0);
}

#[test]
fn a_process_that_is_killed() {
    let Some(fds) = std::env::var_os(NAME) else {
        return;
    };
    let mut fds = fds.to_str().unwrap().split(',').map(|path| {
        let mut options = File::options();
        options.read(true).write(true).open(path).unwrap()
    });
    let mut next = || fds.next().unwrap();
    let shared = Shared {
        table: next(),
        pool: next(),
        server: next(),
        answered: next(),
    };
    let (_table, pool, mut file) = shared.restore();
    let newest = (0..CELLS).map(|cell| version(&shared.answered, cell)).max();
    let mut random = newest.unwrap().wrapping_mul(0x9e37_79b9) | 1;
    let mut under_way = Vec::new();
    // A version may be in the pool that was not answered.
    for version in newest.unwrap() + 2.. {
        let mut any = |most: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as usize % most
        };
        let (first, number) = (any(CELLS), 1 + any(8));
        let cells = first..CELLS.min(first + number);
        let data = version.to_ne_bytes().repeat(WORDS * cells.len());
        let at = (first * CELL) as u64;
        let mut alloc = |len| pool.alloc(len);
        let done = file.write(&user_with(7), at, &data, 0, usize::MAX, &mut alloc);
        assert_eq!(done, super::Accepted::All);
        for cell in cells {
            let word = version.to_ne_bytes();
            shared
                .answered
                .write_all_at(&word, cell as u64 * 8)
                .unwrap();
        }
        let limits = WriteLimits {
            wtmax: 8192,
            free: 4,
            most_bytes: 1 << 20,
            dirty_file_bytes: 1 << 20,
            crowded: true,
        };
        let goal = [Goal::Started, Goal::Started, Goal::Committed][any(3)];
        match file.next(goal, &limits) {
            Action::Write(call) => under_way.push(call),
            Action::Commit(_) => {
                file.commit_answered(Verifier::default());
                file.commit_ended();
            }
            Action::Wait | Action::Done => {}
        }
        while under_way.len() > any(4) {
            send(&shared, &mut file, under_way.swap_remove(0));
        }
    }
}

#[test]
fn what_was_answered_is_found_whenever_the_process_was_killed() {
    let (table, pool) = (Table::create().unwrap(), Pool::in_memfd(4 << 20).unwrap());
    let root = nfsrdma_xdr::nfs3::FileHandle::new(&[1; 8]).unwrap();
    std::mem::forget(table.nodes().alloc(nfsrdma_record::Node::new(root, 2, 1)));
    let memfd = || {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        File::from(rustix::fs::memfd_create("test", flags).unwrap())
    };
    let shared = Shared {
        table: table.fd().unwrap().try_clone_to_owned().unwrap().into(),
        pool: pool.fd().unwrap().try_clone_to_owned().unwrap().into(),
        server: memfd(),
        answered: memfd(),
    };
    drop((table, pool));
    let fds = [
        &shared.table,
        &shared.pool,
        &shared.server,
        &shared.answered,
    ];
    let fds = fds.map(|file| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
    let newest = || (0..CELLS).map(|cell| version(&shared.answered, cell)).max();
    let mut kept = 0;
    for round in 0..60 {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cache::records_tests::a_process_that_is_killed"])
            .env(NAME, fds.join(","))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let before = newest().unwrap();
        while newest().unwrap() < before + 50 + round * 7 {
            assert!(process.try_wait().unwrap().is_none());
            std::thread::yield_now();
        }
        process.kill().unwrap();
        process.wait().unwrap();
        let (table, pool, mut file) = shared.restore();
        let contents = shared.contents(&mut file);
        for (cell, words) in contents.chunks(CELL).enumerate() {
            let answered = version(&shared.answered, cell);
            for word in words.as_chunks::<8>().0 {
                let found = u64::from_ne_bytes(*word);
                assert!(found >= answered, "cell {cell}: {found}, not {answered}");
            }
        }
        kept += usize::from(!file.is_safe());
        // As if this process had been killed as well.
        std::mem::forget((table, pool, file));
    }
    assert!(kept > 30, "{kept} rounds had something to restore");
}

/// A server that takes a part of each WRITE leaves more pieces of a block than it may have records.
#[test]
fn data_whose_record_is_given_up_are_marked_before_the_record_goes() {
    let (table, pool) = (Table::create().unwrap(), Pool::in_memfd(4 << 20).unwrap());
    let root = nfsrdma_xdr::nfs3::FileHandle::new(&[1; 8]).unwrap();
    let _root = table.nodes().alloc(nfsrdma_record::Node::new(root, 2, 1));
    let memfd = File::from(table.fd().unwrap().try_clone_to_owned().unwrap());
    let recorded = move || {
        let next = Table::open(memfd.try_clone().unwrap().into()).unwrap();
        let ranges = next.extents().peek(|of| of.range().len());
        (ranges.len(), ranges.iter().sum::<usize>())
    };
    let found = Arc::new(Mutex::new(Vec::new()));
    let marked = found.clone();
    let mark = move || marked.lock().push(recorded());
    let recorder = Recorder::new(table.extents(), 1, mark);
    let mut file = WriteBack::recorded(recorder);
    let mut alloc = |len| pool.alloc(len);
    file.write(&user_with(7), 0, &[1u8; 4096], 0, usize::MAX, &mut alloc);
    let limits = WriteLimits {
        wtmax: 32,
        free: 1000,
        most_bytes: 1 << 20,
        dirty_file_bytes: 1 << 20,
        crowded: true,
    };
    let mut sent = Vec::new();
    while let Action::Write(call) = file.next(Goal::Started, &limits) {
        sent.push(call.job.offset..call.job.offset + u64::from(call.job.len));
    }
    // Every other part is safe.
    for part in sent.into_iter().step_by(2) {
        file.write_answered(part, 32, Stable::FileSync, Verifier::default());
        file.write_ended(0..0);
    }
    assert!(!file.pages().outlives());
    let unsafe_: u64 = file
        .pages()
        .unsaved()
        .iter()
        .map(|of| of.end - of.start)
        .sum();
    let (number, bytes) = found.lock()[0];
    assert!(
        number >= 32 && bytes as u64 >= unsafe_,
        "{number}, {bytes} of {unsafe_}"
    );
}
