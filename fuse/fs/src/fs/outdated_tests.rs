//! One thread has heard that somebody else has changed a file, and has dropped nothing yet.

use super::super::Fs;
use super::super::inode::{Outcome, Stamp};
use super::super::mounted::{RW, cred, with_file};
use super::*;
use nfsrdma_memory_server::{MemoryServer, Op};
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_rpcrdma::exec::block_on;
use std::sync::Arc;

const PAGE: usize = 4096;

struct Mount {
    fs: Arc<Fs<MemoryServer>>,
    server: Arc<MemoryServer>,
    cred: Cred,
    inode: Arc<Inode>,
}

impl Mount {
    /// A mount of a server with this file.
    fn with(contents: &[u8]) -> Self {
        let (server, fs, node) = with_file(contents);
        let inode = fs.inode(node).unwrap();
        Mount {
            fs,
            server,
            cred: cred(0),
            inode,
        }
    }

    fn open(&self) -> u64 {
        let opened = self.fs.open(&self.cred, self.inode.nodeid, RW);
        block_on(opened).unwrap().handle
    }

    fn read(&self, handle: u64, offset: u64, len: usize) -> Vec<u8> {
        let data = match self.fs.read_cached(handle, offset, len as u32, RW) {
            Some(data) => data,
            None => block_on(self.fs.read(handle, offset, len as u32, RW)).unwrap(),
        };
        data.iter().flat_map(|part| part.to_vec()).collect()
    }

    fn write(&self, handle: u64, offset: u64, data: &[u8]) {
        let done = self.fs.write_cached(handle, offset, data, RW);
        assert_eq!(done.unwrap().unwrap() as usize, data.len());
    }

    /// A thread applies the attributes in a reply, and gets no further.
    fn hears_of_a_change(&self) -> Outcome {
        let (fs, stamp) = (&self.fs, Stamp::now());
        let call = self.server.getattr(&self.cred, &self.inode.handle);
        let attributes = block_on(call).unwrap();
        let times = fs.times(self.inode.kind);
        let mut state = self.inode.state.lock();
        let outcome = state.apply(stamp, &attributes, fs.now(), times);
        assert!(outcome.foreign);
        outcome
    }
}

#[test]
fn an_open_beside_the_reply_that_shows_a_change_reads_the_new_data() {
    let m = Mount::with(&[b'o'; PAGE]);
    let f = m.open();
    // The kernel has not taken the rest of the page.
    assert!(m.read(f, 0, 1) == [b'o']);
    m.server.change_file("f", 0, &[b'n'; PAGE], None);
    let outcome = m.hears_of_a_change();
    let opened = block_on(m.fs.open(&m.cred, m.inode.nodeid, RW)).unwrap();
    assert!(m.read(opened.handle, 1, 1) == [b'n']);
    let reads = m.server.calls(Op::Read);
    m.fs.follow(&m.inode, outcome);
    assert!(m.read(opened.handle, 2, PAGE - 2) == [b'n'; PAGE - 2]);
    assert_eq!(m.server.calls(Op::Read), reads, "read once");
}

/// As one that waited for the READ of another program.
#[test]
fn a_read_that_waited_beside_the_reply_that_shows_a_change_returns_the_new_data() {
    let m = Mount::with(&[b'o'; PAGE]);
    let f = m.open();
    // The kernel has not taken the rest of the page.
    assert!(m.read(f, 0, 1) == [b'o']);
    m.server.change_file("f", 0, &[b'n'; PAGE], None);
    let _ = m.hears_of_a_change();
    let data = block_on(m.fs.read(f, 1, PAGE as u32 - 1, RW)).unwrap();
    assert!(data[0][..] == [b'n'; PAGE - 1]);
}

#[test]
fn bytes_that_somebody_else_has_changed_are_not_written_along_beside_the_reply_that_shows_it() {
    const PAGES: usize = 100;
    let m = Mount::with(&[b'o'; PAGES * PAGE]);
    let f = m.open();
    for page in 0..PAGES {
        assert!(m.read(f, ((page + 1) * PAGE - 1) as u64, 1) == [b'o']);
        m.write(f, (page * PAGE) as u64, b"mine");
    }
    m.server.change_file("f", 0, &[b'n'; PAGES * PAGE], None);
    let _ = m.hears_of_a_change();
    block_on(m.fs.fsync(f, || true)).unwrap();
    let mut expected = [b'n'; PAGES * PAGE];
    for page in 0..PAGES {
        expected[page * PAGE..][..4].copy_from_slice(b"mine");
    }
    assert!(m.server.contents("f").unwrap() == expected);
}

#[test]
fn data_that_was_sent_and_overwritten_is_not_shown_beside_the_reply_that_shows_it() {
    let m = Mount::with(b"");
    m.server.set_never_stable();
    let f = m.open();
    let len = m.fs.limits().wtmax as usize;
    m.write(f, 0, &vec![b'm'; len]);
    assert_eq!(m.server.calls(Op::Write), 1, "it was sent");
    m.server.change_file("f", 0, &[b'n'; PAGE], None);
    let _ = m.hears_of_a_change();
    let f = m.open();
    assert!(m.read(f, 0, PAGE) == [b'n'; PAGE]);
}
