//! SIGTERM and SIGINT end the run after the current call, so that no mount is left behind.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::sync::atomic::{AtomicBool, Ordering};

static CAUGHT: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: i32) {
    CAUGHT.store(true, Ordering::Relaxed);
}

/// Installs the handlers.
pub(crate) fn catch() -> nix::Result<()> {
    let action = SigAction::new(
        SigHandler::Handler(note),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        // SAFETY: the handler does nothing but store to an atomic variable.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}

/// Whether a signal came.
pub(crate) fn caught() -> bool {
    CAUGHT.load(Ordering::Relaxed)
}
