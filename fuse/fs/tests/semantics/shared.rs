//! Several programs that write to one file in all ways at once, each to bytes of its own: by write(2),
//! past the cache, and by mappings; beside truncations, changes of the mode, restarts of the server,
//! and another client's writes.

use super::support::*;
use nfsrdma_fs::fs::FsConfig;
use nfsrdma_memory_server::{MemoryServer, Op, PreOp};
use nfsrdma_nfs3::Limits;
use nfsrdma_rpcrdma::exec::{self, block_on};
use nfsrdma_xdr::nfs3::SetAttributes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const PAGE: u64 = 4096;
/// The pieces of the first part of the file are of all programs in turn.
const PIECE: u64 = 700;
const MIXED: u64 = 96 * PAGE;
/// Of the second part, whole pages are.
const OWN_END: u64 = 128 * PAGE;
/// The third part is another client's.
const END: u64 = 144 * PAGE;
const PROGRAMS: u64 = 4;
const DIRECT: i32 = RW | libc::O_DIRECT;

struct Program {
    m: Arc<Mount>,
    number: u64,
    handle: u64,
    random: fastrand::Rng,
    /// What each byte of the file has to be, if it is this program's.
    own: Vec<u8>,
}

impl Program {
    fn piece(&mut self) -> (u64, u64) {
        if self.random.bool() {
            let last = MIXED / PIECE / PROGRAMS;
            let at = (self.random.u64(..last) * PROGRAMS + self.number) * PIECE;
            let from = self.random.u64(..PIECE / 2);
            return (at + from, self.random.u64(1..=PIECE - from));
        }
        let pages = (OWN_END - MIXED) / PAGE / PROGRAMS;
        let page = MIXED / PAGE + self.random.u64(..pages) * PROGRAMS + self.number;
        (page * PAGE, PAGE)
    }

    fn is_page(at: u64) -> bool {
        at >= MIXED
    }

    fn put(&mut self, flags: i32) {
        let (at, len) = self.piece();
        let with = self.random.u8(1..);
        let bytes: Vec<u8> = (0..len).map(|i| with.wrapping_add(i as u8)).collect();
        let range = at as usize..(at + len) as usize;
        let fs = &self.m.fs;
        let mapped = flags == 0;
        if mapped && !Self::is_page(at) {
            return;
        }
        let done = match (mapped, flags & libc::O_DIRECT) {
            (true, _) => block_on(fs.write_mapped(self.handle, at, &bytes)),
            (false, 0) => match fs.write_cached(self.handle, at, &bytes, flags) {
                Some(done) => done,
                None => block_on(fs.write(self.handle, at, &bytes, flags, || true)),
            },
            _ => block_on(fs.write(self.handle, at, &bytes, flags, || true)),
        };
        assert_eq!(done.unwrap() as u64, len);
        self.own[range].copy_from_slice(&bytes);
    }

    fn look(&mut self, flags: i32) {
        let (at, len) = self.piece();
        let fs = &self.m.fs;
        let found = match fs.read_cached(self.handle, at, len as u32, flags) {
            Some(found) => found,
            None => block_on(fs.read(self.handle, at, len as u32, flags)).unwrap(),
        };
        let found: Vec<u8> = found.iter().flat_map(|part| part.to_vec()).collect();
        let own = &self.own[at as usize..(at + len) as usize];
        assert!(
            found == own,
            "program {} reads other bytes at {at}, {len}, flags {flags:o}, in page {}",
            self.number,
            at / PAGE
        );
    }

    fn check(&self, what: &str) {
        let durable = self.m.server.durable("f").unwrap();
        for at in 0..OWN_END {
            let owner = match Self::is_page(at) {
                true => at / PAGE % PROGRAMS,
                false => at / PIECE % PROGRAMS,
            };
            let last = MIXED / PIECE / PROGRAMS * PROGRAMS * PIECE;
            if owner == self.number && !(last..MIXED).contains(&at) {
                assert!(
                    durable[at as usize] == self.own[at as usize],
                    "{what}: byte {at} of program {}",
                    self.number
                );
            }
        }
    }

    fn run(mut self, steps: u32) {
        for _ in 0..steps {
            match self.random.u32(..40) {
                0..16 => self.put(RW),
                16..20 => self.put(DIRECT),
                20..24 => self.put(0),
                24..34 => self.look(RW),
                34..37 => self.look(DIRECT),
                37 => {
                    self.m.stat(self.m.node("f")).unwrap();
                }
                38 => {
                    self.m.fsync(self.handle).unwrap();
                    self.check("after fsync");
                }
                _ => {
                    let node = self.m.node("f");
                    self.m.close(self.handle).unwrap();
                    self.check("after close");
                    self.handle = self.m.open(node, RW).unwrap();
                }
            }
        }
        self.m.close(self.handle).unwrap();
        self.check("at the end");
    }
}

fn run(seed: u64, steps: u32) {
    let limits = Limits {
        rtmax: 32768,
        wtmax: 16384,
        dtpref: 8192,
        max_file_size: 1 << 40,
    };
    let mut random = fastrand::Rng::with_seed(seed);
    let server = MemoryServer::with(limits, 3);
    server.set_pre_op(match random.u32(..3) {
        0 => PreOp::Never,
        1 => PreOp::NotAtomic,
        _ => PreOp::Atomic,
    });
    server.plant("f", &vec![0; END as usize]);
    server.change_file("f", 0, &[0], Some(0o666));
    let config = FsConfig {
        cache_bytes: 256 << 10,
        dirty_bytes: 192 << 10,
        dirty_file_bytes: 160 << 10,
        readahead_bytes: 64 << 10,
        ..FsConfig::default()
    };
    let m = Arc::new(Mount::of(&server, config));
    let node = m.node("f");
    let over = Arc::new(AtomicBool::new(false));
    let programs: Vec<_> = (0..PROGRAMS)
        .map(|number| Program {
            m: m.clone(),
            number,
            handle: m.open(node, RW).unwrap(),
            random: fastrand::Rng::with_seed(random.u64(..)),
            own: vec![0; END as usize],
        })
        .collect();
    let others = {
        let (m, over) = (m.clone(), over.clone());
        let (restarts, foreign, sizes) = (random.bool(), random.bool(), random.bool());
        std::thread::spawn(move || {
            let mut last = std::collections::BTreeMap::new();
            while !over.load(Ordering::Relaxed) {
                match random.u32(..8) {
                    0 if restarts => m.server.restart(),
                    1 if foreign => {
                        let page = random.u64(OWN_END / PAGE..END / PAGE);
                        let with = random.u8(..);
                        m.server
                            .change_file("f", page * PAGE, &[with; PAGE as usize], None);
                        last.insert(page, with);
                    }
                    2 if sizes => {
                        m.truncate(node, END + random.u64(..10_000)).unwrap();
                    }
                    3 => {
                        let new = SetAttributes {
                            mode: Some(0o666),
                            ..SetAttributes::default()
                        };
                        block_on(m.fs.setattr(&m.cred, node, &new, false)).unwrap();
                    }
                    4 => {
                        m.clock.advance(Duration::from_millis(random.u64(..4000)));
                        m.fs.tick();
                    }
                    _ => std::thread::sleep(Duration::from_micros(random.u64(..2000))),
                }
            }
            last
        })
    };
    let threads: Vec<_> = programs
        .into_iter()
        .map(|program| std::thread::spawn(move || program.run(steps)))
        .collect();
    let results: Vec<_> = threads.into_iter().map(|of| of.join()).collect();
    over.store(true, Ordering::Relaxed);
    let last = others.join().unwrap();
    if results.iter().any(Result::is_err) {
        panic!("seed {seed}");
    }
    let durable = server.durable("f").unwrap();
    for (page, with) in last {
        let at = (page * PAGE) as usize;
        assert!(
            durable[at..at + PAGE as usize] == [with; PAGE as usize],
            "another client's page {page}, seed {seed}"
        );
    }
    assert!(block_on(m.fs.shutdown()).is_empty());
    assert_eq!(m.count("dirty_bytes"), 0);
}

#[test]
fn programs_that_share_a_file_lose_no_bytes() {
    let rounds = std::env::var("SHARED_ROUNDS").map_or(4, |rounds| rounds.parse().unwrap());
    let first =
        std::env::var("SHARED_SEED").map_or(fastrand::u64(..1 << 32), |seed| seed.parse().unwrap());
    for seed in first..first + rounds {
        run(seed, 400);
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
    let limits = Limits {
        rtmax: 65536,
        wtmax: 65536,
        dtpref: 8192,
        max_file_size: 1 << 40,
    };
    let m = Mount::of(&MemoryServer::with(limits, 2), small());
    let (node, f) = m.create("f");
    for n in 0..PIECES {
        m.write(f, n * 2 * PAGE, &[1]).unwrap();
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
