//! Each error is reported once, to the programs that it concerns.

use super::support::*;
use nfsrdma_fs::fs::FsConfig;
use nfsrdma_memory_server::{Fate, MemoryServer, Op};
use nfsrdma_rdma::BufMut;
use nfsrdma_rdma_testing::drain;
use nfsrdma_rpcrdma::exec::{self, block_on};
use nfsrdma_xdr::nfs3::{FileType, Status};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Writes blocks of `len` bytes one after the other until write(2) fails.
fn fill(m: &Mount, f: u64, len: usize) -> i32 {
    let block = vec![1; len];
    (0..500)
        .map(|n| errno(m.write(f, n * len as u64, &block)))
        .find(|&errno| errno != 0)
        .unwrap_or(0)
}

#[test]
fn a_write_of_what_was_refused_does_not_hide_from_fsync_what_is_lost() {
    let m = Mount::new();
    let (node, f) = m.create("f");
    let other = m.open(node, RW).unwrap();
    m.server.set_capacity(3 << 20);
    assert_eq!(fill(&m, f, 64 << 10), libc::ENOSPC);
    m.server.set_capacity(1 << 30);
    // Each open file is told once, whoever wrote.
    assert_eq!(errno(m.write(other, 0, b"more")), libc::ENOSPC);
    m.write(other, 0, b"more").unwrap();
    // As a program that waits for room.
    m.write(f, 50 << 20, b"more").unwrap();
    assert_eq!([m.fsync(f), m.fsync(f)].map(errno), [libc::ENOSPC, 0]);
    assert_eq!(
        [m.fsync(other), m.fsync(other)].map(errno),
        [libc::ENOSPC, 0]
    );
    m.close(other).unwrap();
    m.close(f).unwrap();
}

#[test]
fn a_flush_ends_though_the_write_verifier_changes_with_each_commit() {
    let m = Mount::new();
    let (_, f) = m.create("f");
    let server = std::sync::Arc::downgrade(&m.server);
    m.server.set_hook(move |op, before| {
        if op == Op::Commit {
            assert!(before < 100, "it is written and committed for ever");
            server.upgrade().unwrap().restart();
        }
        Fate::Done
    });
    let data = [vec![1; 1 << 20], vec![2; 1 << 20]].concat();
    m.write(f, 0, &data[..1 << 20]).unwrap();
    m.write(f, 1 << 20, &data[1 << 20..]).unwrap();
    assert_eq!(errno(m.fsync(f)), 0);
    assert!(m.server.durable("f").unwrap() == data);
    m.server.clear_hook();
    m.close(f).unwrap();
}

/// A server that neither keeps what it is told to keep, nor its verifier, for so many COMMITs.
fn forgetful(m: &Mount, restarts: u64) {
    m.server.set_never_stable();
    let server = std::sync::Arc::downgrade(&m.server);
    m.server.set_hook(move |op, before| {
        if op == Op::Commit && before < restarts {
            assert!(before < 1000, "it is written and committed for ever");
            server.upgrade().unwrap().restart();
        }
        Fate::Done
    });
}

#[test]
fn a_direct_write_that_a_restarting_server_has_lost_is_written_again() {
    let m = Mount::new();
    let (_, f) = m.create("f");
    forgetful(&m, 2);
    let write = || block_on(m.fs.write(f, 0, b"text", RW | libc::O_DIRECT, || true));
    assert_eq!(write().unwrap(), 4);
    assert_eq!(m.server.durable("f").unwrap(), b"text");
    forgetful(&m, u64::MAX);
    assert_eq!(errno(write()), libc::EIO);
    m.server.clear_hook();
    m.close(f).unwrap();
}

#[test]
fn a_write_that_waits_when_the_mount_goes_leaves_nothing_behind_the_rest() {
    let server = server_of(1 << 20, 8192, 1);
    let config = small();
    let (room, full) = (config.dirty_file_bytes as u64, config.dirty_file_bytes);
    let m = Mount::of(&server, config);
    let (_, f) = m.create("f");
    server.hold(true);
    m.write(f, 0, &vec![1; full]).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let fs = m.fs.clone();
    exec::spawn(async move {
        let result = fs.write(f, room, &vec![2; full], RW, || true).await;
        tell.send(result).unwrap();
    });
    // The write waits for room before the mount ends.
    assert!(m.count("write_waits") > 0);
    m.fs.end_of_requests();
    server.hold(false);
    assert!(block_on(m.fs.shutdown()).is_empty());
    let result = told.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(result.unwrap_err().errno(), libc::EIO);
    assert!(block_on(m.fs.shutdown()).is_empty());
    assert_eq!(server.contents("f").unwrap(), vec![1; full]);
}

/// The locks that protected such changes are released.
#[test]
fn nothing_is_changed_once_a_mount_is_at_its_end() {
    let m = Mount::new();
    let (node, f) = m.create("f");
    let write = |flags| errno(block_on(m.fs.write(f, 0, b"late", flags, || true)));
    assert_eq!(write(RW | libc::O_DIRECT), 0);
    m.fs.end_of_requests();
    assert_eq!(write(RW | libc::O_DIRECT), libc::EIO);
    assert_eq!(write(RW | libc::O_DIRECT | libc::O_APPEND), libc::EIO);
    assert_eq!(write(RW), libc::EIO);
    assert_eq!(errno(m.truncate(node, 0)), libc::EIO);
    assert_eq!(m.server.contents("f").unwrap(), b"late");
}

#[test]
fn an_object_that_changes_its_type_is_stale() {
    let m = Mount::new();
    m.server.plant("f", b"1");
    m.server.plant("g", b"22");
    let (f, g) = (m.node("f"), m.node("g"));
    assert_eq!(m.stat(f).unwrap().size, 1);
    for kind in [FileType::Directory, FileType::Symlink, FileType::Character] {
        m.server.change_type("f", kind);
        m.clock.advance(Duration::from_secs(3600));
        assert_eq!(errno(m.stat(f)), libc::ESTALE, "{kind:?}");
        assert_eq!(m.stat(g).unwrap().size, 2);
    }
    m.server.change_type("f", FileType::Regular);
    assert_eq!(m.stat(f).unwrap().size, 1);
    // So it is if the name is looked up, as what is an object of its own then.
    m.server.change_type("f", FileType::Directory);
    assert_ne!(m.node("f"), f);
    assert_eq!(errno(m.stat(4711)), libc::ESTALE, "as what nobody knows");
}

#[test]
fn who_has_everything_on_the_server_is_told_once_of_what_others_lose() {
    let m = Mount::new();
    let (node, safe) = m.create("f");
    m.write(safe, 0, b"safe").unwrap();
    assert_eq!(errno(m.fsync(safe)), 0);
    let other = m.open(node, RW).unwrap();
    m.write(other, 100, b"other").unwrap();
    m.fate(Op::Write, Fate::Refused(Status::DQuot));
    assert_eq!(errno(m.flush(safe)), libc::EDQUOT);
    assert_eq!(errno(m.fsync(safe)), libc::EDQUOT);
    assert_eq!(errno(m.fsync(safe)), 0);
    assert_eq!(errno(m.fsync(other)), libc::EDQUOT);
    // Both open files wrote, and each gets the error once.
    m.write(safe, 0, b"more").unwrap();
    m.write(other, 100, b"other").unwrap();
    assert_eq!(errno(m.fsync(safe)), libc::EDQUOT);
    assert_eq!(errno(m.flush(other)), libc::EDQUOT);
    assert_eq!(errno(m.flush(safe)), 0);
    // A close need not be heard by who wrote: fsync tells it all the same.
    assert_eq!(errno(m.fsync(other)), libc::EDQUOT);
    assert_eq!(errno(m.fsync(other)), 0);
    m.server.clear_hook();
    assert_eq!(m.server.contents("f").unwrap(), b"safe");
    m.release(safe);
    m.release(other);
}

/// An open file with eight bytes of text, and buffers that take all memory.
fn without_memory(m: &Mount) -> (u64, Vec<BufMut>) {
    m.server.plant("f", b"old text");
    let f = m.open(m.node("f"), RW).unwrap();
    (f, drain(&m.pool))
}

#[test]
fn memory_that_calls_hold_is_waited_for() {
    let m = Mount::new();
    let (f, taken) = without_memory(&m);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| m.write(f, 4, b"data"));
        let read = scope.spawn(|| m.read(f, 0, 4));
        until("looks for memory", || m.count("write_waits") >= 10);
        assert!(!write.is_finished() && !read.is_finished());
        drop(taken);
        write.join().unwrap().unwrap();
        assert_eq!(read.join().unwrap().unwrap(), b"old ");
    });
    m.close(f).unwrap();
    assert_eq!(m.server.contents("f").unwrap(), b"old data");
}

/// A call that the server has put off gives its memory back, and does not end: nothing notifies those
/// who wait for memory.
#[test]
fn memory_that_comes_back_while_a_call_is_under_way_is_found() {
    let m = Mount::of(&server_of(1 << 20, 8192, 1), small());
    m.server.plant("held", b"text");
    m.server.plant("f", b"old text");
    let held = m.open(m.node("held"), RW).unwrap();
    let f = m.open(m.node("f"), RW).unwrap();
    m.server.hold(true);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| m.read(held, 0, 4));
        until("a READ under way", || m.count("reads_sent") == 1);
        let taken = drain(&m.pool);
        let (give, take) = std::sync::mpsc::channel();
        let tell = give.clone();
        let (m, f) = (&m, f);
        let write = scope.spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            m.write(f, 4, b"data")
        });
        until("a write that waits", || m.count("write_waits") > 0);
        let second = scope.spawn(move || {
            give.send(rustix::thread::gettid()).unwrap();
            m.read(f, 0, 4)
        });
        until("a read that waits", || m.count("read_misses") == 2);
        // Both have looked for memory and sleep. Whoever looks again only when notified does not find this.
        let futex = format!("{} ", libc::SYS_futex);
        for task in take.iter().take(2) {
            let call = format!("/proc/self/task/{task}/syscall");
            until("a thread that sleeps", || {
                std::fs::read_to_string(&call).is_ok_and(|call| call.starts_with(&futex))
            });
        }
        drop(taken);
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until("the write", || write.is_finished());
            until("the second READ", || m.count("reads_sent") == 2);
        }));
        m.server.hold(false);
        write.join().unwrap().unwrap();
        assert_eq!(first.join().unwrap().unwrap(), b"text");
        assert_eq!(second.join().unwrap().unwrap(), b"old ");
        found.unwrap();
    });
    m.close(f).unwrap();
    m.close(held).unwrap();
    assert_eq!(m.server.contents("f").unwrap(), b"old data");
}

/// With each attempt it stores what there is memory for. From the beginning each time, it would never
/// end, and send its first part again and again.
#[test]
fn a_write_goes_on_with_what_did_not_fit_where_memory_is_short() {
    let m = Mount::new();
    m.server.plant("slow", b"text");
    m.server.plant("f", b"");
    let slow = m.open(m.node("slow"), RW).unwrap();
    let f = m.open(m.node("f"), RW).unwrap();
    let data: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 4096) as u8).collect();
    m.server.keep(Some(Op::Read));
    std::thread::scope(|scope| {
        let read = scope.spawn(|| m.read(slow, 0, 4));
        until("the READ", || m.count("reads_sent") > 0);
        let begun = Instant::now();
        let mut taken = drain(&m.pool);
        let mut free = 0;
        while free < 64 << 10 {
            free += taken.pop().unwrap().capacity();
        }
        let write = scope.spawn(|| m.write(f, 0, &data));
        while !write.is_finished() && begun.elapsed() < HANG {
            std::thread::yield_now();
        }
        let (ended, sent) = (write.is_finished(), m.server.calls(Op::Write));
        drop(taken);
        m.server.keep(None);
        write.join().unwrap().unwrap();
        read.join().unwrap().unwrap();
        assert!(
            ended,
            "it waits for all of the memory, and made {sent} WRITEs"
        );
        assert!(sent <= 256, "{sent} WRITEs");
    });
    m.close(f).unwrap();
    m.close(slow).unwrap();
    assert!(m.server.contents("f").unwrap() == data);
}

#[test]
fn what_this_machine_lacks_for_a_while_loses_nothing() {
    for op in [Op::Read, Op::Write, Op::Commit] {
        let m = Mount::new();
        m.server.plant("f", &[b'o'; 4096]);
        let f = m.open(m.node("f"), RW).unwrap();
        let tried = Arc::new(AtomicU64::new(0));
        let count = tried.clone();
        m.server.set_hook(move |of, _| {
            match of == op && count.fetch_add(1, Ordering::SeqCst) < 3 {
                true => Fate::Local,
                false => Fate::Done,
            }
        });
        assert_eq!(m.read(f, 0, 4096).unwrap(), [b'o'; 4096]);
        let data = vec![b'w'; 3 << 20];
        m.write(f, 0, &data).unwrap();
        m.fsync(f).unwrap();
        assert!(tried.load(Ordering::SeqCst) > 3, "{op:?}");
        assert!(m.server.durable("f").unwrap() == data);
        m.close(f).unwrap();
    }
}

/// All memory is held by operations that wait for more: failing is better than hanging.
#[test]
fn memory_that_no_call_holds_is_not_waited_for_for_ever() {
    let m = Mount::new();
    let (f, taken) = without_memory(&m);
    m.server.set_idle();
    assert_eq!(errno(m.read(f, 0, 4)), libc::ENOMEM);
    drop(taken);
    assert_eq!(m.read(f, 0, 4).unwrap(), b"old ");
    m.close(f).unwrap();
}

#[test]
fn a_soft_mount_without_memory_says_so() {
    let config = FsConfig {
        hard: false,
        ..small()
    };
    let m = Mount::of(&MemoryServer::new(), config);
    let (f, taken) = without_memory(&m);
    assert_eq!(errno(m.write(f, 4, b"data")), libc::ENOMEM);
    assert_eq!(errno(m.read(f, 0, 4)), libc::ENOMEM);
    drop(taken);
    m.write(f, 4, b"data").unwrap();
    m.close(f).unwrap();
}

/// As on a file system of this machine: a program ends without having looked, and another one has the file put
/// on stable storage later.
#[test]
fn what_nobody_has_seen_is_told_to_who_opens_the_file_later() {
    let m = Mount::new();
    let (node, f) = m.create("f");
    m.server.set_capacity(0);
    m.write(f, 0, b"lost").unwrap();
    m.release(f);
    assert_eq!(m.fs.lost().len(), 1);
    let [later, other] = [RW, libc::O_RDONLY].map(|flags| m.open(node, flags).unwrap());
    m.server.set_capacity(1 << 30);
    // It is no error of what is written now.
    m.write(later, 0, b"kept").unwrap();
    m.write(later, 4, b"kept").unwrap();
    // A caller that is killed takes nothing away.
    assert_eq!(errno(block_on(m.fs.fsync(later, || false))), libc::ENOSPC);
    assert_eq!(m.fs.lost().len(), 1);
    for file in [later, other] {
        assert_eq!([m.fsync(file), m.fsync(file)].map(errno), [libc::ENOSPC, 0]);
    }
    let last = m.open(node, RW).unwrap();
    assert_eq!(errno(m.fsync(last)), 0);
    for file in [later, other, last] {
        m.close(file).unwrap();
    }
    assert_eq!(m.server.contents("f").unwrap(), b"keptkept");
    assert!(block_on(m.fs.shutdown()).is_empty(), "it was told");
}

/// The lines of a log at the level of warnings, and of errors.
#[derive(Default)]
struct Warnings(Mutex<Vec<String>>);

impl Warnings {
    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl tracing::field::Visit for &Warnings {
    fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push(format!("{value:?}"));
    }
}

impl tracing::Subscriber for &'static Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut &**self);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// One program writes, and another one has the file put on stable storage, as a checkpointer does.
#[test]
fn who_syncs_a_file_is_told_of_what_others_lose() {
    let m = Mount::new();
    let (node, writer) = m.create("f");
    m.server.change_file("f", 0, &[], Some(0o666));
    let [syncs, reads] = [RW, libc::O_RDONLY].map(|flags| m.open(node, flags).unwrap());
    let other = block_on(m.fs.open(&cred(1000), node, RW)).unwrap().handle;
    m.write(writer, 0, b"data").unwrap();
    m.fate(Op::Write, Fate::Refused(Status::DQuot));
    for file in [syncs, reads] {
        assert_eq!(errno(m.fsync(file)), libc::EDQUOT);
        assert_eq!(errno(m.fsync(file)), 0);
        assert_eq!(errno(m.close(file)), 0);
    }
    // Another user as well, and who opens it later is not told what somebody has seen.
    let later = m.open(node, RW).unwrap();
    assert_eq!(
        [m.fsync(other), m.fsync(later)].map(errno),
        [libc::EDQUOT, 0]
    );
    assert_eq!(errno(m.close(writer)), libc::EDQUOT);
}

/// The kernel asks for nothing of it any more, so no program is told.
#[test]
fn data_of_a_file_that_the_kernel_has_forgotten_are_logged_when_they_are_lost() {
    static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));
    let m = Mount::new();
    let (node, f) = m.create("f");
    let fileid = m.stat(node).unwrap().fileid;
    m.write(f, 0, b"data").unwrap();
    m.fs.forget(node, 1);
    let _here = tracing::subscriber::set_default(&WARNINGS);
    let m = m.killed();
    let lines = WARNINGS.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(&format!("file {fileid}")), "{lines:?}");
    drop(m.killed());
    assert_eq!(WARNINGS.lines().len(), 1, "once");
}

/// As above, but there were records of the data.
#[test]
fn data_of_a_forgotten_file_that_cannot_be_restored_are_logged() {
    static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));
    let m = Mount::keeping();
    let (node, f) = m.create("f");
    let fileid = m.stat(node).unwrap().fileid;
    for at in 0..3 {
        m.write(f, at << 20, b"data").unwrap();
    }
    m.fs.forget(node, 1);
    let _here = tracing::subscriber::set_default(&WARNINGS);
    let m = m.killed_without_data();
    let lines = WARNINGS.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(&format!("file {fileid}")), "{lines:?}");
    drop(m.killed());
    assert_eq!(WARNINGS.lines().len(), 1, "once");
}

#[test]
fn an_error_that_one_open_file_has_told_is_told_by_the_others_also_after_a_crash() {
    let m = Mount::new();
    let (node, f) = m.create("f");
    let g = m.open(node, RW).unwrap();
    m.write(f, 0, b"data").unwrap();
    m.fate(Op::Write, Fate::Refused(Status::NoSpc));
    assert_eq!(errno(m.fsync(f)), libc::ENOSPC);
    m.server.clear_hook();
    let m = m.killed();
    assert_eq!([m.fsync(g), m.fsync(g)].map(errno), [libc::ENOSPC, 0]);
    // It is not known who had been told.
    assert_eq!([m.fsync(f), m.fsync(f)].map(errno), [libc::ENOSPC, 0]);
    let m = m.killed();
    for file in [f, g] {
        assert_eq!(errno(m.fsync(file)), 0, "all were told");
        m.close(file).unwrap();
    }
}
