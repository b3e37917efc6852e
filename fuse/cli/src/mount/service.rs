//! A mount at work, and its end. Requests are served until the mount is gone or a signal comes.
//! Then dirty data is flushed, locks are released, and the server is told by UMNT.

use crate::failure::Failure;
use crate::ipc::{control, exit_watch, flush_request};
use crate::mount::log::Log;
use crate::mount::utab;
use crate::mounts;
use crate::stats::text::bytes;
use nfsrdma_fs::adapter::Session;
use nfsrdma_fs::fs::{Fs, Unwritten};
use nfsrdma_nfs3::Nfs3Client;
use nfsrdma_nfs3::mount::Mounted;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::io::{self, PipeReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{debug, error, info, warn};

/// How long to wait for the server's answers to UNLOCK and UMNT at the end, which do not matter.
const FAREWELL: Duration = Duration::from_secs(5);
/// A flush at the end that takes longer is logged: nobody may wait for it who could be told.
const LONG: Duration = Duration::from_secs(5);
/// The interval between attempts to unmount while another mount covers this one.
const COVERED: Duration = Duration::from_secs(1);

/// The interval between two looks whether commands still find this process.
const RENEWAL: Duration = Duration::from_secs(10);

/// The signals that end a mount, and SIGHUP, which opens its log again.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    /// The numbers of the signals that the holder got, if there is one.
    holder: Option<pipe::Receiver>,
    /// How many signals that end the mount came here, how many to the holder, and how many of them were
    /// told. A signal to a group of processes comes to both, and is one.
    here: u32,
    there: u32,
    told: u32,
    /// Whether SIGHUP means the end of the mount's own terminal, and so of the mount.
    on_terminal: bool,
    log: Log,
}

impl Signals {
    /// `holder` is the pipe by which the holder tells of its signals. Must be called within tokio.
    pub(crate) fn new(foreground: bool, log: &Log, holder: Option<PipeReader>) -> io::Result<Self> {
        let holder = holder.map(|pipe| pipe::Receiver::from_owned_fd(pipe.into()));
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            holder: holder.transpose()?,
            here: 0,
            there: 0,
            told: 0,
            on_terminal: foreground && !log.has_file(),
            log: log.clone(),
        })
    }

    /// Waits for the next signal that ends the mount, and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        loop {
            let (name, by_holder) = tokio::select! {
                _ = self.terminate.recv() => ("SIGTERM", false),
                _ = self.interrupt.recv() => ("SIGINT", false),
                _ = self.hang_up.recv() => ("SIGHUP", false),
                number = from_holder(&mut self.holder) => match number {
                    Some(number) => (name_of(number), true),
                    None => continue,
                },
            };
            if name == "SIGHUP" && !self.on_terminal {
                self.log.reopen();
                continue;
            }
            match by_holder {
                true => self.there += 1,
                false => self.here += 1,
            }
            if self.here.max(self.there) > self.told {
                self.told += 1;
                return name;
            }
        }
    }
}

fn name_of(signal: u8) -> &'static str {
    match libc::c_int::from(signal) {
        libc::SIGINT => "SIGINT",
        libc::SIGHUP => "SIGHUP",
        _ => "SIGTERM",
    }
}

/// The next signal of the holder. `None` when the holder is gone; after that, and without a holder, this
/// does not return.
async fn from_holder(pipe: &mut Option<pipe::Receiver>) -> Option<u8> {
    let Some(open) = pipe else {
        return std::future::pending().await;
    };
    let number = open.read_u8().await.ok();
    if number.is_none() {
        warn!("the process that keeps this mount is gone: if this one dies, the mount ends");
        *pipe = None;
    }
    number
}

/// A mount at work.
pub(crate) struct Service {
    pub(crate) mounted: Mounted,
    pub(crate) fs: Arc<Fs<Nfs3Client>>,
    pub(crate) session: Arc<Session>,
    pub(crate) signals: Signals,
    /// Kept for the processes that wait for the end of this one: see [`exit_watch`].
    pub(crate) notifier: Option<exit_watch::ExitNotifier>,
    pub(crate) control: Option<control::Control>,
    pub(crate) name: String,
    /// The source of the mount, for /run/mount/utab.
    pub(crate) source: Vec<u8>,
    /// Lost data, with a line for each range.
    pub(crate) lost: Vec<String>,
    /// The signal that has ended the wait for the server, if there was one.
    pub(crate) given_up: Option<&'static str>,
}

/// Removes the mount's entry, unless a younger mount of the same export is there.
fn leave_utab(source: &[u8], dir: &Path) {
    let again = mounts::all().is_ok_and(|all| {
        all.iter()
            .any(|mount| mount.dir == dir && mount.source.as_bytes() == source)
    });
    if !again && let Err(error) = utab::remove(source, dir) {
        debug!("/run/mount/utab: {error}");
    }
}

/// The data that is lost because the signal `name` ended the wait for the server.
fn unsaved(fs: &Fs<Nfs3Client>, name: &str) -> Vec<Unwritten> {
    fs.unsaved(&format!("{name} came before the server's answer"))
}

/// Logs what is waited for, if that takes long. Does not return.
async fn tell_what_waits(fs: &Fs<Nfs3Client>) -> Infallible {
    tokio::time::sleep(LONG).await;
    let left = match fs.unsafe_bytes() {
        0 => "the last data".to_owned(),
        left => bytes(left),
    };
    warn!(
        "unmounting, and {left} are not safe at the server after {} s: this process, {}, waits for the server; \
         SIGTERM ends that, and the data are lost",
        LONG.as_secs(),
        std::process::id()
    );
    std::future::pending().await
}

/// Waits for the end of the session, and gives the names up that commands know.
async fn end_of(
    session: Arc<Session>,
    control: Arc<Mutex<Option<control::Control>>>,
    notifier: Arc<Mutex<Option<exit_watch::ExitNotifier>>>,
) -> (io::Result<()>, Option<control::Feeds>) {
    session.ended().await;
    let outcome = session.join();
    // The name must be free before a new mount can get the device number.
    let control = control.lock().take();
    let feeds = match control {
        Some(control) => Some(control.stop().await),
        None => None,
    };
    if let Some(notifier) = notifier.lock().as_mut() {
        notifier.end_session();
    }
    (outcome, feeds)
}

impl Service {
    /// Serves until umount(8) or a signal ends the mount, then flushes and sends UMNT.
    pub(crate) async fn run(mut self) -> Result<(), Failure> {
        let notifier = Arc::new(Mutex::new(self.notifier.take()));
        let control = Arc::new(Mutex::new(self.control.take()));
        let mut feeds = None;
        let ended = end_of(self.session.clone(), control.clone(), notifier.clone());
        // A task of its own, since the end may come while the loop below waits for something else.
        let mut ended = tokio::spawn(ended);
        let (mut signalled, mut covered) = (0, false);
        let mut renewal = tokio::time::interval(RENEWAL);
        let outcome = loop {
            tokio::select! {
                joined = &mut ended => match joined {
                    Ok((outcome, rest)) => {
                        feeds = rest;
                        break Ok(outcome);
                    }
                    Err(error) => break Err(error),
                },
                name = self.signals.next() => {
                    signalled += 1;
                    info!("{name}: unmounting");
                    if signalled > 1 {
                        self.given_up = Some(name);
                        break Ok(Ok(()));
                    }
                    covered = !self.leave().await;
                    if self.given_up.is_some() {
                        break Ok(Ok(()));
                    }
                }
                () = tokio::time::sleep(COVERED), if covered => {
                    let unmounted = self.session.unmount(true);
                    covered = unmounted.is_err();
                    if let Err(error) = unmounted {
                        debug!("not unmounted yet: {error}");
                    }
                }
                _ = renewal.tick() => {
                    if let Some(notifier) = notifier.lock().as_mut() {
                        notifier.renew();
                    }
                    if let Some(control) = control.lock().as_mut() {
                        control.renew();
                    }
                }
            }
        };
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!("{error}"),
            Err(error) => error!("{error}"),
        }
        self.fs.end_of_requests();
        self.last_flush(&notifier).await;
        let lost = std::mem::take(&mut self.lost);
        if let Some(notifier) = notifier.lock().as_mut() {
            notifier.report_end(&lost);
        }
        leave_utab(&self.source, self.session.own_mount().dir());
        if let Some(notifier) = notifier.lock().as_mut() {
            notifier.remove_name();
        }
        // The socket stays open until the process ends, not only this function: memory and threads
        // are still to be freed, and watchers wait for all of that.
        std::mem::forget(notifier);
        self.give_back_locks().await;
        let farewell = tokio::time::timeout(FAREWELL, self.mounted.unmount()).await;
        if farewell.is_err() {
            debug!("the server did not answer UMNT");
        }
        // Listeners of the tap have now seen the calls of the last flush.
        self.mounted.client.tap().close();
        if let Some(feeds) = feeds {
            feeds.finish().await;
        }
        match lost.is_empty() {
            true => info!("ended: all data is at the server"),
            false => info!("ended: data were lost"),
        }
        if lost.is_empty() {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "{}: data were lost:\n{}",
            self.name,
            lost.join("\n")
        )))
    }

    /// Releases the locks that are left: those whose UNLOCK the server has not answered, and those
    /// of a mount that was aborted with files open.
    async fn give_back_locks(&self) {
        if let Some(locks) = self.fs.locks() {
            let left = locks.finish(FAREWELL).await;
            if left > 0 {
                warn!(
                    "{}: the server of locks does not answer: it has {left} of ours still",
                    self.name
                );
            }
        }
    }

    /// Flushes, and reports the number of bytes left to those who watch this process.
    async fn last_flush(&mut self, notifier: &Mutex<Option<exit_watch::ExitNotifier>>) {
        let fs = self.fs.clone();
        let flush = self.flush();
        tokio::pin!(flush);
        loop {
            tokio::select! {
                () = &mut flush => return,
                () = tokio::time::sleep(flush_request::PROGRESS) => {
                    if let Some(notifier) = notifier.lock().as_mut() {
                        notifier.report_unwritten(fs.unsafe_bytes());
                    }
                }
            }
        }
    }

    /// Unmounts. A mount in use is flushed, detached, and served on. Returns false if that is
    /// impossible now, for example under another mount; then it is served on, too. The calls that
    /// unmount block this thread, which no other task needs: another thread may not be to be had
    /// (pids.max of a container).
    async fn leave(&mut self) -> bool {
        match self.session.unmount(false) {
            Ok(()) => return true,
            Err(error) => {
                info!("{error}: flushing and detaching; ends with its last user");
            }
        }
        self.flush_in_use().await;
        match self.session.unmount(true) {
            Ok(()) => true,
            Err(error) => {
                error!(
                    "cannot unmount: {error}; goes on until that is possible, or until the next signal"
                );
                false
            }
        }
    }

    /// Writes back the data of a mount that goes on. A signal ends the wait, and the mount.
    async fn flush_in_use(&mut self) {
        let fs = self.fs.clone();
        tokio::select! {
            () = fs.write_back_all() => {}
            never = tell_what_waits(&fs) => match never {},
            name = self.signals.next() => {
                self.given_up = Some(name);
                self.note_lost(unsaved(&fs, name));
            }
        }
    }

    /// Writes back everything when the mount is gone. A signal ends the wait, also one that came before.
    async fn flush(&mut self) {
        let (fs, given_up) = (self.fs.clone(), self.given_up);
        let signal = async {
            match given_up {
                Some(name) => name,
                None => self.signals.next().await,
            }
        };
        let lost = tokio::select! {
            biased;
            lost = fs.shutdown() => lost,
            name = signal => unsaved(&fs, name),
            never = tell_what_waits(&fs) => match never {},
        };
        self.note_lost(lost);
    }

    /// Logs the data that could not be written, and keeps the lines for the report at the end.
    fn note_lost(&mut self, lost: Vec<Unwritten>) {
        for line in lost.iter().map(flush_request::lost_line) {
            if !self.lost.contains(&line) {
                error!("{line}");
                self.lost.push(line);
            }
        }
    }
}
