//! Processes that lock, unlock, close and are killed at random, beside restarts of the server: what one
//! of them believes to hold excludes the others, and nothing is left when all have closed.

use super::super::config::{Lasting, LockConfig};
use super::super::fake_server::{CONFIG, FakeServer, counter, request};
use super::super::interrupt::Interrupt;
use super::super::range::{Mode, RangeSet};
use super::*;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::ready;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::runtime::Handle;

const FILE: FileId = 1;
const PROCESSES: u64 = 4;
const STEPS: usize = 40;
/// The svid of another machine.
const STRANGER: u32 = 7;

/// What programs were told that they hold.
type Believed = Arc<Mutex<HashMap<u64, RangeSet>>>;

struct Process {
    number: u64,
    locks: Arc<Locks>,
    server: Arc<FakeServer>,
    believed: Believed,
    opens: Arc<AtomicU64>,
    open: u64,
    flock: bool,
    random: fastrand::Rng,
}

/// Checks that others do not believe the opposite.
fn believe(believed: &Believed, number: u64, range: ByteRange, mode: Option<Mode>) {
    let mut all = believed.lock();
    if let Some(mode) = mode {
        for (other, held) in all.iter().filter(|(other, _)| **other != number) {
            let conflict = held.conflict(range, mode);
            assert_eq!(conflict, None, "{number} and {other}");
        }
    }
    all.entry(number).or_default().set(range, mode);
}

/// Another machine locks and unlocks. It claims its lock as soon as the server restarts.
async fn stranger(server: Arc<FakeServer>, believed: Believed, mut random: fastrand::Rng) {
    loop {
        tokio::time::sleep(Duration::from_millis(random.u64(0..500))).await;
        let mode = match random.bool() {
            true => Mode::Read,
            false => Mode::Write,
        };
        let range = ByteRange::new(random.u64(0..3), random.u64(3..6)).unwrap();
        {
            let mut known = server.known.lock();
            if known.grace || known.conflict(STRANGER, range, mode).is_some() {
                continue;
            }
            known.lock(STRANGER, range, Some(mode));
        }
        believe(&believed, PROCESSES, range, Some(mode));
        tokio::time::sleep(Duration::from_millis(random.u64(0..500))).await;
        believe(&believed, PROCESSES, range, None);
        server.known.lock().lock(STRANGER, range, None);
    }
}

impl Process {
    /// The number of the owner is used again for the next open file.
    fn owner(&self) -> Owner {
        match self.flock {
            true => Owner::Flock(self.number),
            false => Owner::Posix(self.number),
        }
    }

    fn range(&mut self) -> ByteRange {
        let (a, b) = (self.random.u64(0..6), self.random.u64(0..6));
        match self.flock {
            true => ByteRange::ALL,
            false => ByteRange::new(a.min(b), a.max(b)).unwrap(),
        }
    }

    async fn step(&mut self) {
        let yields = self.random.usize(1..30);
        self.server.yields.store(yields, Ordering::Relaxed);
        match self.random.u32(0..10) {
            0..5 => self.lock().await,
            5..7 => self.unlock().await,
            7..9 => self.close().await,
            _ => {
                let pause = Duration::from_millis(self.random.u64(0..1000));
                tokio::time::sleep(pause).await;
            }
        }
    }

    async fn lock(&mut self) {
        let mode = match self.random.bool() {
            true => Mode::Read,
            false => Mode::Write,
        };
        let range = self.range();
        let asked = Request {
            owner: self.owner(),
            open: self.open,
            wait: self.random.bool(),
            ..request(self.number, range, mode)
        };
        let killed = self.random.u32(0..4) == 0 || asked.wait;
        let after = Duration::from_millis(self.random.u64(0..300));
        let interrupt = Arc::new(Interrupt::default());
        let kill = interrupt.clone();
        let killing = async {
            match killed {
                true => tokio::time::sleep(after).await,
                false => std::future::pending().await,
            }
        };
        // Others may have it before this process is told. A conversion of flock(2) may lose the lock.
        match self.flock {
            true => self.believe(ByteRange::ALL, None),
            false if mode == Mode::Read => self.believe_less(range),
            false => {}
        }
        let (tell, told) = tokio::sync::oneshot::channel();
        let locks = self.locks.clone();
        tokio::spawn(async move {
            let granted = locks.lock(&asked, &interrupt, ready(()), drop).await;
            if granted {
                // Its caller may have been killed, and is answered then.
                let _ = tell.send(());
            }
        });
        tokio::select! {
            biased;
            told = told => {
                if told.is_ok() {
                    self.believe(range, Some(mode));
                }
            }
            () = killing => {
                kill.kill();
                // Its files are closed, and the numbers are used again.
                self.close().await;
            }
        }
    }

    fn believe(&self, range: ByteRange, mode: Option<Mode>) {
        believe(&self.believed, self.number, range, mode);
    }

    /// Exclusive locks in a range are to become shared.
    fn believe_less(&self, range: ByteRange) {
        let mut all = self.believed.lock();
        let held = all.entry(self.number).or_default();
        for (piece, mode) in held.pieces(range) {
            held.set(piece, mode.map(|_| Mode::Read));
        }
    }

    async fn unlock(&mut self) {
        let range = self.range();
        self.believe(range, None);
        let (locks, owner) = (self.locks.clone(), self.owner());
        let (tell, told) = tokio::sync::oneshot::channel();
        let releasing = locks.releasing(FILE, owner, range);
        tokio::spawn(async move {
            locks
                .unlock(FILE, owner, range, |of| {
                    let _ = tell.send(of);
                })
                .await;
            drop(releasing);
        });
        // It may be killed: the unlock goes on.
        let patience = Duration::from_millis(self.random.u64(0..100));
        let _ = tokio::time::timeout(patience, told).await;
    }

    async fn close(&mut self) {
        self.believe(ByteRange::ALL, None);
        let (locks, owner) = (self.locks.clone(), self.owner());
        let all = match self.flock {
            true => locks.close_open(FILE, self.open, Some(self.number), |_| false),
            false => locks
                .releasing(FILE, owner, ByteRange::ALL)
                .into_iter()
                .collect(),
        };
        self.open = self.opens.fetch_add(1, Ordering::Relaxed);
        let wait = Duration::from_millis(self.random.u64(0..50));
        let released = tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            for releasing in all {
                let _ = locks.unlock_all(FILE, releasing.owner()).await;
            }
        });
        if self.random.bool() {
            released.await.unwrap();
        }
    }
}

async fn run(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let server = Arc::new(FakeServer::default());
    let config = LockConfig {
        patience: random.bool().then_some((Duration::from_secs(2), true)),
        ..CONFIG
    };
    let locks = Locks::start(
        server.clone(),
        config,
        Lasting::default(),
        Handle::current(),
    );
    let (believed, opens) = (Believed::default(), Arc::new(AtomicU64::new(1)));
    let flock = random.bool();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..PROCESSES {
        let mut process = Process {
            number,
            locks: locks.clone(),
            server: server.clone(),
            believed: believed.clone(),
            open: opens.fetch_add(1, Ordering::Relaxed),
            opens: opens.clone(),
            flock,
            random: random.fork(),
        };
        tasks.spawn(async move {
            for _ in 0..STEPS {
                process.step().await;
            }
            process.close().await;
        });
    }
    let silences = tokio::spawn({
        let (server, mut random) = (server.clone(), random.fork());
        async move {
            loop {
                tokio::time::sleep(Duration::from_millis(random.u64(0..3000))).await;
                server.known.lock().silent = true;
                tokio::time::sleep(Duration::from_millis(random.u64(0..3000))).await;
                server.known.lock().silent = false;
            }
        }
    });
    let stranger = tokio::spawn(stranger(server.clone(), believed.clone(), random.fork()));
    let restarts = tokio::spawn({
        let server = server.clone();
        async move {
            loop {
                tokio::time::sleep(Duration::from_millis(random.u64(1000..20_000))).await;
                {
                    let mut known = server.known.lock();
                    let claimed = known.held.remove(&STRANGER);
                    known.restart(true);
                    known.held.extend(claimed.map(|set| (STRANGER, set)));
                }
                server.disconnect();
                tokio::time::sleep(Duration::from_secs(15)).await;
                server.known.lock().grace = false;
            }
        }
    });
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    restarts.abort();
    silences.abort();
    assert!(!stranger.is_finished());
    stranger.abort();
    server.known.lock().silent = false;
    server.known.lock().grace = false;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(locks.is_unused(), "a lock is left");
    server.known.lock().held.remove(&STRANGER);
    assert!(server.known.lock().held.is_empty(), "the server has a lock");
    assert_eq!(counter(&locks, "locks_lost"), 0);
}

#[tokio::test(start_paused = true)]
async fn processes_at_random() {
    for seed in 0..200 {
        println!("seed {seed}");
        let limit = Duration::from_secs(3600);
        let run = tokio::time::timeout(limit, run(seed));
        run.await.expect("it hangs");
    }
}
