//! A pool of threads for calls that take long, so that others do not wait for them.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
}

/// Threads that run jobs in the order of submission. Callers bound the queue: each connection has a
/// limit of calls under way.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Workers({} queued)", self.shared.queue.lock().jobs.len())
    }
}

impl Workers {
    /// Starts `count` threads.
    pub fn start(count: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            more: Condvar::new(),
        });
        let workers = Workers {
            shared,
            threads: Mutex::default(),
        };
        for n in 0..count.max(1) {
            let shared = workers.shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("worker-{n}"))
                .spawn(move || work(&shared))?;
            workers.threads.lock().push(thread);
        }
        Ok(workers)
    }

    /// Runs `job` soon. After [`Workers::stop`] it is dropped.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.shared.queue.lock();
        if !queue.closed {
            queue.jobs.push_back(Box::new(job));
            drop(queue);
            self.shared.more.notify_one();
        }
    }

    /// Ends the threads after the queued jobs.
    pub fn stop(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.more.notify_all();
        for thread in self.threads.lock().drain(..) {
            // The panic hook has reported a panic already.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    loop {
        let job = {
            let mut queue = shared.queue.lock();
            loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                if queue.closed {
                    return;
                }
                shared.more.wait(&mut queue);
            }
        };
        // A panic is a defect, but must not end the thread, which others need. The hook has
        // reported it, and the job's resources were dropped.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    }
}
