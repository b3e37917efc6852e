//! Opens: they show what others wrote before they closed the file, and the file stays while it is
//! open.

use super::support::*;
use nfsrdma_fs::fs::{FsConfig, LookupCache, Opened, ROOT};
use nfsrdma_memory_server::{Fate, MemoryServer, Op, PreOp};
use nfsrdma_nfs3::{Limits, Nfs3, Transport};
use nfsrdma_rpcrdma::exec::block_on;
use std::sync::Arc;
use std::thread;

const PAGE: usize = 4096;
const WRITE: usize = 64 << 10;

/// A server that accepts WRITEs of up to 64 KiB.
fn server(pre_op: PreOp) -> Arc<MemoryServer> {
    let limits = Limits {
        wtmax: WRITE as u32,
        ..MemoryServer::new().limits()
    };
    let server = MemoryServer::with(limits, 0);
    server.set_pre_op(pre_op);
    server
}

/// Renames the file `x` to `y` at the server itself.
fn rename_at_server(server: &MemoryServer) {
    let top = server.root();
    block_on(server.rename(&cred(0), &top, b"x", &top, b"y")).unwrap();
}

/// open(2) with O_CREAT of a name that the kernel believes not to exist.
fn create_y(m: &Mount) -> Opened {
    let flags = RW | libc::O_CREAT;
    let (entry, opened) = block_on(m.fs.create(&m.cred, ROOT, b"y", 0o644, flags)).unwrap();
    m.fs.forget(entry.nodeid, 1);
    opened
}

/// Somebody else writes to the file while several WRITEs of this mount are under way, and renames
/// it to a name that this mount believes not to exist.
#[test]
fn what_another_closed_is_seen_by_who_meant_to_create_the_file() {
    for pre_op in [PreOp::Atomic, PreOp::Never, PreOp::NotAtomic] {
        for close in [true, false] {
            let server = server(pre_op);
            server.set_always_stable();
            server.plant("x", &[b'o'; 2 * PAGE]);
            let m = Mount::of(&server, small());
            assert!(m.lookup("y").is_none());
            let file = m.open(m.node("x"), RW).unwrap();
            assert_eq!(m.read(file, 0, 2).unwrap(), b"oo");
            let other = Arc::downgrade(&server);
            server.set_hook(move |op, before| {
                if (op, before) == (Op::Write, 1)
                    && let Some(server) = other.upgrade()
                {
                    server.change_file("x", 0, b"BB", None);
                }
                Fate::Done
            });
            server.keep(Some(Op::Write));
            m.write(file, PAGE as u64, &[b'a'; 2 * WRITE]).unwrap();
            assert!(server.calls(Op::Write) > 1, "not at the same time");
            server.keep(None);
            server.clear_hook();
            if close {
                m.close(file).unwrap();
            }
            rename_at_server(&server);
            let opened = create_y(&m);
            let context = format!("{pre_op:?}, closed: {close}");
            assert_eq!(m.read(opened.handle, 0, 2).unwrap(), b"BB", "{context}");
            m.close(opened.handle).unwrap();
        }
    }
}

/// This mount keeps unstable data until it is committed, although the server has other data.
#[test]
fn what_another_wrote_over_unstable_data_is_seen_by_who_meant_to_create_the_file() {
    for pre_op in [PreOp::Atomic, PreOp::Never, PreOp::NotAtomic] {
        let server = server(pre_op);
        server.plant("x", b"");
        let m = Mount::of(&server, small());
        assert!(m.lookup("y").is_none());
        let file = m.open(m.node("x"), RW).unwrap();
        m.write(file, 0, &[b'a'; 2 * WRITE]).unwrap();
        assert_eq!(
            server.contents("x").unwrap().len(),
            2 * WRITE,
            "sent at once"
        );
        server.change_file("x", 0, b"BB", None);
        rename_at_server(&server);
        let opened = create_y(&m);
        assert_eq!(m.read(opened.handle, 0, 3).unwrap(), b"BBa", "{pre_op:?}");
        m.close(opened.handle).unwrap();
        m.close(file).unwrap();
    }
}

/// As with OPEN, an UNLINK meanwhile has to hide the file.
#[test]
fn a_file_that_was_to_be_created_counts_as_open_while_the_server_is_asked() {
    let m = Mount::new();
    assert!(m.lookup("y").is_none());
    m.server.plant("y", b"text");
    m.server.keep(Some(Op::Access));
    let opened = thread::scope(|scope| {
        let opening = scope.spawn(|| create_y(&m));
        until("the ACCESS", || m.server.calls(Op::Access) > 0);
        m.unlink("y").unwrap();
        m.server.keep(None);
        opening.join().unwrap()
    });
    assert_eq!(m.read(opened.handle, 0, 100).unwrap(), b"text");
    m.close(opened.handle).unwrap();
    assert!(m.server.names("").is_empty());
}

/// A name is cached, and the kernel has forgotten its file. Then the name is looked up at the
/// server while this mount changes the directory, so that the answer is not cached, and the file is
/// opened.
fn opened_beside_a_remembered_name(m: &Mount) -> u64 {
    m.server.plant("a", b"contents");
    m.server.plant("z", b"");
    let node = m.node("a");
    m.fs.forget(node, 1);
    m.server.keep(Some(Op::Remove));
    let node = thread::scope(|scope| {
        let removing = scope.spawn(|| m.unlink("z").unwrap());
        until("the REMOVE", || m.server.calls(Op::Remove) > 0);
        let node = m.node("a");
        m.server.keep(None);
        removing.join().unwrap();
        node
    });
    m.open(node, RW).unwrap()
}

fn no_names() -> FsConfig {
    FsConfig {
        lookup_cache: LookupCache::None,
        ..small()
    }
}

#[test]
fn a_file_looked_up_beside_a_change_stays_when_it_is_unlinked_while_open() {
    let m = Mount::of(&MemoryServer::new(), no_names());
    let file = opened_beside_a_remembered_name(&m);
    m.unlink("a").unwrap();
    assert_eq!(m.read(file, 0, 100).unwrap(), b"contents");
    m.write(file, 8, b" and more").unwrap();
    m.close(file).unwrap();
    assert!(m.server.names("").is_empty());
}

#[test]
fn a_file_looked_up_beside_a_change_stays_when_another_takes_its_name() {
    let m = Mount::of(&MemoryServer::new(), no_names());
    let file = opened_beside_a_remembered_name(&m);
    m.server.plant("b", b"new");
    m.rename("b", "a").unwrap();
    assert_eq!(m.read(file, 0, 100).unwrap(), b"contents");
    m.close(file).unwrap();
    assert_eq!(m.server.names(""), ["a"]);
    assert_eq!(m.server.contents("a").unwrap(), b"new");
}

/// Who has seen a hidden name cannot make the next ones, at which the removal would fail.
#[test]
fn hidden_names_cannot_be_told_in_advance() {
    let m = Mount::new();
    let files = ["a", "b"].map(|name| {
        m.server.plant(name, b"");
        (name, m.open(m.node(name), RW).unwrap())
    });
    m.unlink("a").unwrap();
    let hidden = m.server.names("");
    let hidden = hidden.iter().find(|name| name.starts_with(".nfs")).unwrap();
    // They were a product, which can be divided again.
    let factor = 0x9e37_79b9_7f4a_7c15u64;
    let inverse = (0..6).fold(factor, |inverse, _| {
        inverse.wrapping_mul(2u64.wrapping_sub(factor.wrapping_mul(inverse)))
    });
    let pid = u64::from(std::process::id());
    let number = u64::from_str_radix(&hidden[20..], 16).unwrap();
    let number = number.wrapping_sub(pid).wrapping_mul(inverse);
    let fileid = m.server.fileid("b").unwrap();
    for next in 1..=127 {
        let next = (number ^ next).wrapping_mul(factor).wrapping_add(pid);
        m.server
            .plant(&format!(".nfs{fileid:016x}{next:016x}"), b"");
    }
    m.unlink("b").unwrap();
    for (_, file) in files {
        m.close(file).unwrap();
    }
}
