//! An event loop that polls the connections in place of their own threads.

use crate::common::{Act, Manners, Seen, Server, options};
use nfsrdma_nfs3::{
    ClientOptions, Cred, Credential, Driver, Mounted, Nfs3, Transport, TransportOptions,
};
use nfsrdma_rdma::Armed;
use nfsrdma_rdma_testing::fault::{ConnectFault, Plan};
use nfsrdma_rdma_testing::loopback;
use nfsrdma_rpcrdma::exec;
use nfsrdma_xdr::nfs3::Getattr;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce() + Send>;

/// A thread that polls connections and runs jobs.
struct EventLoop {
    jobs: mpsc::Sender<Job>,
    bell: Arc<std::os::fd::OwnedFd>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

fn ring(bell: &std::os::fd::OwnedFd) {
    rustix::io::write(bell, &1u64.to_ne_bytes()).unwrap();
}

impl EventLoop {
    fn start(drivers: Vec<Driver>) -> Self {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(0, flags).unwrap());
        let (jobs, todo) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (bell, stop) = (bell.clone(), stop.clone());
            move || run(drivers, &bell, &stop, &todo)
        });
        EventLoop {
            jobs,
            bell,
            stop,
            thread,
        }
    }

    /// Runs `operation` on the loop's thread. Returns its result and the thread it ended on.
    fn perform<T: Send + 'static>(
        &self,
        operation: impl Future<Output = T> + Send + 'static,
    ) -> mpsc::Receiver<(T, ThreadId)> {
        let (give, take) = mpsc::channel();
        let job = move || {
            exec::spawn(async move {
                let result = operation.await;
                let _ = give.send((result, std::thread::current().id()));
            });
        };
        self.jobs.send(Box::new(job)).unwrap();
        ring(&self.bell);
        take
    }

    fn id(&self) -> ThreadId {
        self.thread.thread().id()
    }

    /// Ends the loop; the connections go back to the threads of their slots.
    fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        ring(&self.bell);
        self.thread.join().unwrap();
    }
}

fn run(
    mut drivers: Vec<Driver>,
    bell: &Arc<std::os::fd::OwnedFd>,
    stop: &AtomicBool,
    todo: &mpsc::Receiver<Job>,
) {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let edge = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
    epoll::add(
        &epoll,
        bell,
        EventData::new_u64(0),
        EventFlags::IN | EventFlags::ET,
    )
    .unwrap();
    for driver in &mut drivers {
        let bell = bell.clone();
        driver.attach(Arc::new(move || ring(&bell)));
    }
    while !stop.load(Ordering::SeqCst) {
        let armed: Vec<Armed> = drivers.iter_mut().map(Driver::arm).collect();
        let wait = match armed.contains(&Armed::Ready) {
            true => Duration::ZERO,
            false => Duration::from_millis(20),
        };
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: wait.as_nanos() as i64,
        };
        let mut events = Vec::with_capacity(8);
        epoll::wait(&epoll, spare_capacity(&mut events), Some(&timeout)).unwrap();
        drivers.iter_mut().for_each(Driver::disarm);
        for driver in &mut drivers {
            if driver.accept() {
                for descriptor in driver.descriptors() {
                    epoll::add(&epoll, descriptor, EventData::new_u64(1), edge).unwrap();
                }
            }
            driver.poll(|descriptor| {
                epoll::delete(&epoll, descriptor).unwrap();
            });
        }
        exec::deferring(Instant::now(), || todo.try_iter().for_each(|job| job()));
        drivers.iter().for_each(Driver::kick);
    }
}

const LIMIT: Duration = Duration::from_secs(120);

fn cred() -> Cred {
    Arc::new(Credential {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
    })
}

fn mount(server: &Server, options: &ClientOptions) -> (tokio::runtime::Runtime, Mounted) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (mounted, _) = runtime.block_on(server.mount(options));
    (runtime, mounted)
}

/// Makes a GETATTR of the root on the loop. Returns the thread it ended on.
fn getattr(on: &EventLoop, mounted: &Mounted) -> ThreadId {
    let (client, root) = (mounted.client.clone(), mounted.root);
    let ended = on.perform(async move { client.getattr(&cred(), &root).await.map(drop) });
    let (result, thread) = ended.recv_timeout(LIMIT).unwrap();
    result.unwrap();
    thread
}

/// Makes calls until the loop receives a reply, which shows that it has the connection.
fn until_received_here(on: &EventLoop, mounted: &Mounted) {
    let begin = Instant::now();
    while getattr(on, mounted) != on.id() {
        assert!(begin.elapsed() < LIMIT, "the connection is not lent");
    }
}

#[test]
fn replies_are_received_by_the_thread_that_asked() {
    let server = Server::plain();
    let (_runtime, mounted) = mount(&server, &options());
    let event_loop = EventLoop::start(mounted.client.drivers());
    until_received_here(&event_loop, &mounted);
    for _ in 0..20 {
        assert_eq!(getattr(&event_loop, &mounted), event_loop.id());
    }
    event_loop.end();
    // The thread of the slot polls the connection again.
    let again = exec::block_on(mounted.client.getattr(&cred(), &mounted.root));
    again.unwrap();
    assert_eq!(mounted.client.stats().connections[0].connects, 1);
}

#[test]
fn a_lost_connection_is_replaced_and_its_calls_are_answered_here() {
    let hangups = Arc::new(AtomicUsize::new(0));
    let count = hangups.clone();
    // Every seventh GETATTR ends the connection, alternately before and after it is run.
    let server = Server::scripted::<Getattr>(move |_, number| match number % 14 {
        6 => {
            count.fetch_add(1, Ordering::SeqCst);
            Act::Hangup
        }
        13 => {
            count.fetch_add(1, Ordering::SeqCst);
            Act::RunThenHangup
        }
        _ => Act::Answer,
    });
    let (_runtime, mounted) = mount(&server, &options());
    let event_loop = EventLoop::start(mounted.client.drivers());
    until_received_here(&event_loop, &mounted);
    let mut here = 0;
    for _ in 0..60 {
        here += usize::from(getattr(&event_loop, &mounted) == event_loop.id());
    }
    assert!(hangups.load(Ordering::SeqCst) >= 8);
    // A call that waits for a new connection may be answered before the loop gets the connection.
    assert!(here >= 30, "{here}");
    event_loop.end();
    exec::block_on(mounted.client.getattr(&cred(), &mounted.root)).unwrap();
}

#[test]
fn calls_under_way_survive_the_loops_end_and_a_shutdown_ends_them() {
    let server = Server::scripted::<Getattr>(|_, number| match number {
        0..=3 => Act::Answer,
        _ => Act::Silence,
    });
    let (_runtime, mounted) = mount(&server, &options());
    let event_loop = EventLoop::start(mounted.client.drivers());
    getattr(&event_loop, &mounted);
    let (client, root) = (mounted.client.clone(), mounted.root);
    let under_way: Vec<_> = (0..8)
        .map(|_| {
            let client = client.clone();
            event_loop.perform(async move { client.getattr(&cred(), &root).await.map(drop) })
        })
        .collect();
    let begin = Instant::now();
    while server.calls::<Getattr>().len() < 5 {
        assert!(begin.elapsed() < LIMIT, "the calls do not arrive");
        std::thread::yield_now();
    }
    event_loop.end();
    mounted.client.shutdown();
    let ended = under_way.iter().map(|call| call.recv_timeout(LIMIT));
    let failed = ended
        .filter(|ended| matches!(ended, Ok((Err(_), _))))
        .count();
    assert!(failed >= 4, "{failed}");
}

/// A mount with two connections whose server accepts `accepted` connections and refuses all later
/// ones, and an event loop that polls the second connection, if there is one.
fn with_one_of_two(
    server: &Server,
    accepted: usize,
) -> (tokio::runtime::Runtime, Mounted, EventLoop) {
    let options = ClientOptions {
        transport: TransportOptions {
            nconnect: 2,
            ..options().transport
        },
        ..options()
    };
    let mut connects = vec![None; accepted];
    connects.resize(10_000, Some(ConnectFault::Refuse));
    let plan = Plan {
        connects,
        ..Plan::default()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (mounted, _) = runtime.block_on(server.mount_faulty_with(plan, &options));
    let event_loop = EventLoop::start(mounted.client.drivers().split_off(1));
    (runtime, mounted, event_loop)
}

#[test]
fn calls_do_not_wait_for_a_connection_that_the_server_does_not_accept() {
    let manners = Manners {
        grant: 1,
        ..Manners::default()
    };
    let answer = Arc::new(|_: &Seen| Act::Answer);
    let server = Server::start(loopback::Options::default(), manners, answer);
    let (_runtime, mounted, event_loop) = with_one_of_two(&server, 1);
    let (client, root) = (mounted.client.clone(), mounted.root);
    // More than the other connection has credits for.
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let client = client.clone();
            event_loop.perform(async move { client.getattr(&cred(), &root).await.map(drop) })
        })
        .collect();
    for call in calls {
        call.recv_timeout(LIMIT / 4).unwrap().0.unwrap();
    }
    event_loop.end();
}

/// The connection ends over its first call, or after one that was answered.
#[test]
fn calls_of_a_connection_that_cannot_be_made_again_go_on_by_another() {
    for answered in [0, 1] {
        let seen_there = Arc::new(AtomicUsize::new(0));
        let count = seen_there.clone();
        let server = Server::scripted::<Getattr>(move |seen, _| {
            match seen.connection == 1 && count.fetch_add(1, Ordering::SeqCst) >= answered {
                true => Act::Hangup,
                false => Act::Answer,
            }
        });
        let (_runtime, mounted, event_loop) = with_one_of_two(&server, 2);
        let begin = Instant::now();
        while seen_there.load(Ordering::SeqCst) <= answered {
            assert!(begin.elapsed() < LIMIT, "the second connection is unused");
            getattr(&event_loop, &mounted);
        }
        getattr(&event_loop, &mounted);
        while !mounted.client.is_idle() {
            assert!(begin.elapsed() < LIMIT, "a call counts on both");
            std::thread::yield_now();
        }
        event_loop.end();
    }
}
