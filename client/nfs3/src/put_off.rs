//! Calls that the server puts off: it answers NFS3ERR_JUKEBOX, and they are made again after a pause.
//!
//! To the transport each of them is answered, so it does not know that somebody waits.

use nfsrdma_rpcrdma::stats::Waits;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// When such calls were made first, with a number for each.
#[derive(Debug, Default)]
pub(crate) struct PutOff(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    calls: BTreeSet<(Instant, u64)>,
    count: u64,
    /// Whether it was logged that calls wait.
    told: bool,
}

/// A call that is put off, until it is dropped.
#[derive(Debug)]
pub(crate) struct PutOffCall<'a> {
    all: &'a PutOff,
    key: (Instant, u64),
    server: &'a str,
}

impl PutOff {
    /// A call that was made first at `since` is put off by `server`.
    pub(crate) fn begin<'a>(&'a self, since: Instant, server: &'a str) -> PutOffCall<'a> {
        let mut state = self.0.lock();
        state.count += 1;
        let key = (since, state.count);
        state.calls.insert(key);
        let all = self;
        PutOffCall { all, key, server }
    }

    /// Those that have waited long.
    pub(crate) fn waits(&self) -> Waits {
        let state = self.0.lock();
        Waits::of(state.calls.iter().map(|(since, _)| since.elapsed()))
    }
}

impl PutOffCall<'_> {
    /// It is put off once more. Logs that once if it has waited for `patience`.
    pub(crate) fn again(&self, patience: Duration) {
        if self.key.0.elapsed() >= patience && !std::mem::replace(&mut self.all.0.lock().told, true)
        {
            tracing::warn!(
                "server {} puts calls off (NFS3ERR_JUKEBOX), still trying",
                self.server
            );
        }
    }
}

impl Drop for PutOffCall<'_> {
    fn drop(&mut self) {
        let mut state = self.all.0.lock();
        state.calls.remove(&self.key);
        if state.calls.is_empty() && std::mem::take(&mut state.told) {
            tracing::warn!("server {} puts no call off any longer", self.server);
        }
    }
}
