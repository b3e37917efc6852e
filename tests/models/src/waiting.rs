//! Waiting requests: each is answered once, by the operation or for a dying caller, and no
//! interrupt is lost.

use futures_util::future::select;
use nfsrdma_fs::adapter::{Pace, Refuse, Table};
use nfsrdma_rpcrdma::exec::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::oneshot;

#[derive(Default)]
struct Answers {
    result: AtomicUsize,
    interrupted: AtomicUsize,
    dropped: AtomicUsize,
}

/// A reply like that of the channel: if it is dropped unanswered, it answers.
struct Reply(Option<Arc<Answers>>);

impl Reply {
    fn answer(mut self) {
        if let Some(answers) = self.0.take() {
            answers.result.fetch_add(1, Relaxed);
        }
    }
}

impl Refuse for Reply {
    fn refuse(mut self) {
        if let Some(answers) = self.0.take() {
            answers.interrupted.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(answers) = self.0.take() {
            answers.dropped.fetch_add(1, Relaxed);
        }
    }
}

/// Operations end or are abandoned, while the watching thread finds some callers dying. Processes
/// with odd numbers die.
pub fn each_request_is_answered_once() {
    let table = Arc::new(Table::default());
    let watched = table.clone();
    let (stop, stopped) = oneshot::channel::<()>();
    let watch = thread::spawn(move || {
        let pace = Pace {
            period: Duration::ZERO,
            most: 2,
        };
        let pause = |_| async { thread::yield_now() };
        let watching = watched.run(&pace, pause, |look| {
            thread::yield_now();
            look.pid % 2 == 1
        });
        block_on(select(pin!(watching), stopped));
    });
    let operations: Vec<_> = (1..=3u32)
        .map(|number| {
            let table = table.clone();
            thread::spawn(move || {
                for turn in 0..2 {
                    let pid = number + turn;
                    let answers = Arc::new(Answers::default());
                    let held = table.hold(
                        pid,
                        u64::from(number * 2 + turn),
                        Reply(Some(answers.clone())),
                    );
                    if pid % 2 == 1 && thread_rng().gen_bool(0.5) {
                        // The server never answers: only the watching thread frees the caller.
                        while answers.interrupted.load(Relaxed) == 0 {
                            thread::yield_now();
                        }
                    }
                    if thread_rng().gen_bool(0.8) {
                        if let Some(reply) = held.take() {
                            reply.answer();
                        }
                    } else {
                        drop(held);
                    }
                    // The watching thread may have the reply, and may not have counted it yet.
                    let sum = || {
                        let Answers {
                            result,
                            interrupted,
                            dropped,
                        } = &*answers;
                        result.load(Relaxed) + interrupted.load(Relaxed) + dropped.load(Relaxed)
                    };
                    while sum() == 0 {
                        thread::yield_now();
                    }
                    assert_eq!(sum(), 1, "answered twice");
                    if pid % 2 == 0 {
                        assert_eq!(answers.interrupted.load(Relaxed), 0, "a living caller");
                    }
                }
            })
        })
        .collect();
    for operation in operations {
        assert!(operation.join().is_ok());
    }
    drop(stop);
    assert!(watch.join().is_ok());
}

/// The kernel interrupts requests before, while, and after they are in the table. Odd processes die
/// of it, others have a handler. Callers are inspected only after a notice.
pub fn no_interrupt_is_lost() {
    let table = Arc::new(Table::default());
    let watched = table.clone();
    let (stop, stopped) = oneshot::channel::<()>();
    let watch = thread::spawn(move || {
        let pace = Pace {
            period: Duration::from_secs(3600),
            most: 2,
        };
        let pause = |_| async { thread::yield_now() };
        let watching = watched.run(&pace, pause, |look| {
            thread::yield_now();
            assert!(look.signalled.is_some(), "looked at for nothing");
            look.pid % 2 == 1
        });
        block_on(select(pin!(watching), stopped));
    });
    let requests: Vec<_> = (1..=3u32)
        .map(|number| {
            let table = table.clone();
            thread::spawn(move || {
                let unique = u64::from(number);
                let interrupter = {
                    let table = table.clone();
                    thread::spawn(move || table.interrupt(unique))
                };
                let answers = Arc::new(Answers::default());
                let held = table.hold(number, unique, Reply(Some(answers.clone())));
                let dies = number % 2 == 1;
                if dies {
                    // The server never answers.
                    while answers.interrupted.load(Relaxed) == 0 {
                        thread::yield_now();
                    }
                    assert!(held.take().is_none());
                } else {
                    match held.take() {
                        Some(reply) => reply.answer(),
                        None => panic!("a caller with a handler"),
                    }
                }
                assert!(interrupter.join().is_ok());
                assert_eq!(answers.result.load(Relaxed), usize::from(!dies));
                assert_eq!(answers.dropped.load(Relaxed), 0);
            })
        })
        .collect();
    for request in requests {
        assert!(request.join().is_ok());
    }
    drop(stop);
    assert!(watch.join().is_ok());
}
