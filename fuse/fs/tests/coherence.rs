//! Which contents programs see, through the kernel: other clients change what this mount has
//! cached, replies overtake each other, the server restarts or its clock steps, and this machine
//! runs short of memory. docs/COHERENCE.md says what is promised.

use crate::common::{Mounted, mount_of};
use nfsrdma_fs::fs::{AttributeTimes, Found, FsConfig, ROOT};
use nfsrdma_memory_server::{Fate, MemoryServer, Op, PreOp};
use nfsrdma_nfs3::{Credential, Transport};
use nfsrdma_rpcrdma::exec::block_on;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

const PAGE: usize = 4096;
const HOUR: Duration = Duration::from_secs(3600);
/// More than anything takes on a machine with much to do.
const LONG: Duration = Duration::from_secs(180);
const ALL: [PreOp; 3] = [PreOp::Atomic, PreOp::Never, PreOp::NotAtomic];

/// A configuration in which attributes are valid for an hour.
fn hour() -> FsConfig {
    FsConfig {
        times: AttributeTimes::all(HOUR),
        ..FsConfig::default()
    }
}

/// Runs `test` on mounts of an export, one for each name.
fn mounts<const N: usize>(
    name: &str,
    config: &FsConfig,
    fill: impl FnOnce(&MemoryServer),
    test: impl FnOnce([&Mounted; N]),
) {
    // The server has threads, which answer in any order.
    let server = MemoryServer::with(MemoryServer::new().limits(), 2);
    mounts_of(&server, name, config, fill, test);
}

/// As [`mounts`], with a given server.
fn mounts_of<const N: usize>(
    server: &Arc<MemoryServer>,
    name: &str,
    config: &FsConfig,
    fill: impl FnOnce(&MemoryServer),
    test: impl FnOnce([&Mounted; N]),
) {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse");
        return;
    }
    fill(server);
    let all: [Mounted; N] =
        std::array::from_fn(|n| mount_of(server, &format!("coherence-{name}-{n}"), config.clone()));
    test(all.each_ref());
    all.into_iter().for_each(Mounted::finish);
}

/// Waits for `condition`; false if it does not become true in time.
fn within(time: Duration, condition: impl Fn() -> bool) -> bool {
    let end = Instant::now() + time;
    while !condition() {
        if Instant::now() > end {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Waits until all WRITEs have been answered here, which is after the server has executed them.
fn all_answered(m: &Mounted) {
    let unwritten = || {
        let all = m.fs().statistics();
        all.iter().find(|of| of.0 == "dirty_bytes").unwrap().1
    };
    assert!(within(LONG, || unwritten() == 0), "data are not written");
}

fn open(m: &Mounted) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(m.dir.join("f"))
        .unwrap()
}

fn page(file: &File, at: usize) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    file.read_exact_at(&mut page, (at * PAGE) as u64).unwrap();
    page
}

/// Where replies to WRITE do not tell what was before, a change just ahead of one is missed.
#[test]
fn what_another_closed_is_seen_on_open_though_this_mount_wrote_meanwhile() {
    for pre_op in [PreOp::Atomic, PreOp::NotAtomic] {
        for at_server in [false, true] {
            let fill = |server: &MemoryServer| {
                server.plant("f", &[b'o'; 4 * PAGE]);
                server.set_pre_op(pre_op);
            };
            mounts("both", &hour(), fill, |[a, b]| {
                let other = |with: u8, at: usize| match at_server {
                    true => a
                        .server
                        .change_file("f", (at * PAGE) as u64, &[with; PAGE], None),
                    false => open(b)
                        .write_all_at(&[with; PAGE], (at * PAGE) as u64)
                        .unwrap(),
                };
                let file = open(a);
                assert_eq!(page(&file, 0), [b'o'; PAGE]);
                other(b'B', 0);
                // Many WRITEs at the same time.
                file.write_all_at(&vec![b'a'; 8 << 20], 4 * PAGE as u64)
                    .unwrap();
                drop(file);
                let context = format!("{pre_op:?}, at the server: {at_server}");
                assert!(page(&open(a), 0) == [b'B'; PAGE], "{context}");
                // Both write small records in turns.
                for turn in 0..6u8 {
                    let file = open(a);
                    page(&file, 1);
                    other(b'0' + turn, 1);
                    file.write_all_at(&[turn; 100], 2 * PAGE as u64).unwrap();
                    drop(file);
                    assert!(
                        page(&open(a), 1) == [b'0' + turn; PAGE],
                        "turn {turn}, {context}"
                    );
                }
            });
        }
    }
}

/// Unstable data is kept until the COMMIT, in case the server loses it. But it need not be what the
/// server has then.
#[test]
fn what_another_wrote_over_unstable_data_of_this_mount_is_seen_on_open() {
    for pre_op in ALL {
        for close in [true, false] {
            // Then the change is just ahead of a WRITE.
            if close && pre_op == PreOp::Never {
                continue;
            }
            let fill = |server: &MemoryServer| {
                server.plant("f", b"");
                server.set_pre_op(pre_op);
            };
            mounts("unstable", &hour(), fill, |[a, _]| {
                let file = open(a);
                let all = vec![b'a'; 4 << 20];
                file.write_all_at(&all, 0).unwrap();
                // Full WRITEs are sent at once, and run in any order. A change between them is not noticed.
                all_answered(a);
                a.server.change_file("f", 0, &[b'B'; PAGE], None);
                if close {
                    file.write_all_at(b"more", all.len() as u64).unwrap();
                    drop(file);
                }
                let context = format!("{pre_op:?}, closed: {close}");
                assert!(page(&open(a), 0) == [b'B'; PAGE], "{context}");
                assert!(page(&open(a), 1) == [b'a'; PAGE], "{context}");
                assert!(a.server.contents("f").unwrap()[..PAGE] == [b'B'; PAGE]);
            });
        }
    }
}

/// Until the COMMIT, the size includes the data written here, in case the server loses it; but not
/// after an open that finds the file shorter.
#[test]
fn a_size_that_was_shown_for_unstable_data_is_not_shown_after_the_next_open() {
    let fill = |server: &MemoryServer| server.plant("f", b"");
    mounts("beyond", &hour(), fill, |[a, b]| {
        let file = open(a);
        let all = vec![b'a'; 4 << 20];
        file.write_all_at(&all, 0).unwrap();
        all_answered(a);
        open(b).set_len(100).unwrap();
        // This program sees the new size. The kernel asks for the attributes after its own write.
        let cred = Arc::new(Credential {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
        });
        let Ok(Found::Is(entry)) = block_on(a.fs().lookup(&cred, ROOT, b"f")) else {
            panic!("the file is not found");
        };
        a.fs().forget(entry.nodeid, 1);
        file.metadata().unwrap();
        file.sync_all().unwrap();
        drop(file);
        assert_eq!(open(a).metadata().unwrap().len(), 100);
    });
}

/// What another writes while a WRITE of this mount is on its way shows in the pre-operation attributes of
/// the WRITE; without these, it does as soon as the other has closed before the next burst of WRITEs.
#[test]
fn what_another_wrote_beside_a_write_is_seen_on_open() {
    for (pre_op, beside) in [(PreOp::Atomic, true), (PreOp::Never, false)] {
        let server = MemoryServer::new();
        let fill = |server: &MemoryServer| {
            server.plant("f", &[b'o'; 2 * PAGE]);
            server.set_pre_op(pre_op);
        };
        mounts_of(&server, "beside", &hour(), fill, |[a]| {
            for turn in 1..4u8 {
                assert_eq!(page(&open(a), 0).len(), PAGE);
                let other = Arc::downgrade(&server);
                let change = move || {
                    if let Some(server) = other.upgrade() {
                        server.change_file("f", 0, &[turn; PAGE], None);
                    }
                };
                match beside {
                    true => server.set_hook(move |op, _| {
                        if op == Op::Write {
                            change();
                        }
                        Fate::Done
                    }),
                    false => change(),
                }
                OpenOptions::new()
                    .write(true)
                    .open(a.dir.join("f"))
                    .unwrap()
                    .write_all_at(b"record", PAGE as u64)
                    .unwrap();
                server.clear_hook();
                let context = format!("{pre_op:?}, turn {turn}");
                assert!(page(&open(a), 0) == [turn; PAGE], "{context}");
            }
        });
    }
}

/// The READs that a program causes which writes a file, reads it, writes records into it and reads it once more.
fn reads_of_own_data(a: &Mounted) -> u64 {
    let mut expected = vec![b'a'; 8 << 20];
    let file = open(a);
    file.write_all_at(&expected, 0).unwrap();
    drop(file);
    assert!(fs::read(a.dir.join("f")).unwrap() == expected);
    let file = open(a);
    for at in [0, 3 << 20, 7 << 20] {
        file.write_all_at(b"record", at).unwrap();
        expected[at as usize..][..6].copy_from_slice(b"record");
        file.sync_all().unwrap();
    }
    drop(file);
    assert!(fs::read(a.dir.join("f")).unwrap() == expected);
    a.server.calls(Op::Read)
}

/// Whatever the server says of the state before a WRITE, the kernel keeps what a program has written. Without that
/// state an attribute reply between two WRITEs may look like a change by somebody else, so one try of a few is enough.
#[test]
fn what_this_mount_alone_has_written_is_not_read_again_after_an_open() {
    // Several WRITEs at the same time, which run and are answered in any order; but no GETATTR may be
    // overtaken by a WRITE.
    for (pre_op, threads, tries) in [(PreOp::Atomic, 2, 1), (PreOp::Never, 0, 4)] {
        let mut reads = (0..tries).map(|_| {
            let server = MemoryServer::with(MemoryServer::new().limits(), threads);
            let fill = |server: &MemoryServer| {
                server.plant("f", b"");
                server.set_pre_op(pre_op);
            };
            let mut reads = 0;
            mounts_of(&server, "own", &hour(), fill, |[a]| {
                reads = reads_of_own_data(a)
            });
            reads
        });
        assert!(reads.any(|reads| reads == 0), "{pre_op:?}");
    }
}

/// The hole before a record is cached as zeros here, while another client fills it.
#[test]
fn what_another_wrote_into_an_empty_file_is_seen_though_this_mount_wrote_behind_it() {
    for pre_op in ALL {
        // At first it is not known yet what the server's replies contain.
        for record in [3 * PAGE, PAGE, 0] {
            let fill = |server: &MemoryServer| {
                server.plant("f", b"");
                server.set_pre_op(pre_op);
            };
            mounts("hole", &hour(), fill, |[a]| {
                for turn in 1..4u8 {
                    let file = open(a);
                    file.set_len(0).unwrap();
                    file.write_all_at(b"record", record as u64).unwrap();
                    let mut hole = vec![9; record];
                    file.read_exact_at(&mut hole, 0).unwrap();
                    assert_eq!(hole, vec![0; record]);
                    // Another test that forks meanwhile closes a copy of the descriptor, which writes the record.
                    let written = !a.server.contents("f").unwrap().is_empty();
                    a.server.change_file("f", 0, &[turn; 5 * PAGE], None);
                    drop(file);
                    let mut wanted = vec![turn; 5 * PAGE];
                    if !written {
                        wanted[record..][..6].copy_from_slice(b"record");
                    }
                    let mut read = vec![0; 5 * PAGE];
                    open(a).read_exact_at(&mut read, 0).unwrap();
                    let wrong = read.iter().zip(&wanted).position(|(a, b)| a != b);
                    assert_eq!(wrong, None, "{pre_op:?}, record at {record}, turn {turn}");
                }
            });
        }
    }
}

#[test]
fn own_writes_count_though_the_clock_of_the_server_steps_back() {
    for pre_op in [PreOp::Atomic, PreOp::Never] {
        let fill = |server: &MemoryServer| {
            server.plant("f", b"");
            server.set_pre_op(pre_op);
        };
        mounts("clock", &FsConfig::default(), fill, |[a]| {
            let mut file = OpenOptions::new()
                .append(true)
                .open(a.dir.join("f"))
                .unwrap();
            let mut expected = Vec::new();
            for turn in 0..6 {
                let line = format!("line {turn}\n");
                file.write_all(line.as_bytes()).unwrap();
                file.sync_all().unwrap();
                expected.extend_from_slice(line.as_bytes());
                assert_eq!(file.metadata().unwrap().len(), expected.len() as u64);
                a.server.step_clock(-3600);
            }
            drop(file);
            let found = a.server.contents("f").unwrap();
            assert!(found == expected, "{}", String::from_utf8_lossy(&found));
        });
    }
}

#[test]
fn write_set_times_and_close_cost_two_calls() {
    let fill = |server: &MemoryServer| server.plant("f", b"");
    mounts("calls", &hour(), fill, |[a]| {
        let file = open(a);
        let count = || [Op::Write, Op::Setattr, Op::Commit].map(|op| a.server.calls(op));
        let before = count();
        file.write_all_at(b"text", 0).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        drop(file);
        let made: Vec<_> = count()
            .into_iter()
            .zip(before)
            .map(|(n, m)| n - m)
            .collect();
        assert_eq!(made, [1, 1, 0]);
    });
}

/// Makes the first few calls of a procedure find no buffer.
fn short(server: &MemoryServer, procedure: Op) -> Arc<AtomicU64> {
    let refused = Arc::new(AtomicU64::new(0));
    let count = refused.clone();
    server.set_hook(move |op, _| {
        if op == procedure && count.fetch_add(1, Ordering::SeqCst) < 3 {
            return Fate::Local;
        }
        Fate::Done
    });
    refused
}

#[test]
fn what_this_machine_lacks_for_a_while_loses_nothing() {
    let fill = |server: &MemoryServer| server.plant("f", &[b'o'; 2 * PAGE]);
    mounts("short", &FsConfig::default(), fill, |[a]| {
        let file = open(a);
        let tried = short(&a.server, Op::Read);
        assert_eq!(page(&file, 0), [b'o'; PAGE]);
        assert!(tried.load(Ordering::SeqCst) > 3);
        let tried = short(&a.server, Op::Write);
        file.write_all_at(&vec![b'w'; 3 << 20], 0).unwrap();
        file.sync_all().unwrap();
        assert!(tried.load(Ordering::SeqCst) > 3);
        let tried = short(&a.server, Op::Commit);
        file.write_all_at(&vec![b'c'; 3 << 20], 0).unwrap();
        file.sync_all().unwrap();
        assert!(tried.load(Ordering::SeqCst) > 3);
        a.server.clear_hook();
        assert!(a.server.durable("f").unwrap() == vec![b'c'; 3 << 20]);
        assert!(file.as_raw_fd() > 0);
    });
}
