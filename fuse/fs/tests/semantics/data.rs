//! Reading and writing, and when the server has the data.

use super::support::*;
use nfsrdma_fs::fs::{Found, FsConfig, ROOT};
use nfsrdma_memory_server::{Fate, MemoryServer, Op};
use nfsrdma_rpcrdma::exec::{self, block_on};
use nfsrdma_xdr::nfs3::Status;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// A mount with such a large cache that nothing is committed before it must be.
fn roomy() -> Mount {
    let config = FsConfig {
        cache_bytes: 64 << 20,
        ..small()
    };
    Mount::of(&MemoryServer::new(), config)
}

#[test]
fn a_server_that_gives_little_at_a_time_takes_no_more_memory() {
    const LEN: u32 = 1 << 20;
    let server = MemoryServer::new();
    let text: Vec<u8> = (0..LEN).map(|i| (i / 1000) as u8).collect();
    server.plant("f", &text);
    server.give_little(4096);
    for flags in [RW, RW | libc::O_DIRECT] {
        let m = Mount::of(&server, small());
        let f = m.open(m.node("f"), flags).unwrap();
        let before = m.pool.free_bytes();
        let got = block_on(m.fs.read(f, 0, LEN, flags)).unwrap();
        let held = before - m.pool.free_bytes();
        let all: Vec<u8> = got.iter().flat_map(|part| part.to_vec()).collect();
        assert!(all == text, "{flags:#o}: {} bytes", all.len());
        assert!(held <= 4 * LEN as usize, "{flags:#o}: {held} bytes held");
        drop(got);
        m.release(f);
    }
}

#[test]
fn a_read_of_nothing_before_the_end_is_an_error_and_not_the_end() {
    let server = MemoryServer::new();
    server.plant("f", &[7; 10_000]);
    for flags in [RW, RW | libc::O_DIRECT] {
        let m = Mount::of(&server, small());
        let f = m.open(m.node("f"), flags).unwrap();
        let read = |offset| {
            let got = block_on(m.fs.read(f, offset, 4096, flags));
            got.map(|parts| parts.iter().map(|part| part.len()).sum::<usize>())
        };
        server.give_little(0);
        assert_eq!(errno(read(0)), libc::EIO, "{flags:#o}");
        assert_eq!(read(10_000).unwrap(), 0, "{flags:#o}: that is the end");
        server.give_little(usize::MAX);
        assert_eq!(read(8192).unwrap(), 10_000 - 8192, "{flags:#o}");
        m.release(f);
    }
}

/// A server gives less than a block at a time, so that the cache is bypassed in the end, and then
/// nothing. The kernel takes a short reply to a read that is not O_DIRECT for the end of the file.
#[test]
fn a_read_past_the_cache_that_is_cut_short_is_an_error_and_not_the_end() {
    let server = MemoryServer::new();
    server.plant("f", &[7; 10_000]);
    let m = Mount::of(&server, small());
    let f = m.open(m.node("f"), RW).unwrap();
    server.give_little(1000);
    assert_eq!(m.read(f, 0, 8192).unwrap(), [7; 8192]);
    let whole = server.calls(Op::Read);
    let weak = Arc::downgrade(&server);
    server.set_hook(move |op, before| {
        if op == Op::Read && before + 3 >= 2 * whole {
            weak.upgrade().unwrap().give_little(0);
        }
        Fate::Done
    });
    assert_eq!(errno(m.read(f, 0, 8192)), libc::EIO);
    server.clear_hook();
    server.give_little(usize::MAX);
    assert_eq!(m.read(f, 0, 8192).unwrap(), [7; 8192]);
    m.release(f);
}

#[test]
fn a_read_past_the_cache_shows_what_was_written_and_is_not_sent_yet() {
    let server = MemoryServer::new();
    server.plant("f", &[7; 12_000]);
    let m = Mount::of(&server, small());
    let f = m.open(m.node("f"), RW).unwrap();
    m.write(f, 4096, &[8; 4096]).unwrap();
    server.give_little(1000);
    let mut expected = [7; 12_000];
    expected[4096..8192].fill(8);
    assert!(m.read(f, 0, 12_000).unwrap() == expected);
    m.close(f).unwrap();
}

#[test]
fn readers_of_what_is_being_read_ahead_wait_for_it() {
    let server = server_of(1 << 20, 8192, 1);
    let m = Mount::of(&server, small());
    server.plant("f", &[7; 12 * 4096]);
    let f = m.open(m.node("f"), RW).unwrap();
    m.read(f, 0, 4096).unwrap();
    server.hold(true);
    let (tell, told) = std::sync::mpsc::channel();
    for page in 1..11 {
        let (fs, tell) = (m.fs.clone(), tell.clone());
        exec::spawn(async move {
            let data = fs.read(f, page * 4096, 4096, RW).await.unwrap();
            tell.send(data.iter().map(|part| part.len()).sum::<usize>())
                .unwrap();
        });
    }
    server.hold(false);
    for _ in 0..10 {
        assert_eq!(told.recv_timeout(Duration::from_secs(60)).unwrap(), 4096);
    }
    // The first, the second, and that which was read ahead for it.
    assert_eq!(server.calls(Op::Read), 3);
}

/// A file that has 5 bytes at the server. Bytes 10,000 to 10,100 are written and not sent.
fn with_a_long_tail() -> (Mount, u64, u64) {
    let server = MemoryServer::new();
    server.plant("f", b"short");
    let m = Mount::of(&server, small());
    let node = m.node("f");
    let f = m.open(node, RW).unwrap();
    m.write(f, 10_000, &[1; 100]).unwrap();
    (m, node, f)
}

#[test]
fn a_read_from_before_a_write_does_not_end_the_file() {
    let (m, _, f) = with_a_long_tail();
    m.server.keep(Some(Op::Read));
    let (tell, told) = std::sync::mpsc::channel();
    // One task reads the hole, the other waits for that READ.
    for _ in 0..2 {
        let (fs, tell) = (m.fs.clone(), tell.clone());
        exec::spawn(async move {
            let data = fs.read(f, 4096, 4096, RW).await.unwrap();
            let bytes: Vec<u8> = data.iter().flat_map(|part| part.to_vec()).collect();
            tell.send(bytes).unwrap();
        });
    }
    assert_eq!(m.server.calls(Op::Read), 1);
    // The reply says that the file ends at 5, but the server has the rest now.
    m.fsync(f).unwrap();
    m.server.keep(None);
    for _ in 0..2 {
        let bytes = told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(bytes == [0; 4096], "{} bytes", bytes.len());
    }
}

#[test]
fn attributes_from_before_a_write_do_not_make_the_file_shorter() {
    let (m, node, f) = with_a_long_tail();
    m.clock.advance(Duration::from_secs(1000));
    for procedure in [Op::Lookup, Op::Getattr] {
        m.server.keep(Some(procedure));
        let (tell, told) = std::sync::mpsc::channel();
        let (fs, cred) = (m.fs.clone(), m.cred.clone());
        exec::spawn(async move {
            let size = match procedure {
                Op::Lookup => match fs.lookup(&cred, ROOT, b"f").await.unwrap() {
                    Found::Is(entry) => entry.attributes.size,
                    Found::Absent(_) => 0,
                },
                _ => fs.getattr(&cred, node, true).await.unwrap().0.size,
            };
            tell.send(size).unwrap();
        });
        m.fsync(f).unwrap();
        m.server.keep(None);
        let size = told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(size, 10_100);
        m.truncate(node, 5).unwrap();
        m.write(f, 10_000, &[1; 100]).unwrap();
        m.clock.advance(Duration::from_secs(1000));
    }
}

#[test]
fn a_hole_before_unwritten_data_reads_as_zeros_however_small_a_read_may_be() {
    let server = server_of(4096, 4096, 0);
    let m = Mount::of(&server, small());
    let (_, handle) = m.create("f");
    m.write(handle, 1_500_000, b"the end").unwrap();
    // Through the cache by READs of 4 KiB, and then with O_DIRECT.
    let got = m.read(handle, 100_000, 1 << 20).unwrap();
    assert!(
        got.len() == 1 << 20 && got.iter().all(|&b| b == 0),
        "{}",
        got.len()
    );
    // From the border of a block to the end of the file, which no single READ reaches.
    let got = m.read(handle, 1 << 20, 1 << 20).unwrap();
    assert_eq!(got.len(), 1_500_007 - (1 << 20));
    assert!(got.ends_with(b"\0the end"));
    m.write(handle, 1_600_000, b"the end").unwrap();
    let got = block_on(m.fs.read(handle, 1_550_000, 10_000, libc::O_DIRECT)).unwrap();
    assert_eq!(got.iter().map(|b| b.len()).sum::<usize>(), 10_000);
}

#[test]
fn older_data_is_not_seen_or_written_again_over_what_went_past_the_cache() {
    let m = roomy();
    let direct = RW | libc::O_DIRECT;
    let (node, f) = m.create("f");
    m.write(f, 0, &[1; 8192]).unwrap();
    // The server has the data, not committed: it is kept here to be written again.
    let stat = m.stat(node).unwrap();
    assert_eq!((stat.size, m.server.calls(Op::Commit)), (8192, 0));
    let d = m.open(node, direct).unwrap();
    block_on(m.fs.write(d, 0, &[2; 4096], direct, || true)).unwrap();
    assert_eq!(m.read(f, 0, 4096).unwrap(), [2; 4096]);
    m.server.restart();
    m.fsync(f).unwrap();
    m.close(f).unwrap();
    m.close(d).unwrap();
    let there = m.server.contents("f").unwrap();
    assert!(there[..4096] == [2; 4096] && there[4096..] == [1; 4096]);
}

#[test]
fn what_a_restart_lost_is_written_again_before_it_is_read_past_the_cache() {
    let m = roomy();
    let direct = RW | libc::O_DIRECT;
    let (node, f) = m.create("f");
    m.write(f, 0, &[1; 8192]).unwrap();
    m.close(f).unwrap();
    let f = m.open(node, RW).unwrap();
    m.write(f, 0, &[2; 8192]).unwrap();
    m.stat(node).unwrap();
    assert_eq!(m.server.calls(Op::Commit), 0);
    m.server.restart();
    let d = m.open(node, direct).unwrap();
    let got = block_on(m.fs.read(d, 0, 8192, direct)).unwrap();
    let got: Vec<u8> = got.iter().flat_map(|part| part.to_vec()).collect();
    assert!(got == [2; 8192]);
    // A hole before data that the server has lost: for the server it lies behind the end.
    m.write(f, 100_000, &[3; 10]).unwrap();
    m.stat(node).unwrap();
    m.server.restart();
    let got = block_on(m.fs.read(d, 50_000, 4096, direct)).unwrap();
    let got: Vec<u8> = got.iter().flat_map(|part| part.to_vec()).collect();
    assert!(got == [0; 4096]);
}

#[test]
fn a_refused_truncation_loses_nothing() {
    let m = Mount::new();
    let (node, f) = m.create("f");
    m.write(f, 0, &[7; 10_000]).unwrap();
    m.fate(Op::Setattr, Fate::Refused(Status::Access));
    assert_eq!(errno(m.truncate(node, 0)), libc::EACCES);
    m.close(f).unwrap();
    assert!(m.server.contents("f").unwrap() == [7; 10_000]);
}

#[test]
fn what_was_written_leaves_the_cache_once_it_is_safe() {
    const M: usize = 1 << 20;
    for stable in [true, false] {
        let m = Mount::new();
        if !stable {
            m.server.set_never_stable();
        }
        let (_, f) = m.create("f");
        let piece = |n: usize| vec![n as u8 + 1; M / 2];
        for n in 0..6 {
            m.write(f, (n * M / 2) as u64, &piece(n)).unwrap();
        }
        m.write(f, 3 * M as u64, b"a part of a page").unwrap();
        assert!(m.count("cache_bytes") > 0);
        m.fsync(f).unwrap();
        // The kernel has everything but the end of the last page.
        assert!(m.count("cache_bytes") <= M as u64);
        let reads = m.server.calls(Op::Read);
        assert_eq!(m.read(f, 3 * M as u64, 4096).unwrap(), b"a part of a page");
        assert_eq!(m.server.calls(Op::Read), reads);
        assert_eq!(m.count("cache_bytes"), 0);
        // The data comes from the server, and what is written now is laid over it.
        m.write(f, M as u64 + 1, b"new").unwrap();
        for n in 0..7 {
            let mut expected = match n {
                6 => b"a part of a page".to_vec(),
                n => piece(n),
            };
            if n == 2 {
                expected[1..4].copy_from_slice(b"new");
            }
            let got = m.read(f, (n * M / 2) as u64, M as u32 / 2).unwrap();
            assert!(got == expected, "{n}");
        }
        assert!(m.server.calls(Op::Read) > 0);
        m.close(f).unwrap();
        assert_eq!(m.count("cache_bytes"), 0);
        assert_eq!(&m.server.contents("f").unwrap()[M..M + 5], b"\x03new\x03");
    }
}

/// 63 writers wait at the limit of dirty data. What a WRITE costs that ends then must not grow with
/// their number.
#[test]
fn the_end_of_a_write_does_not_wake_every_writer() {
    const FILES: usize = 64;
    const LIMIT: usize = 1 << 20;
    const PART: usize = LIMIT / 16;
    let server = server_of(PART as u32, 8192, 2);
    let config = FsConfig {
        dirty_bytes: LIMIT,
        dirty_file_bytes: LIMIT,
        ..small()
    };
    let m = Mount::of(&server, config);
    let files: Vec<u64> = (0..FILES).map(|n| m.create(&format!("f{n}")).1).collect();
    server.hold(true);
    m.write(files[0], 0, &vec![1; LIMIT]).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    for &file in &files[1..] {
        let (fs, tell) = (m.fs.clone(), tell.clone());
        exec::spawn(async move {
            let result = fs.write(file, 0, &vec![2; PART], RW, || true).await;
            tell.send(result).unwrap();
        });
    }
    let before = m.count("write_waits");
    assert!(before >= FILES as u64 - 1, "they wait");
    server.hold(false);
    for _ in &files[1..] {
        let result = told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(result.unwrap() as usize, PART);
    }
    let (waits, writes) = (m.count("write_waits") - before, server.calls(Op::Write));
    assert!(
        waits <= 4 * (writes + FILES as u64),
        "{waits} looks for room, {writes} WRITEs"
    );
    assert!(block_on(m.fs.shutdown()).is_empty());
    assert_eq!(server.contents("f0").unwrap(), vec![1; LIMIT]);
    for n in 1..FILES {
        assert_eq!(server.contents(&format!("f{n}")).unwrap(), vec![2; PART]);
    }
}

/// The server answers each WRITE with FILE_SYNC, so that no COMMIT follows.
#[test]
fn data_that_is_safe_without_a_commit_does_not_keep_the_mount_busy() {
    let m = Mount::new();
    m.server.set_always_stable();
    let held = Arc::new(AtomicUsize::new(0));
    let told = held.clone();
    m.fs.set_hold(Box::new(move |on| {
        told.store(usize::from(on), Ordering::Relaxed);
    }));
    let (_, f) = m.create("f");
    // A descriptor was closed, so the data may outlive the others.
    m.flush(f).unwrap();
    m.write(f, 0, &vec![1; 1 << 20]).unwrap();
    assert_eq!(m.server.contents("f").unwrap().len(), 1 << 20);
    m.clock.advance(Duration::from_secs(60));
    m.fs.tick();
    assert_eq!(held.load(Ordering::Relaxed), 0);
}

/// The first part of an append fits into the last block of the file, and there is no memory for the
/// rest.
#[test]
fn an_append_for_which_memory_is_short_is_written_once() {
    let m = Mount::new();
    let (_, f) = m.create("f");
    let append = |data: &[u8]| {
        let flags = RW | libc::O_APPEND;
        let done = match m.fs.write_cached(f, 0, data, flags) {
            Some(done) => done,
            None => block_on(m.fs.write(f, 0, data, flags, || true)),
        };
        assert_eq!(done.unwrap() as usize, data.len());
    };
    append(&[1; 4000]);
    let mut held = Vec::new();
    for size in [1 << 20, 4096] {
        held.extend(std::iter::from_fn(|| m.pool.alloc(size)));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| append(&[2; 200]));
        until("a write that waits", || m.count("write_waits") > 0);
        drop(held);
    });
    m.close(f).unwrap();
    let expected = [vec![1; 4000], vec![2; 200]].concat();
    assert!(m.server.contents("f").unwrap() == expected);
}

/// Another client makes a file longer, and a reply from before overtakes the one that shows it.
#[test]
fn no_mapped_page_is_cut_off_by_a_size_that_may_be_out_of_date() {
    const LEN: usize = 8192;
    let m = Mount::new();
    let (node, f) = m.create("f");
    let (fs, cred) = (Arc::downgrade(&m.fs), m.cred.clone());
    let (server, before) = (Arc::downgrade(&m.server), m.server.calls(Op::Getattr));
    m.server.set_hook(move |op, number| {
        if op == Op::Getattr
            && number == before
            && let (Some(fs), Some(server)) = (fs.upgrade(), server.upgrade())
        {
            block_on(fs.access(&cred, node, libc::R_OK)).unwrap();
            server.change_file("f", 0, &[0; LEN], None);
        }
        Fate::Done
    });
    let pages = vec![1; LEN];
    block_on(m.fs.write_mapped(f, 0, &pages[..])).unwrap();
    m.fsync(f).unwrap();
    assert!(m.server.contents("f").unwrap() == pages);
}

/// A page of a mapping has arrived while the file was being truncated, and the server says nothing of
/// the attributes, which it may (RFC 1813 section 2.6).
#[test]
fn a_mapped_page_does_not_lengthen_a_file_whose_truncation_was_answered_without_attributes() {
    for (size, open) in [(0, true), (0, false), (4096, false)] {
        let m = Mount::new();
        m.server.plant("f", &[b'o'; 3 * 4096]);
        m.server.bare_setattr();
        let node = m.node("f");
        let f = m.open(node, RW).unwrap();
        assert_eq!(m.read(f, 0, 3 * 4096).unwrap().len(), 3 * 4096);
        m.server.keep(Some(Op::Setattr));
        let (tell, told) = channel();
        let (fs, cred, done) = (m.fs.clone(), m.cred.clone(), tell.clone());
        exec::spawn(async move {
            if open {
                let flags = RW | libc::O_TRUNC;
                fs.open(&cred, node, flags).await.unwrap();
            } else {
                fs.setattr(&cred, node, &with_size(size), false)
                    .await
                    .unwrap();
            }
            done.send(()).unwrap();
        });
        let (fs, page) = (m.fs.clone(), [b'm'; 4096]);
        exec::spawn(async move {
            let written = fs.write_mapped(f, 8192, &page[..]).await;
            assert_eq!(written.unwrap(), 4096);
            tell.send(()).unwrap();
        });
        assert!(told.try_recv().is_err(), "both wait");
        m.server.keep(None);
        for _ in 0..2 {
            told.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        m.fsync(f).unwrap();
        assert_eq!(m.server.contents("f").unwrap(), vec![b'o'; size as usize]);
        assert_eq!(m.stat(node).unwrap().size, size);
    }
}

/// Counts how often `future` is polled.
async fn counted<T>(polls: Arc<AtomicUsize>, future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        polls.fetch_add(1, Ordering::Relaxed);
        future.as_mut().poll(context)
    })
    .await
}

/// 64 processes look at a file with many small dirty pieces. What a WRITE costs that ends then must not
/// grow with their number.
#[test]
fn the_end_of_a_write_does_not_wake_everybody_who_waits_for_a_flush() {
    const PIECES: u64 = 200;
    const CALLERS: usize = 64;
    let m = Mount::of(&server_of(65536, 8192, 2), small());
    let (node, f) = m.create("f");
    for n in 0..PIECES {
        m.write(f, n * 8192, &[1]).unwrap();
    }
    m.server.hold(true);
    let polls = Arc::new(AtomicUsize::new(0));
    let (tell, told) = std::sync::mpsc::channel();
    for n in 0..CALLERS {
        let (fs, cred, tell) = (m.fs.clone(), m.cred.clone(), tell.clone());
        let looks = polls.clone();
        exec::spawn(async move {
            let result = match n % 2 {
                0 => counted(looks, fs.getattr(&cred, node, false))
                    .await
                    .map(drop),
                _ => counted(looks, fs.fsync(f, || true)).await,
            };
            tell.send(result).unwrap();
        });
    }
    m.server.hold(false);
    for _ in 0..CALLERS {
        told.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
        assert_eq!(m.count("dirty_bytes"), 0);
    }
    let (polls, writes) = (polls.load(Ordering::Relaxed), m.server.calls(Op::Write));
    assert!(
        polls as u64 <= 8 * (writes + CALLERS as u64),
        "{polls} turns for {writes} WRITEs"
    );
    m.close(f).unwrap();
}
