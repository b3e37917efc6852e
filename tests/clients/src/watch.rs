//! Ends a run in which a call hangs.

use crate::signals;
use crate::stand::HANGS;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long a call may still take when the run has to end.
const HANGS_AT_END: Duration = Duration::from_secs(5);

/// Aborts mounts on which a call hangs, so that the run ends.
pub(crate) struct Watch {
    beat: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn start(mounts: Vec<PathBuf>) -> Self {
        let (beat, over) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (seen_beat, is_over) = (beat.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            let (mut last, mut since) = (0, std::time::Instant::now());
            while !is_over.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_millis(500));
                let now = seen_beat.load(Ordering::Relaxed);
                if now != last {
                    (last, since) = (now, std::time::Instant::now());
                } else if since.elapsed() > HANGS
                    || (signals::caught() && since.elapsed() > HANGS_AT_END)
                {
                    println!("a call hangs: the mounts are aborted");
                    for at in &mounts {
                        let flags = nix::mount::MntFlags::MNT_FORCE;
                        let _ = nix::mount::umount2(at, flags | nix::mount::MntFlags::MNT_DETACH);
                    }
                    return;
                }
            }
        });
        Watch {
            beat,
            over,
            thread: Some(thread),
        }
    }

    pub(crate) fn beat(&self) {
        self.beat.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
