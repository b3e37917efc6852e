//! The daemon's side of the connection to its holder.

use crate::holder::protocol::{Name, Packet, Request, UNKNOWN, Why, receive, send};
use nfsrdma_fs::adapter::own_table;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::RecvFlags;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread;
use tracing::error;

/// The connection of a daemon to the holder of its mount. If the holder is gone, the daemon serves
/// on, and what it wants of the holder is passed over.
#[derive(Debug, Clone)]
pub struct Held(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// For one request and its answer at a time.
    talk: Mutex<OwnedFd>,
    /// The signals that the holder got: a byte for each, and the end of the stream when the holder
    /// is gone.
    signals: Mutex<Option<PipeReader>>,
    gone: OnceLock<()>,
}

impl Held {
    /// Connects by the descriptor that the holder has made for this process.
    pub fn begin(talk: OwnedFd) -> io::Result<Held> {
        // A successor gets it through exec. Who has it can have all that is kept, so no other program may.
        fcntl_setfd(&talk, FdFlags::CLOEXEC)?;
        let (watched, life) = io::pipe()?;
        keep_while_alive(life)?;
        let (signals, orders) = io::pipe()?;
        let held = Held(Arc::new(Shared {
            talk: Mutex::new(talk),
            signals: Mutex::new(Some(signals)),
            gone: OnceLock::new(),
        }));
        held.ask(Request::Begin, &[watched.as_fd(), orders.as_fd()])?;
        end_with_any_thread();
        Ok(held)
    }

    /// Has the holder keep a copy of a descriptor, by a name of at most 31 bytes. It has it when
    /// this returns.
    pub fn keep(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        let name = Name::new(name.as_bytes()).ok_or(Errno::NAMETOOLONG)?;
        self.ask(Request::Keep(name), &[fd])
    }

    /// What the holder keeps. These are copies, and the holder keeps its own.
    pub fn take(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let talk = self.0.talk.lock();
        send(&*talk, Request::Take.encode().as_bytes(), &[])?;
        let mut kept = Vec::new();
        loop {
            let received = receive(&*talk, RecvFlags::empty())?;
            if received.lost_fds {
                return Err(Errno::MFILE.into());
            }
            let name = String::from_utf8_lossy(received.bytes()).into_owned();
            let [Some(fd), _] = received.fds else {
                return answer(received.bytes()).map(|()| kept);
            };
            kept.push((name, fd));
        }
    }

    /// Tells the holder that the caller of the command was told of the mount: it leaves the terminal.
    pub fn detach(&self) -> io::Result<()> {
        self.ask(Request::Detach, &[])
    }

    /// From now on, the holder starts a successor when this process dies. Before the first request
    /// of the kernel is read, and after everything was kept that a successor needs.
    pub fn serving(&self) -> io::Result<()> {
        self.ask(Request::Serving, &[])?;
        // Until now a mount without its holder would not have been one. Now it serves on.
        Ok(set_parent_process_death_signal(None)?)
    }

    /// Has a successor started beside this process, and waits until it is ready for the mount. `told` is
    /// written to when it serves. The error says why there is none.
    pub fn upgrade(&self, told: BorrowedFd<'_>) -> Result<(), Why> {
        self.ask_why(Request::Upgrade, &[told])
    }

    /// Gives the successor the mount, and does not return: this process is killed. Else the answer says why
    /// it is not, and this process goes on.
    pub fn hand_over(&self) -> Why {
        // If the holder dies when it has stopped this process, nobody else would let it go on. It ends with this thread.
        let _ = set_parent_process_death_signal(Some(Signal::CONT));
        let answer = self.ask_why(Request::HandOver, &[]);
        answer.err().unwrap_or_else(gone)
    }

    /// Ends the successor.
    pub fn cancel_upgrade(&self) {
        // If the holder is gone, so is the successor.
        let _ = self.ask(Request::Cancel, &[]);
    }

    /// Of a successor: waits until it may look at what the other process has left.
    pub fn ready(&self) -> io::Result<()> {
        self.ask_for_mount(Request::Ready)
    }

    /// Of a successor: has the other process killed. From then on the mount is this one's.
    pub fn take_over(&self) -> io::Result<()> {
        self.ask_for_mount(Request::TakeOver)
    }

    /// Of a successor: says why it does not go on with the mount.
    pub fn refuse(&self, why: Why) {
        // There is nobody else to tell.
        let _ = self.ask(Request::Refuse(why), &[]);
    }

    /// Without its holder a successor has no mount.
    fn ask_for_mount(&self, request: Request) -> io::Result<()> {
        self.ask(request, &[])?;
        match self.0.gone.get() {
            Some(()) => Err(Errno::SRCH.into()),
            None => Ok(()),
        }
    }

    /// As [`Held::ask`], with the sentence that the holder gives.
    fn ask_why(&self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<(), Why> {
        let bytes = self.answer_to(request, fds).ok_or_else(gone)?;
        match bytes.as_bytes() {
            [0] => Ok(()),
            [number, ..] if i32::from(*number) == UNKNOWN => Err(Why::new(
                UNKNOWN,
                "the process that keeps the mount is of a version without upgrades: unmount, and mount again",
            )),
            bytes => Err(Why::of(bytes).unwrap_or_else(gone)),
        }
    }

    /// Tells the holder that the mount has ended, and that the command's exit status is this one.
    pub fn bye(&self, status: u8) {
        // There is no answer to wait for: it is read before the end of this process is seen.
        let _ = send(
            &*self.0.talk.lock(),
            Request::Bye(status).encode().as_bytes(),
            &[],
        );
    }

    /// The pipe from which the numbers of the signals come that the holder got, one byte each. It
    /// ends when the holder is gone. Only the first call returns it.
    pub fn signals(&self) -> Option<PipeReader> {
        self.0.signals.lock().take()
    }

    /// Whether the holder is gone.
    pub fn is_gone(&self) -> bool {
        // Whoever has the lock waits for an answer, or finds out.
        self.0.gone.get().is_some()
            || self.0.talk.try_lock().is_some_and(|talk| {
                let mut fds = [PollFd::new(&*talk, PollFlags::empty())];
                let polled = poll(&mut fds, Some(&Timespec::default()));
                polled.is_ok() && fds[0].revents().contains(PollFlags::HUP)
            })
    }

    fn ask(&self, request: Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = self.answer_to(request, fds);
        bytes.map_or(Ok(()), |bytes| answer(bytes.as_bytes()))
    }

    /// The bytes of the answer; `None` if the holder is gone.
    fn answer_to(&self, request: Request, fds: &[BorrowedFd<'_>]) -> Option<Packet> {
        if self.0.gone.get().is_some() {
            return None;
        }
        let talk = self.0.talk.lock();
        let answered = send(&*talk, request.encode().as_bytes(), fds)
            .and_then(|()| receive(&*talk, RecvFlags::empty()));
        match answered {
            Ok(received) if !received.bytes().is_empty() => Some(received.packet),
            // The log says so when the pipe of signals ends.
            _ => {
                let _ = self.0.gone.set(());
                None
            }
        }
    }
}

/// From now on a panic of one thread, after which its callers would wait for ever, ends this process: its successor
/// answers them.
fn end_with_any_thread() {
    std::panic::set_hook(Box::new(move |panic| {
        // Not the usual one: it writes to standard error, where nobody may read, and would wait.
        let thread = thread::current();
        error!(
            "the thread '{}' ends this process: {panic}",
            thread.name().unwrap_or_default()
        );
        std::process::abort();
    }));
}

fn gone() -> Why {
    Why::new(libc::ESRCH, "the process that keeps the mount is gone")
}

fn answer(bytes: &[u8]) -> io::Result<()> {
    match bytes {
        [0] => Ok(()),
        [number, ..] => Err(io::Error::from_raw_os_error((*number).into())),
        _ => Err(Errno::PROTO.into()),
    }
}

/// Keeps the end of a pipe open until this process is killed or ends, and not until its last thread
/// has ended, which may wait for requests that only a successor answers.
fn keep_while_alive(life: PipeWriter) -> io::Result<()> {
    let raw = life.as_raw_fd();
    let (tell, ready) = channel();
    thread::Builder::new().name("life".into()).spawn(move || {
        // SAFETY: `life` is open in the table of the process until this thread has told.
        let shared = unsafe { BorrowedFd::borrow_raw(raw) };
        let own = own_table::with_only(shared);
        if own.is_ok() {
            // Whoever waits for the end of the command's output must not wait for this thread.
            for standard in 0..3 {
                // SAFETY: this table is the thread's own, and the thread writes nothing.
                unsafe { libc::close(standard) };
            }
        }
        let _ = tell.send(own.as_ref().map(drop).map_err(io::Error::kind));
        while own.is_ok() {
            thread::park();
        }
    })?;
    ready.recv().map_err(io::Error::other)??;
    drop(life);
    Ok(())
}
