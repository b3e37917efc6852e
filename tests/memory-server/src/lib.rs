//! An NFSv3 server in memory. Tests run the file system and the client against it, and benchmarks
//! use it to measure the limit that FUSE sets. The file system calls it by the trait
//! [`Nfs3`](nfsrdma_nfs3::Nfs3); for a transport, [`MemoryServer::answer`] takes and returns XDR.
//!
//! It can be slow, answer out of order, refuse calls, run out of space, and restart, which loses
//! uncommitted data.

mod calls;
mod data;
mod sync;
mod tree;
mod wire;

use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex};
use nfsrdma_nfs3::{Credential, Limits, NfsError, NfsResult};
use nfsrdma_xdr::nfs3::{FileHandle, FileType, Status, Verifier};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;
pub use tree::PreOp;
use tree::Tree;
pub use wire::Answer;

/// The procedures of RFC 1813.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    Null,
    Getattr,
    Setattr,
    Lookup,
    Access,
    Readlink,
    Read,
    Write,
    Create,
    Mkdir,
    Symlink,
    Mknod,
    Remove,
    Rmdir,
    Rename,
    Link,
    Readdir,
    Readdirplus,
    Fsstat,
    Fsinfo,
    Pathconf,
    Commit,
    Getacl,
    Setacl,
}

/// Decides the fate of a call, by its procedure and the number of earlier calls of that procedure.
pub type Hook = dyn Fn(Op, u64) -> Fate + Send + Sync;

/// The fate of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Done,
    /// It is refused, and has no effect.
    Refused(Status),
    /// It is executed, but its answer does not come in time.
    Lost,
    /// It cannot be sent, because the client's machine lacks something.
    Local,
    /// It is not sent, because its user's ticket has expired.
    NoTicket,
    /// It is executed, and its answer makes no sense.
    Nonsense,
}

pub struct MemoryServer {
    tree: Mutex<Tree>,
    limits: Limits,
    hook: Mutex<Option<Arc<Hook>>>,
    /// Users whose calls on files are not sent, because their tickets have expired.
    expired: Mutex<Vec<u32>>,
    calls: [AtomicU64; 24],
    workers: Option<Workers>,
    /// By handle: the verifiers of files that an exclusive CREATE made.
    exclusive: Mutex<HashMap<Box<[u8]>, Verifier>>,
    /// A procedure whose answers are kept back, and these answers.
    kept: Mutex<(Option<Op>, Vec<oneshot::Sender<()>>)>,
}

/// Threads that answer calls, so that answers come later and in any order.
struct Workers {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

struct Queue {
    waiting: Mutex<(Vec<oneshot::Sender<()>>, bool)>,
    more: Condvar,
    /// Answers are held back while this is set.
    held: Mutex<bool>,
    /// Chooses the next answer.
    random: Mutex<fastrand::Rng>,
}

impl MemoryServer {
    /// A server with an empty export, which answers at once on the caller's thread.
    pub fn new() -> Arc<Self> {
        Self::with(
            Limits {
                rtmax: 1 << 20,
                wtmax: 1 << 20,
                dtpref: 64 << 10,
                max_file_size: i64::MAX as u64,
            },
            0,
        )
    }

    /// A server with `workers` threads that answer in random order; 0 answers at once.
    pub fn with(limits: Limits, workers: usize) -> Arc<Self> {
        Arc::new(MemoryServer {
            tree: Mutex::new(Tree::new()),
            limits,
            hook: Mutex::new(None),
            expired: Mutex::default(),
            calls: Default::default(),
            workers: (workers > 0).then(|| Workers::start(workers)),
            exclusive: Mutex::default(),
            kept: Mutex::default(),
        })
    }

    /// The root directory's handle.
    pub fn root(&self) -> FileHandle {
        self.tree.lock().root()
    }

    /// Lets `hook` decide the fate of calls from now on.
    pub fn set_hook(&self, hook: impl Fn(Op, u64) -> Fate + Send + Sync + 'static) {
        *self.hook.lock() = Some(Arc::new(hook));
    }

    /// All calls are executed again.
    pub fn clear_hook(&self) {
        *self.hook.lock() = None;
    }

    /// The tickets of these users have expired, and of nobody else.
    pub fn set_expired(&self, users: &[u32]) {
        *self.expired.lock() = users.to_vec();
    }

    fn ticket(&self, cred: &Credential) -> NfsResult<()> {
        match self.expired.lock().contains(&cred.uid) {
            true => Err(NfsError::Expired("no ticket".into())),
            false => Ok(()),
        }
    }

    /// Holds back all answers of the worker threads, or releases them.
    pub fn hold(&self, held: bool) {
        if let Some(workers) = &self.workers {
            *workers.queue.held.lock() = held;
            workers.queue.more.notify_all();
        }
    }

    /// Keeps back the answers to calls of `procedure`, which are executed; `None` releases them.
    pub fn keep(&self, procedure: Option<Op>) {
        let waiting = {
            let mut kept = self.kept.lock();
            kept.0 = procedure;
            std::mem::take(&mut kept.1)
        };
        for answer in waiting {
            // A caller that gave up no longer waits.
            let _ = answer.send(());
        }
    }

    /// The answers that are kept back never come, as to a process that was killed; later ones do.
    pub fn lose_kept(&self) {
        std::mem::take(&mut *self.kept.lock())
            .1
            .into_iter()
            .for_each(std::mem::forget);
    }

    /// The number of answers that are kept back.
    pub fn kept(&self) -> usize {
        self.kept.lock().1.len()
    }

    /// The number of calls of a procedure so far.
    pub fn calls(&self, procedure: Op) -> u64 {
        self.calls[procedure as usize].load(Ordering::Relaxed)
    }

    /// The number of calls of all procedures so far.
    pub fn all_calls(&self) -> u64 {
        self.calls
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .sum()
    }

    /// Loses uncommitted data, and changes the write verifier.
    pub fn restart(&self) {
        self.tree.lock().restart();
    }

    /// Sets how many bytes of file contents it stores at most.
    pub fn set_capacity(&self, bytes: u64) {
        self.tree.lock().capacity = bytes;
    }

    /// Invalidates all directory cookies given so far.
    pub fn renumber_cookies(&self) {
        self.tree.lock().renumber();
    }

    /// Refuses the verifier of cookies given so far, which stay the same.
    pub fn renew_cookie_verifier(&self) {
        self.tree.lock().cookie_verifier += 1;
    }

    /// Returns directory cookies modulo `period`, so that they repeat.
    pub fn repeat_cookies(&self, period: u64) {
        self.tree.lock().cookies_repeat = Some(period);
    }

    /// Gives the entry of the root that has the cookie `of` another one.
    pub fn change_cookie(&self, of: u64, to: u64) {
        let root = self.root();
        let mut tree = self.tree.lock();
        let known = tree
            .dir(&root)
            .is_ok_and(|(_, dir)| dir.by_cookie.contains_key(&of));
        assert!(known, "no entry has the cookie {of}");
        tree.cookie_changed = Some((of, to));
    }

    /// Answers READDIRPLUS without handles and attributes.
    pub fn bare_entries(&self) {
        self.tree.lock().bare = true;
    }

    /// Has NFS_ACL from now on. An ACL that is set changes the mode, but grants nothing.
    pub fn with_acls(&self) {
        self.tree.lock().acls = Some(HashMap::new());
    }

    /// Answers SETATTR without attributes from now on.
    pub fn bare_setattr(&self) {
        self.tree.lock().bare_setattr = true;
    }

    /// Stops the clock: everything from now on happens at the same time.
    pub fn stop_clock(&self) {
        self.tree.lock().clock_stands = true;
    }

    /// Sets the pre-operation attributes of WRITEs from now on: right, none, or outdated.
    pub fn set_pre_op(&self, pre_op: PreOp) {
        self.tree.lock().pre_op = pre_op;
    }

    /// Writes all data to stable storage at once from now on, and reports that.
    pub fn set_always_stable(&self) {
        self.tree.lock().always_stable = true;
    }

    /// Holds all data in memory until COMMIT from now on, whatever a WRITE asks for, and reports that.
    pub fn set_never_stable(&self) {
        self.tree.lock().never_stable = true;
    }

    /// Gives at most so many bytes to a READ from now on, whatever its limits say.
    pub fn give_little(&self, bytes: usize) {
        self.tree.lock().most_read = bytes;
    }

    /// Reports from now on that no call is under way.
    pub fn set_idle(&self) {
        self.tree.lock().idle = true;
    }

    /// Writes to the file at `path` and sets its mode, on the server's own side.
    pub fn change_file(&self, path: &str, offset: u64, data: &[u8], mode: Option<u32>) {
        self.tree.lock().change_file(path, offset, data, mode);
    }

    /// The contents of the file at `path` that a restart would leave.
    pub fn durable(&self, path: &str) -> Option<Vec<u8>> {
        self.tree.lock().durable(path)
    }

    /// The contents of the file at `path`.
    pub fn contents(&self, path: &str) -> Option<Vec<u8>> {
        self.tree.lock().contents(path)
    }

    /// The names in the directory at `path`, without `.` and `..`.
    pub fn names(&self, path: &str) -> Vec<String> {
        self.tree.lock().names(path)
    }

    /// Returns another type for the object at `path` from now on.
    pub fn change_type(&self, path: &str, kind: FileType) {
        self.tree.lock().change_type(path, kind);
    }

    /// The handle of the object at `path`.
    pub fn handle(&self, path: &str) -> Option<FileHandle> {
        self.tree.lock().walk(path)
    }

    /// The fileid of the object at `path`.
    pub fn fileid(&self, path: &str) -> Option<u64> {
        self.tree.lock().fileid(path)
    }

    /// Makes a file in the root without a call, or replaces its contents.
    pub fn plant(&self, name: &str, contents: &[u8]) {
        self.tree.lock().plant(name, contents);
    }

    /// Counts the call. The worker threads decide when it is answered, and the hook decides how.
    async fn call<T>(
        &self,
        procedure: Op,
        run: impl FnOnce(&mut Tree) -> Result<T, Status>,
    ) -> NfsResult<T> {
        let before = self.calls[procedure as usize].fetch_add(1, Ordering::Relaxed);
        self.turn().await;
        let hook = self.hook.lock().clone();
        let fate = hook.map_or(Fate::Done, |hook| hook(procedure, before));
        if let Fate::Refused(status) = fate {
            return Err(NfsError::Status(status));
        }
        if fate == Fate::Local {
            return Err(NfsError::Local("no buffer".into()));
        }
        if fate == Fate::NoTicket {
            return Err(NfsError::Expired("no ticket".into()));
        }
        let result = run(&mut self.tree.lock()).map_err(NfsError::Status);
        self.turn().await;
        let kept = {
            let mut kept = self.kept.lock();
            (kept.0 == Some(procedure)).then(|| {
                let (give, take) = oneshot::channel();
                kept.1.push(give);
                take
            })
        };
        if let Some(kept) = kept {
            let _ = kept.await;
        }
        if fate == Fate::Nonsense {
            return Err(NfsError::PeerMisbehaved("nonsense".to_owned()));
        }
        if fate == Fate::Lost {
            return Err(NfsError::TimedOut);
        }
        result
    }

    async fn turn(&self) {
        if let Some(workers) = &self.workers {
            let (give, take) = oneshot::channel();
            workers.queue.waiting.lock().0.push(give);
            workers.queue.more.notify_one();
            // The workers only end with the server, which is borrowed here.
            let _ = take.await;
        }
    }
}

impl Workers {
    fn start(threads: usize) -> Self {
        let queue = Arc::new(Queue {
            waiting: Mutex::default(),
            more: Condvar::new(),
            held: Mutex::new(false),
            random: Mutex::new(fastrand::Rng::with_seed(1)),
        });
        let threads = (0..threads)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || queue.run())
            })
            .collect();
        Workers { queue, threads }
    }
}

impl Queue {
    fn run(&self) {
        loop {
            let next = {
                let mut waiting = self.waiting.lock();
                while !waiting.1 && (waiting.0.is_empty() || *self.held.lock()) {
                    self.more.wait(&mut waiting);
                }
                if waiting.1 {
                    return;
                }
                let at = self.random.lock().usize(..waiting.0.len());
                waiting.0.swap_remove(at)
            };
            // This runs the code that waits for it on this thread.
            let _ = next.send(());
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue.waiting.lock().1 = true;
        self.queue.more.notify_all();
        for thread in self.threads.drain(..) {
            // The last reference may be dropped on one of these threads.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl fmt::Debug for MemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryServer").finish_non_exhaustive()
    }
}

fn verifier(number: u64) -> Verifier {
    Verifier(number.to_be_bytes())
}
