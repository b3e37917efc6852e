//! Two clients of one server that have the same file open: close-to-open, in every order of their
//! calls, of the server's answers, its restarts and its refusals.
//!
//! Every place of the file has one writer, which writes rising values. So a client that opens the
//! file must find in each byte at least the value that was closed before the open began, and no
//! value that nobody has written yet. Both move the end of the file, in turns: one client writes
//! behind it and closes, then the other one truncates the file.

use crate::write_back::{all_comes_back, close, mount, read, server, superuser, write};
use nfsrdma_fs::fs::{Clock, Fs, FsError};
use nfsrdma_memory_server::{Fate, MemoryServer, Op};
use nfsrdma_nfs3::Cred;
use nfsrdma_rdma::Pool;
use nfsrdma_rpcrdma::exec::block_on;
use nfsrdma_xdr::nfs3::{SetAttributes, Status};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use std::sync::Arc;
// The bookkeeping of the test must not use the scheduler.
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const RW: i32 = libc::O_RDWR;
const CLIENTS: usize = 2;
/// Less than a page, so that places of both clients share blocks and WRITEs.
const LEN: u64 = 1500;
const PLACES: usize = 6;
/// Both clients write here, at any time. Until both have closed, either value is possible; then
/// everybody must see the same one.
const SHARED: usize = 3;
/// The place where the end of the file is moved.
const BODY: u64 = PLACES as u64 * LEN;
const SESSIONS: u8 = 3;

/// The phases of the bytes behind [`BODY`], which repeat.
const ABSENT: u64 = 0;
const BEING_WRITTEN: u64 = 1;
const CLOSED: u64 = 2;
const BEING_CUT: u64 = 3;
const PHASES: u64 = 4;

/// The bookkeeping of both clients.
struct Book {
    server: Arc<MemoryServer>,
    clock: Clock,
    /// For each place: the value that was closed, and the last one that was written.
    closed: [AtomicU8; PLACES],
    written: [AtomicU8; PLACES],
    /// The number of rounds of [`PHASES`].
    tail: AtomicU64,
    /// The number of calls that the server is still to refuse, and that it has refused.
    refusals: AtomicU64,
    refused: AtomicU64,
}

/// A mount with a program on it.
struct Client {
    number: usize,
    book: Arc<Book>,
    fs: Arc<Fs<MemoryServer>>,
    pool: Pool,
    cred: Cred,
    node: u64,
    /// The last value written.
    value: u8,
    /// An error was reported: data written since the last close without an error may be missing.
    told: bool,
}

impl Client {
    fn new(number: usize, book: &Arc<Book>) -> Self {
        let cred = superuser();
        let (fs, pool, node) = mount(&book.server, &book.clock, &cred);
        Client {
            number,
            book: book.clone(),
            fs,
            pool,
            cred,
            node,
            value: 0,
            told: false,
        }
    }

    fn owns(&self, place: usize) -> bool {
        place != SHARED && place % CLIENTS == self.number
    }

    fn open(&self) -> u64 {
        match block_on(self.fs.open(&self.cred, self.node, RW)) {
            Ok(opened) => opened.handle,
            Err(error) => panic!("open: {error}"),
        }
    }

    /// Opens the file, reads it completely, and checks it.
    fn open_and_look(&self) -> u64 {
        let value = |of: &[AtomicU8; PLACES]| of.each_ref().map(|value| value.load(SeqCst));
        let (least, tail) = (value(&self.book.closed), self.book.tail.load(SeqCst));
        let handle = self.open();
        let found = read(&self.fs, handle, 0, BODY + 2 * LEN);
        let most = value(&self.book.written);
        assert!(found.len() as u64 >= BODY, "{} bytes", found.len());
        let places = found.chunks(LEN as usize).take(PLACES).enumerate();
        for (place, bytes) in places.filter(|(place, _)| *place != SHARED) {
            let (mut least, most) = (least[place], most[place]);
            if self.owns(place) && !self.told {
                // Own writes are visible whether they are closed or not.
                least = most;
            }
            let fits = bytes.iter().all(|byte| (least..=most).contains(byte));
            let shown = (bytes.iter().min(), bytes.iter().max());
            assert!(
                fits,
                "client {}, place {place}: {shown:?}, not {least} to {most}",
                self.number
            );
        }
        if self.book.tail.load(SeqCst) == tail {
            match tail % PHASES {
                ABSENT => assert_eq!(found.len() as u64, BODY, "cut off"),
                CLOSED => {
                    let shown = &found[BODY as usize..];
                    let with = (tail / PHASES + 1) as u8;
                    assert!(shown == [with; LEN as usize], "{} bytes", shown.len());
                }
                _ => {}
            }
        }
        handle
    }

    fn write(&mut self, handle: u64) {
        let own = (0..PLACES).filter(|place| self.owns(*place));
        let own: Vec<usize> = own.chain([SHARED, SHARED]).collect();
        let place = own[thread_rng().gen_range(0..own.len())];
        self.value += 1;
        self.book.written[place].store(self.value, SeqCst);
        let bytes = [self.value; LEN as usize];
        let result = write(&self.fs, handle, place as u64 * LEN, &bytes);
        self.hear_failure(result);
    }

    fn hear_failure(&mut self, result: Result<(), FsError>) {
        if let Err(error) = result {
            let refused = self.book.refused.load(SeqCst);
            assert!(refused > 0, "{error}, and nothing was refused");
            self.told = true;
        }
    }

    /// Records the result of fsync or close.
    fn hear(&mut self, result: Result<(), FsError>) {
        self.hear_failure(result);
        if self.told {
            return;
        }
        for place in (0..PLACES).filter(|place| self.owns(*place)) {
            let written = self.book.written[place].load(SeqCst);
            self.book.closed[place].store(written, SeqCst);
        }
    }

    /// Writes behind the end, or truncates the file, if it is this client's turn.
    fn move_end(&mut self, handle: u64) {
        let tail = self.book.tail.load(SeqCst);
        let book = self.book.clone();
        let next = |by: u64| book.tail.store(tail + by, SeqCst);
        match (self.number, tail % PHASES) {
            (1, ABSENT) => {
                next(BEING_WRITTEN);
                let with = (tail / PHASES + 1) as u8;
                let result = write(&self.fs, handle, BODY, &[with; LEN as usize]);
                self.hear_failure(result);
                let result = block_on(self.fs.fsync(handle, || true));
                self.hear(result);
                if !self.told {
                    next(CLOSED);
                }
            }
            (0, CLOSED) => {
                next(BEING_CUT - CLOSED);
                let new = SetAttributes {
                    size: Some(BODY),
                    ..SetAttributes::default()
                };
                if let Err(error) = block_on(self.fs.setattr(&self.cred, self.node, &new, false)) {
                    panic!("ftruncate: {error}");
                }
                next(PHASES - CLOSED);
            }
            _ => {}
        }
    }

    fn run(mut self) -> Self {
        for _ in 0..SESSIONS {
            let handle = self.open_and_look();
            for _ in 0..2 {
                match thread_rng().gen_range(0..6) {
                    0 => {
                        let result = block_on(self.fs.fsync(handle, || true));
                        self.hear(result);
                    }
                    1 => self.move_end(handle),
                    2 => drop(read(&self.fs, handle, 0, BODY)),
                    _ => self.write(handle),
                }
            }
            let result = close(&self.fs, handle);
            self.hear(result);
        }
        self
    }
}

fn run(refusals: u64, restarts: u64) {
    let server = server();
    server.plant("f", &[0; BODY as usize]);
    let book = Arc::new(Book {
        server: server.clone(),
        clock: Clock::manual(),
        closed: Default::default(),
        written: Default::default(),
        tail: AtomicU64::new(ABSENT),
        refusals: AtomicU64::new(refusals),
        refused: AtomicU64::new(0),
    });
    let hook = Arc::downgrade(&book);
    server.set_hook(move |op, _| {
        let Some(book) = hook.upgrade() else {
            return Fate::Done;
        };
        let concerned = matches!(op, Op::Write | Op::Commit);
        if concerned && book.refusals.load(SeqCst) > 0 && thread_rng().gen_bool(0.3) {
            book.refusals.fetch_sub(1, SeqCst);
            book.refused.fetch_add(1, SeqCst);
            return Fate::Refused(Status::NoSpc);
        }
        Fate::Done
    });
    let clients: Vec<Client> = (0..CLIENTS).map(|n| Client::new(n, &book)).collect();
    let mounts: Vec<_> = clients.iter().map(|client| client.fs.clone()).collect();
    let threads: Vec<_> = clients
        .into_iter()
        .map(|client| thread::spawn(move || client.run()))
        .collect();
    // Background activity.
    let unasked = book.clone();
    let other = thread::spawn(move || {
        let mut restarts = restarts;
        for _ in 0..3 {
            if restarts > 0 && thread_rng().gen_bool(0.5) {
                restarts -= 1;
                unasked.server.restart();
            }
            unasked.clock.advance(Duration::from_secs(6));
            mounts.iter().for_each(|fs| fs.tick());
            thread::yield_now();
        }
    });
    let clients: Vec<Client> = threads
        .into_iter()
        .map(|thread| match thread.join() {
            Ok(client) => client,
            Err(_) => panic!("a client failed"),
        })
        .collect();
    assert!(other.join().is_ok());
    // All files are closed: everybody sees the server's bytes, also after a last restart.
    let restarted = refusals == 0 && restarts > 0;
    if restarted {
        server.restart();
    }
    for client in &clients {
        let handle = client.open_and_look();
        let shown = read(&client.fs, handle, 0, BODY + 2 * LEN);
        assert!(close(&client.fs, handle).is_ok() || client.told);
        let told = clients.iter().any(|client| client.told);
        let there = server.contents("f").unwrap_or_default();
        assert!(told || shown == there, "client {}", client.number);
    }
    for client in clients {
        let lost = block_on(client.fs.shutdown());
        let refused = book.refused.load(SeqCst);
        assert!(lost.is_empty() || refused > 0, "lost: {lost:?}");
        let pool = client.pool.clone();
        drop(client);
        all_comes_back(&pool);
    }
}

/// A client that opens after another's close sees its data, own writes are not undone, and
/// truncated data does not come back, whatever the server loses meanwhile.
pub fn two_clients_see_what_was_closed() {
    run(0, 2);
}

/// The same with refused WRITEs and COMMITs: data that was closed without an error stays.
pub fn what_was_closed_stays_where_others_are_refused() {
    run(2, 1);
}
