//! A mount at work, and its end: requests are served until the mount is gone or a signal comes, then
//! what programs wrote is flushed, locks are given back, and the server is told.

use crate::failure::Failure;
use crate::ipc::{control, exit_watch, flush_request};
use crate::mount::log::Log;
use crate::mount::utab;
use crate::mounts;
use nfsrdma_fs::adapter::Session;
use nfsrdma_fs::fs::{Fs, Unwritten};
use nfsrdma_nfs3::Nfs3Client;
use nfsrdma_nfs3::mount::Mounted;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{debug, error, info, warn};

/// For taking leave of the server, whose answer does not matter.
const FAREWELL: Duration = Duration::from_secs(5);
/// Between two tries to leave a mount point on which another mount lies.
const COVERED: Duration = Duration::from_secs(1);

/// The signals that end a mount, and SIGHUP, which opens its log anew.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    /// The terminal that SIGHUP tells the end of is the mount's own.
    on_terminal: bool,
    log: Log,
}

impl Signals {
    pub(crate) fn new(foreground: bool, log: &Log) -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            on_terminal: foreground && !log.has_file(),
            log: log.clone(),
        })
    }

    /// The name of the next one.
    pub(crate) async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hang_up.recv() => match self.on_terminal {
                    true => return "SIGHUP",
                    false => self.log.reopen(),
                },
            }
        }
    }
}

/// A mount at work.
pub(crate) struct Service {
    pub(crate) mounted: Mounted,
    pub(crate) fs: Arc<Fs<Nfs3Client>>,
    pub(crate) session: Arc<Session>,
    pub(crate) signals: Signals,
    /// Kept for whoever waits for this process: see [`exit_watch`].
    pub(crate) notifier: Option<exit_watch::ExitNotifier>,
    pub(crate) control: Option<control::Control>,
    pub(crate) name: String,
    /// The mount's source, for /run/mount/utab.
    pub(crate) source: Vec<u8>,
    /// What could not be written, a line each.
    pub(crate) lost: Vec<String>,
}

/// Takes it out again, if no younger mount of the same export is there.
fn leave_utab(source: &[u8], dir: &Path) {
    let again = mounts::all().is_ok_and(|all| {
        all.iter()
            .any(|mount| mount.dir == dir && mount.source.as_bytes() == source)
    });
    if !again && let Err(error) = utab::remove(source, dir) {
        debug!("/run/mount/utab: {error}");
    }
}

impl Service {
    /// Serves until the mount is gone, by umount(8) or by a signal; flushes; takes leave.
    pub(crate) async fn run(mut self) -> Result<(), Failure> {
        let session = self.session.clone();
        let mut notifier = self.notifier.take();
        let control = self.control.take();
        let mut feeds = None;
        let runtime = tokio::runtime::Handle::current();
        let mut ended = tokio::task::spawn_blocking(move || {
            let outcome = session.join();
            // Before a new mount can have the device number.
            let feeds = control.map(|control| runtime.block_on(control.stop()));
            if let Some(notifier) = &mut notifier {
                notifier.end_session();
            }
            (outcome, notifier, feeds)
        });
        let (mut signalled, mut covered) = (0, false);
        let (outcome, mut notifier) = loop {
            tokio::select! {
                joined = &mut ended => match joined {
                    Ok((outcome, notifier, rest)) => {
                        feeds = rest;
                        break (Ok(outcome), notifier);
                    }
                    Err(error) => break (Err(error), None),
                },
                name = self.signals.next() => {
                    signalled += 1;
                    info!("{name}: unmounting");
                    if signalled > 1 {
                        break (Ok(Ok(())), None);
                    }
                    covered = !self.leave().await;
                }
                () = tokio::time::sleep(COVERED), if covered => {
                    covered = self.unmount_by(true).await.is_err();
                }
            }
        };
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!("{error}"),
            Err(error) => error!("{error}"),
        }
        self.fs.end_of_requests();
        self.last_flush(notifier.as_mut()).await;
        let lost = std::mem::take(&mut self.lost);
        if let Some(notifier) = &mut notifier
            && !lost.is_empty()
        {
            notifier.report_lost(&(lost.join("\n") + "\n"));
        }
        leave_utab(&self.source, self.session.own_mount().dir());
        // The end of the process closes it, not the end of this function: memory and threads are
        // still to be given back, and others wait for all of that.
        if let Some(notifier) = &mut notifier {
            notifier.remove_name();
        }
        std::mem::forget(notifier);
        self.give_back_locks().await;
        let farewell = tokio::time::timeout(FAREWELL, self.mounted.unmount()).await;
        if farewell.is_err() {
            debug!("the server did not answer UMNT");
        }
        // Whoever listens has heard the last flush, too.
        self.mounted.client.tap().close();
        if let Some(feeds) = feeds {
            feeds.finish().await;
        }
        info!("ended");
        if lost.is_empty() {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "{}: data were lost:\n{}",
            self.name,
            lost.join("\n")
        )))
    }

    /// Whoever held a lock has closed its file, and the server may not have answered; or the mount was
    /// aborted, and what is held goes now.
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

    /// Flushes, and tells whoever waits for the end how much is left.
    async fn last_flush(&mut self, mut notifier: Option<&mut exit_watch::ExitNotifier>) {
        let fs = self.fs.clone();
        let flush = self.flush();
        tokio::pin!(flush);
        loop {
            tokio::select! {
                () = &mut flush => return,
                () = tokio::time::sleep(flush_request::PROGRESS) => {
                    let dirty = fs.statistics().into_iter().find(|(name, _)| *name == "dirty_bytes");
                    if let (Some(notifier), Some((_, bytes))) = (notifier.as_mut(), dirty) {
                        notifier.report_unwritten(bytes);
                    }
                }
            }
        }
    }

    /// Unmounts; a mount in use is flushed and detached, and served on for its users. False if
    /// neither is possible now, as with another mount on top: then it is served on as well.
    async fn leave(&mut self) -> bool {
        match self.unmount_by(false).await {
            Ok(()) => return true,
            Err(error) => {
                info!("{error}: flushing and detaching; ends with its last user");
            }
        }
        self.flush_in_use().await;
        match self.unmount_by(true).await {
            Ok(()) => true,
            Err(error) => {
                error!(
                    "cannot unmount: {error}; goes on until that is possible, or until the next signal"
                );
                false
            }
        }
    }

    async fn unmount_by(&self, lazy: bool) -> std::io::Result<()> {
        let session = self.session.clone();
        tokio::task::spawn_blocking(move || session.unmount(lazy))
            .await
            .map_err(std::io::Error::other)?
    }

    /// Writes back what is written so far, of a mount that goes on; a signal ends the wait.
    async fn flush_in_use(&mut self) {
        let fs = self.fs.clone();
        tokio::select! {
            () = fs.write_back_all() => {}
            name = self.signals.next() => {
                let unsaved = fs.unsaved(&format!("{name} came before the server's answer"));
                self.note_lost(unsaved);
            }
        }
    }

    /// Writes everything back when the mount is gone; a signal ends the wait.
    async fn flush(&mut self) {
        let lost = tokio::select! {
            lost = self.fs.shutdown() => lost,
            name = self.signals.next() => {
                self.fs.unsaved(&format!("{name} came before the server's answer"))
            }
        };
        self.note_lost(lost);
    }

    /// What cannot be written is in the log, and in what the process says at its end.
    fn note_lost(&mut self, lost: Vec<Unwritten>) {
        for line in lost.iter().map(flush_request::lost_line) {
            if !self.lost.contains(&line) {
                error!("{line}");
                self.lost.push(line);
            }
        }
    }
}
