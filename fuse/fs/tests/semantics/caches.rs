//! The caches of attributes and names, and what one mount sees of changes by another.

use super::support::*;
use nfsrdma_fs::fs::{Behind, FsConfig, KernelCache, ROOT};
use nfsrdma_memory_server::{Fate, MemoryServer, Op};
use nfsrdma_rpcrdma::exec::block_on;
use nfsrdma_xdr::nfs3::Status;
use nfsrdma_xdr::posix_acl::{ACCESS_NAME, PosixAcl};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

#[test]
fn the_kernel_drops_its_pages_only_of_what_others_have_changed() {
    let server = MemoryServer::new();
    let (a, b) = (Mount::of(&server, small()), Mount::of(&server, small()));
    server.plant("f", b"text");
    let told_by_open = |m: &Mount| {
        let f = m.open(m.node("f"), RW).unwrap();
        let behind = block_on(m.fs.behind_open(f));
        let told = behind.is_some();
        behind.into_iter().for_each(Behind::told);
        m.read(f, 0, 4).unwrap();
        m.close(f).unwrap();
        told
    };
    assert!(!told_by_open(&a));
    let f = a.open(a.node("f"), RW).unwrap();
    a.write(f, 0, b"own").unwrap();
    a.close(f).unwrap();
    a.stat(a.node("f")).unwrap();
    assert!(!told_by_open(&a));
    let f = b.open(b.node("f"), RW).unwrap();
    b.write(f, 0, b"foreign").unwrap();
    b.close(f).unwrap();
    assert!(told_by_open(&a));
    assert!(!told_by_open(&a));
}

/// It would go on with its pages otherwise, whose last one has zeros behind the old end.
#[test]
fn nobody_is_given_attributes_of_a_change_before_the_kernel_has_dropped_its_pages() {
    let m = Mount::new();
    m.server.plant("f", b"old");
    let node = m.node("f");
    let f = m.open(node, RW).unwrap();
    m.read(f, 0, 3).unwrap();
    m.stat(node).unwrap();
    m.server.change_file("f", 3, b"more", None);
    m.clock.advance(Duration::from_secs(100));
    // The server is asked, and the reply has to wait.
    block_on(m.fs.getattr(&m.cred, node, true)).unwrap();
    assert!(m.fs.getattr_cached(node, true).is_none());
    let behind = block_on(m.fs.behind_attributes(node)).unwrap();
    assert_eq!(
        behind.end,
        Some((6, b'e')),
        "what the kernel has no room for"
    );
    assert!(
        m.fs.getattr_cached(node, true).is_none(),
        "it is being told"
    );
    let other = block_on(m.fs.behind_attributes(node));
    assert!(other.is_some(), "who asks meanwhile waits, too");
    behind.told();
    assert_eq!(m.fs.getattr_cached(node, true).unwrap().0.size, 7);
    assert!(block_on(m.fs.behind_attributes(node)).is_none());
    assert!(block_on(m.fs.behind_open(f)).is_none());
}

/// Nor may it read, perhaps.
#[test]
fn who_opens_a_file_to_write_reads_no_end_that_others_have_given_it() {
    let m = Mount::new();
    m.server.plant("f", b"old");
    let node = m.node("f");
    m.stat(node).unwrap();
    m.server.change_file("f", 3, b"more", None);
    let f = m.open(node, libc::O_WRONLY | libc::O_APPEND).unwrap();
    let behind = block_on(m.fs.behind_open(f)).unwrap();
    assert_eq!((behind.end, m.server.calls(Op::Read)), (None, 0));
}

/// The kernel answers read(2) from its pages, and asks for nothing.
#[test]
fn open_files_that_the_kernel_has_pages_of_are_asked_for_when_their_attributes_expire() {
    let m = Mount::new();
    let open = |name: &str| {
        m.server.plant(name, b"old");
        m.open(m.node(name), RW).unwrap()
    };
    for file in 0..300 {
        m.fs.kernel_reads(open(&format!("f{file}")));
    }
    open("without pages");
    let asked = || {
        let before = m.server.calls(Op::Getattr);
        m.fs.tick();
        m.server.calls(Op::Getattr) - before
    };
    assert_eq!(asked(), 0, "nothing has expired");
    m.clock.advance(Duration::from_secs(100));
    assert_eq!([asked(), asked(), asked()], [200, 100, 0]);
}

/// The kernel may be answered some time after the server's reply.
#[test]
fn a_file_is_being_read_until_the_kernel_has_its_reply() {
    let m = Mount::new();
    let (node, file) = m.create("f");
    assert!(!m.fs.is_kernel_reading(node));
    let reads = [(); 2].map(|()| m.fs.kernel_read(file, 0..1).unwrap());
    for read in reads {
        assert!(m.fs.is_kernel_reading(node));
        drop(read);
    }
    assert!(!m.fs.is_kernel_reading(node));
}

#[test]
fn a_link_is_counted_no_longer_though_its_name_was_forgotten() {
    let config = FsConfig {
        name_entries: 8,
        ..small()
    };
    let m = Mount::of(&MemoryServer::new(), config);
    let (node, f) = m.create("a");
    m.close(f).unwrap();
    block_on(m.fs.link(&m.cred, node, ROOT, b"b")).unwrap();
    assert_eq!(m.stat(node).unwrap().nlink, 2);
    // There is room for few names. The kernel still has this one.
    for number in 0..100 {
        assert!(m.lookup(&format!("absent{number}")).is_none());
    }
    assert_eq!(m.stat(node).unwrap().nlink, 2);
    m.unlink("b").unwrap();
    assert_eq!(m.stat(node).unwrap().nlink, 1);
}

/// Programs wait for names that other machines make. One GETATTR in three seconds serves all missing names of a directory, whose
/// attributes are valid for longer.
#[test]
fn no_name_is_believed_missing_for_long() {
    let m = Mount::new();
    let seek = || ["a", "b", "c"].map(|name| m.lookup(name).is_some());
    assert_eq!(seek(), [false; 3]);
    m.clock.advance(Duration::from_secs(4));
    let before = m.server.all_calls();
    assert_eq!(seek(), [false; 3]);
    assert_eq!(m.server.all_calls(), before + 1);
    m.server.plant("b", b"text");
    m.clock.advance(Duration::from_secs(4));
    assert_eq!(seek(), [false, true, false]);
}

#[test]
fn an_unmount_with_open_files_leaves_no_hidden_names() {
    let m = Mount::new();
    let (_, f) = m.create("f");
    m.write(f, 0, b"text").unwrap();
    m.unlink("f").unwrap();
    assert!(block_on(m.fs.shutdown()).is_empty());
    assert!(m.server.names("").is_empty());
}

/// A READ that came after a WRITE is not answered before it: its page would lack the data.
#[test]
fn a_read_waits_for_the_writes_that_came_before_it() {
    let m = Mount::new();
    let (_, f) = m.create("f");
    m.write(f, 0, &[1; 8192]).unwrap();
    let before = m.fs.kernel_write(f, 0..10);
    assert!(m.fs.read_cached(f, 0, 4096, RW).is_none());
    let [beside, read] = [10..4096, 0..4096].map(|range| m.fs.kernel_read(f, range).unwrap());
    let later = m.fs.kernel_write(f, 0..10);
    block_on(beside.after_writes());
    let (tell, told) = channel();
    nfsrdma_rpcrdma::exec::spawn(async move {
        read.after_writes().await;
        tell.send(()).unwrap();
    });
    assert!(told.try_recv().is_err());
    drop(before);
    assert_eq!(told.try_recv(), Ok(()));
    assert!(m.fs.read_cached(f, 0, 4096, RW).is_none());
    drop(later);
    assert!(m.fs.read_cached(f, 0, 4096, RW).is_some());
}

/// Counts the notifications of files whose data is out of date.
#[derive(Debug)]
struct Invalidated(Arc<AtomicUsize>);

impl KernelCache for Invalidated {
    fn invalidate_attributes(&self, _: u64) {}
    fn invalidate_data(&self, _: u64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn expire_names(&self, _: u64) {}
}

/// The pages that a program reads after the notification are of the new contents.
#[test]
fn the_kernel_is_told_once_that_its_pages_are_out_of_date_however_many_setattrs_follow() {
    let m = Mount::new();
    let count = Arc::new(AtomicUsize::new(0));
    m.fs.set_kernel_cache(Box::new(Invalidated(count.clone())));
    let (node, f) = m.create("f");
    m.write(f, 0, b"mine").unwrap();
    m.close(f).unwrap();
    let f = m.open(node, RW).unwrap();
    m.read(f, 0, 4).unwrap();
    m.server.change_file("f", 0, b"more", None);
    let set_mode = |mode| {
        block_on(m.fs.setattr(&m.cred, node, &with_mode(mode), false)).unwrap();
        count.load(Ordering::Relaxed)
    };
    let first = set_mode(0o600);
    assert!(first > 0);
    m.fs.old_pages(node).unwrap().told();
    assert_eq!((set_mode(0o640), set_mode(0o644)), (first, first));
}

/// The kernel has not truncated its pages, since it did not get the reply. That of a killed stat(2) says nothing of
/// them, and dropping them would have the whole file read again.
#[test]
fn the_kernel_drops_pages_for_a_killed_program_that_has_truncated_the_file_and_for_no_other() {
    let m = Mount::new();
    let (node, f) = m.create("f");
    m.write(f, 0, b"long").unwrap();
    m.close(f).unwrap();
    let f = m.open(node, RW).unwrap();
    m.read(f, 0, 4).unwrap();
    m.fs.attributes_unheard(node);
    assert!(m.fs.old_pages(node).is_none());
    m.truncate(node, 1).unwrap();
    m.fs.change_unheard(node);
    assert!(m.fs.old_pages(node).is_some());
}

/// A `soft` mount gives the call up, and the kernel keeps what it had when it gets the error. Other changes
/// than of an ACL are in tests/system/program/test_killed.py.
#[test]
fn the_kernel_drops_what_an_acl_without_a_reply_may_have_made_wrong() {
    let m = Mount::new();
    let count = Arc::new(AtomicUsize::new(0));
    m.fs.set_kernel_cache(Box::new(Invalidated(count.clone())));
    m.server.plant("f", b"long");
    m.server.with_acls();
    let node = m.node("f");
    let f = m.open(node, RW).unwrap();
    m.read(f, 0, 4).unwrap();
    // An error of the server changes nothing.
    for (fate, drops) in [(Fate::Refused(Status::Io), false), (Fate::Lost, true)] {
        m.fate(Op::Setacl, fate);
        let acl = PosixAcl::of_mode(0o600).to_xattr();
        let name = ACCESS_NAME.as_bytes();
        assert!(block_on(m.fs.setxattr(&m.cred, node, name, &acl, 0)).is_err());
        assert_eq!(count.load(Ordering::Relaxed) > 0, drops);
    }
    assert!(
        m.fs.old_pages(node).is_some(),
        "so the notification is sent"
    );
}

const OLD: u64 = 5000;

/// `deed` with a file of [`OLD`] bytes and its node, whose call of `op` is answered beside a READ that the
/// server has run before another client made the file longer by 100 bytes. Neither reply is known to be
/// the newer one.
fn beside_an_old_read(op: Op, deed: impl FnOnce(&Mount, u64, u64)) -> Mount {
    let m = Mount::new();
    m.server.plant("f", &[1; OLD as usize]);
    let node = m.node("f");
    let file = m.open(node, RW).unwrap();
    m.clock.advance(Duration::from_secs(3600));
    m.server.keep(Some(Op::Read));
    std::thread::scope(|scope| {
        let (read, answered) = channel();
        let m = &m;
        scope.spawn(move || {
            assert_eq!(m.read(file, 0, 10).unwrap(), [1; 10]);
            read.send(()).unwrap();
        });
        until("the READ", || m.server.kept() > 0);
        m.server.change_file("f", OLD, &[2; 100], None);
        let server = Arc::downgrade(&m.server);
        let answered = std::sync::Mutex::new(answered);
        m.server.set_hook(move |of, _| {
            if of == op
                && let Some(server) = server.upgrade()
            {
                server.keep(None);
                let _ = answered
                    .lock()
                    .unwrap()
                    .recv_timeout(Duration::from_secs(60));
            }
            Fate::Done
        });
        deed(m, node, file);
    });
    m.server.clear_hook();
    m.close(file).unwrap();
    m
}

#[test]
fn a_truncation_is_not_left_out_because_of_an_old_size() {
    let m = beside_an_old_read(Op::Access, |m, node, _| {
        block_on(m.fs.setattr(&m.cred, node, &with_size(OLD), true)).unwrap();
        assert_eq!(m.stat(node).unwrap().size, OLD);
    });
    assert_eq!(m.server.contents("f").unwrap().len() as u64, OLD);
}

/// As under a lock, beside a program that reads.
#[test]
fn an_append_does_not_go_over_what_another_has_appended_because_of_an_old_size() {
    let m = beside_an_old_read(Op::Getattr, |m, _, file| {
        let write =
            m.fs.write(file, OLD, b"appended", RW | libc::O_APPEND, || true);
        assert_eq!(block_on(write).unwrap(), 8);
    });
    let contents = m.server.contents("f").unwrap();
    assert_eq!(contents[OLD as usize..][..100], [2; 100]);
    assert_eq!(&contents[OLD as usize + 100..], b"appended");
}

/// As for a program that takes a lock and writes at the end that fstat(2) shows.
#[test]
fn stat_does_not_show_an_old_size_that_came_beside() {
    beside_an_old_read(Op::Getattr, |m, node, _| {
        assert_eq!(m.stat(node).unwrap().size, OLD + 100);
    });
}

/// Each lock that is taken may mean that names beside its file have changed.
#[test]
fn names_beside_a_lock_are_asked_for_and_kept_again_a_minute_after_it() {
    let m = Mount::new();
    m.server.plant("f", b"");
    let kept = || !m.lookup("f").unwrap().entry_ttl.is_zero();
    let locked = || {
        let mut expired = Vec::new();
        let expire = |_, name: &[u8]| expired.push(name.to_vec());
        m.fs.expire_names_beside(m.node("f"), expire);
        expired
    };
    for _ in 0..2 {
        assert!(kept());
        assert_eq!((locked(), kept()), (vec![b"f".to_vec()], false));
        assert_eq!((locked(), kept()), (vec![], false), "the kernel has none");
        let before = m.server.calls(Op::Lookup);
        (0..10).for_each(|_| assert!(!kept()));
        assert_eq!(m.server.calls(Op::Lookup), before, "from memory");
        m.clock.advance(Duration::from_secs(61));
    }
}
