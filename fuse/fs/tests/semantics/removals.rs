//! Files that lose a name, by REMOVE or RENAME, while they are open or are being opened.

use crate::support::*;
use nfsrdma_fs::fs::ROOT;
use nfsrdma_memory_server::{Fate, MemoryServer, Op};
use nfsrdma_rpcrdma::exec::block_on;
use nfsrdma_xdr::nfs3::SetAttributes;
use std::sync::{Mutex, mpsc};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Operations that do not hang take less than this.
const HANG: Duration = Duration::from_secs(60);

fn until(what: &str, over: impl Fn() -> bool) {
    let begun = Instant::now();
    while !over() {
        assert!(begun.elapsed() < HANG, "never: {what}");
        thread::yield_now();
    }
}

/// The server puts off calls of `op`, until the result is dropped; then `fate` is theirs.
fn put_off(server: &MemoryServer, op: Op, fate: Fate) -> mpsc::Sender<()> {
    let (go, gate) = mpsc::channel();
    let gate = Mutex::new(gate);
    server.set_hook(move |of, _| {
        if of != op {
            return Fate::Done;
        }
        let _ = gate.lock().unwrap().recv();
        fate
    });
    go
}

/// The results of `threads`, which must not wait for what was put off.
fn end<T>(go: mpsc::Sender<()>, threads: Vec<ScopedJoinHandle<'_, T>>) -> Vec<T> {
    let begun = Instant::now();
    while threads.iter().any(|of| !of.is_finished()) && begun.elapsed() < HANG {
        thread::yield_now();
    }
    let hang = threads.iter().filter(|of| !of.is_finished()).count();
    drop(go);
    let results = threads.into_iter().map(|of| of.join().unwrap()).collect();
    assert_eq!(hang, 0, "operations wait for the removal");
    results
}

/// A file with the names `a` and `b`, of which the kernel knows `b`; and its node.
fn two_names(m: &Mount) -> u64 {
    m.server.plant("a", b"text");
    let node = m.node("a");
    let entry = block_on(m.fs.link(&m.cred, node, ROOT, b"b")).unwrap();
    assert_eq!(entry.attributes.nlink, 2);
    node
}

/// The file was unlinked while it was open, and the last close has its hidden name removed.
#[test]
fn a_hidden_name_whose_removal_is_put_off_keeps_nobody_from_the_others() {
    let m = Mount::new();
    let node = two_names(&m);
    let file = m.open(node, RW).unwrap();
    m.unlink("a").unwrap();
    let go = put_off(&m.server, Op::Remove, Fate::Done);
    thread::scope(|scope| {
        let closing = scope.spawn(|| m.close(file));
        until("the REMOVE", || m.server.calls(Op::Remove) > 0);
        m.clock.advance(Duration::from_secs(3600));
        let links = |name: &str| m.lookup(name).map(|entry| entry.attributes.nlink);
        let chmod = SetAttributes {
            mode: Some(0o640),
            ..SetAttributes::default()
        };
        let m = &m;
        let others = vec![
            scope.spawn(move || links("b").unwrap()),
            scope.spawn(move || m.stat(node).unwrap().nlink),
            scope.spawn(move || {
                let set = m.fs.setattr(&m.cred, node, &chmod, false);
                block_on(set).unwrap().0.nlink
            }),
            scope.spawn(move || {
                let file = m.open(node, RW).unwrap();
                assert_eq!(m.read(file, 0, 9).unwrap(), b"text");
                m.close(file).unwrap();
                1
            }),
        ];
        assert_eq!(end(go, others), [1; 4]);
        closing.join().unwrap().unwrap();
    });
    assert_eq!(m.stat(node).unwrap().nlink, 1);
    assert_eq!(m.server.names(""), ["b"]);
}
