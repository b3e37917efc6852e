//! Requests that come again because the process that got them first has died before it answered. Its
//! successor knows nothing but the number of the request.

#[path = "../../../../client/nfs3/tests/common/mod.rs"]
mod remote;

use super::support::{Mount, RW, cred, errno, small};
use nfsrdma_fs::fs::{Clock, Entry, Found, Fs, FsError, FsResult, ROOT};
use nfsrdma_nfs3::{Mounted, Nfs3Client};
use nfsrdma_rdma::Pool;
use nfsrdma_record::Table;
use nfsrdma_rpcrdma::abandon::Caller;
use nfsrdma_rpcrdma::exec::block_on;
use remote::Server;
use std::future::Future;
use std::sync::Arc;
use tokio::runtime::Runtime;

const EXCLUSIVE: i32 = RW | libc::O_CREAT | libc::O_EXCL;

struct Client {
    runtime: Runtime,
    mounted: Mounted,
    pool: Pool,
    server: Server,
}

type Files = Arc<Fs<Nfs3Client>>;

impl Client {
    fn new() -> Self {
        let (runtime, server) = (Runtime::new().unwrap(), Server::plain());
        server.memory.change_file("", 0, &[], Some(0o777));
        let (mounted, pool) = runtime.block_on(server.mount(&remote::options()));
        Client {
            runtime,
            mounted,
            pool,
            server,
        }
    }

    /// A process that serves the mount. It has a file open if `open`.
    fn process(&self, open: bool) -> Files {
        let client = Arc::new(self.mounted.client.clone());
        let (clock, records) = (Clock::default(), Arc::new(Table::anonymous()));
        let fs = Fs::new(
            client,
            self.mounted.root,
            self.pool.clone(),
            small(),
            clock,
            records,
        );
        if open {
            self.server.plant(b"open", b"");
            block_on(fs.open(&cred(0), node(&fs, "open"), RW)).unwrap();
        }
        fs
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.server.memory.names("");
        names.retain(|name| name != "open");
        names
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.runtime.block_on(self.mounted.unmount());
    }
}

fn lookup(fs: &Files, name: &str) -> Option<Entry> {
    match block_on(fs.lookup(&cred(0), ROOT, name.as_bytes())).unwrap() {
        Found::Is(entry) => Some(entry),
        Found::Absent(_) => None,
    }
}

fn node(fs: &Files, name: &str) -> u64 {
    lookup(fs, name).unwrap().nodeid
}

/// The errno of an operation of the request `number`, which comes for the first time or again.
fn asked<T>(number: u64, resent: bool, operation: impl Future<Output = FsResult<T>>) -> i32 {
    errno(block_on(Caller::of(number, resent).run(operation)))
}

/// The program gets the answer of the process that died. Only the request that comes again gets it. Other
/// requests are in tests/system/program/test_resent.py.
#[test]
fn what_was_carried_out_succeeds_again() {
    for open in [false, true] {
        let client = Client::new();
        client.server.plant(b"g", b"2");
        let who = &cred(7);
        macro_rules! once {
            ($errno:ident, $fs:ident => $operation:expr) => {
                let $fs = client.process(open);
                assert_eq!(asked(2, false, $operation), 0);
                let names = client.names();
                let $fs = client.process(open);
                assert_eq!(asked(2, true, $operation), 0, "{}", stringify!($operation));
                let $fs = client.process(open);
                assert_eq!(asked(4, false, $operation), libc::$errno);
                assert_eq!(client.names(), names);
            };
        }
        once!(ENOENT, fs => fs.unlink(who, ROOT, b"g"));
        once!(EEXIST, fs => fs.mknod(who, ROOT, b"r", 0o600, 0));
        once!(EEXIST, fs => fs.create(who, ROOT, b"x", 0o600, EXCLUSIVE));
        // Its caller may not open such a file if it is not new.
        once!(EACCES, fs => async {
            let created = fs.create(who, ROOT, b"y", 0o400, RW | libc::O_CREAT).await;
            match created.as_ref().map_err(FsError::errno) {
                // The kernel looks the name up, and sends an OPEN.
                Err(libc::ESTALE) => fs.open(who, node(&fs, "y"), RW).await.map(drop),
                _ => created.map(drop),
            }
        });
    }
}

/// The process died before it sent anything.
#[test]
fn what_was_not_carried_out_is_done() {
    for open in [false, true] {
        let client = Client::new();
        let (who, memory) = (&cred(7), &client.server.memory);
        client.server.plant(b"f", b"1");
        client.server.plant(b"g", b"2");
        let fs = client.process(open);
        assert_eq!(
            asked(2, true, fs.create(who, ROOT, b"x", 0o600, EXCLUSIVE)),
            0
        );
        // Here it is closed. The kernel knows what is to lose a name.
        let fs = client.process(open);
        node(&fs, "x");
        node(&fs, "f");
        assert_eq!(asked(4, true, fs.unlink(who, ROOT, b"x")), 0);
        assert_eq!(
            asked(6, true, fs.rename(who, (ROOT, b"f"), (ROOT, b"g"), 0)),
            0
        );
        assert_eq!(asked(8, true, fs.link(who, node(&fs, "g"), ROOT, b"h")), 0);
        assert_eq!(client.names(), ["g", "h"]);
        assert_eq!(memory.contents("g").unwrap(), b"1");
        assert_eq!(asked(10, true, fs.mkdir(who, ROOT, b"d", 0o700)), 0);
        node(&fs, "d");
        assert_eq!(asked(12, true, fs.rmdir(who, ROOT, b"d")), 0);
        assert_eq!(client.names(), ["g", "h"]);
    }
}

/// A lock file of the same user on another client, and a directory that somebody else has made.
#[test]
fn what_others_have_made_exists() {
    let client = Client::new();
    let (who, other) = (&cred(7), client.process(false));
    let fs = client.process(false);
    assert_eq!(
        asked(3, false, other.create(who, ROOT, b"lock", 0o644, EXCLUSIVE)),
        0
    );
    let lock = fs.create(who, ROOT, b"lock", 0o644, EXCLUSIVE);
    assert_eq!(asked(2, true, lock), libc::EEXIST);
    assert_eq!(errno(block_on(other.mkdir(&cred(8), ROOT, b"d", 0o755))), 0);
    assert_eq!(
        asked(4, true, fs.mkdir(who, ROOT, b"d", 0o755)),
        libc::EEXIST
    );
    let rename = fs.rename(who, (ROOT, b"none"), (ROOT, b"nothing"), 0);
    assert_eq!(asked(6, true, rename), libc::ENOENT);
}

/// Others have made a name again after it was removed or renamed.
#[test]
fn what_others_have_made_stays() {
    let client = Client::new();
    let (who, other) = (&cred(7), client.process(false));
    for name in [&b"f"[..], b"g", b"new"] {
        client.server.plant(name, b"theirs");
    }
    assert_eq!(errno(block_on(other.mkdir(&cred(8), ROOT, b"d", 0o777))), 0);
    let fs = client.process(false);
    assert_eq!(asked(2, true, fs.unlink(who, ROOT, b"f")), 0);
    assert_eq!(asked(4, true, fs.rmdir(who, ROOT, b"d")), 0);
    let rename = |to: &'static [u8]| fs.rename(who, (ROOT, b"g"), (ROOT, to), 0);
    assert_eq!(asked(6, true, rename(b"new")), 0);
    assert_eq!(asked(8, true, rename(b"none")), libc::ENOENT);
    assert_eq!(client.names(), ["f", "g", "new", "d"]);
}

/// The process died after it had opened a file or directory, and before it told the kernel.
#[test]
fn what_was_opened_for_nobody_is_closed() {
    let m = Mount::new();
    m.server.plant("f", b"");
    let (fs, f, who) = (&m.fs, m.node("f"), &m.cred);
    let open = |unique, resent| {
        let file = fs.caller(unique, resent).run(async {
            let handle = fs.open(who, f, RW).await.unwrap().handle;
            fs.close_earlier(handle).await;
            handle
        });
        let dir = fs.caller(unique + 100, resent).run(async {
            let handle = fs.opendir(who, ROOT).await.unwrap().handle;
            fs.close_earlier(handle).await;
            handle
        });
        [block_on(file), block_on(dir)]
    };
    let is_open = |[file, dir]: [u64; 2]| {
        let is_open = fs.opener(file).is_some();
        assert_eq!(block_on(fs.readdir(dir, 0)).is_ok(), is_open);
        is_open
    };
    let (other, earlier) = (open(2, false), open(4, false));
    let later = open(4, true);
    assert!(is_open(other) && !is_open(earlier) && is_open(later));
    // The number alone does not say that a request comes again.
    assert!(is_open(open(4, false)) && is_open(later));
}
