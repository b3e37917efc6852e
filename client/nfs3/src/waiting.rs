//! Calls that wait although the transport has nothing to do for them: the server puts them off (it answers
//! NFS3ERR_JUKEBOX), or there is no Kerberos context for their user.

use nfsrdma_rdma::Instant;
use nfsrdma_rpcrdma::stats::Waits;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// The calls that wait for something of one kind, by whose they are if that matters.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    of: BTreeMap<u32, Calls>,
    count: u64,
}

#[derive(Debug, Default)]
struct Calls {
    /// When each was made first, with a number.
    calls: BTreeSet<(Instant, u64)>,
    /// Whether it was logged that they wait.
    told: bool,
}

/// A call that waits, until this is dropped.
#[derive(Debug)]
pub(crate) struct WaitingCall<'a> {
    all: &'a Waiting,
    whose: u32,
    key: (Instant, u64),
    /// What is logged when the last one ends.
    over: String,
}

impl Waiting {
    /// A call that was made first at `since` waits. If that was told, `over` is logged when no such call waits any longer.
    pub(crate) fn begin(&self, whose: u32, since: Instant, over: String) -> WaitingCall<'_> {
        let mut state = self.0.lock();
        state.count += 1;
        let key = (since, state.count);
        state.of.entry(whose).or_default().calls.insert(key);
        WaitingCall {
            all: self,
            whose,
            key,
            over,
        }
    }

    /// Those that have waited long.
    pub(crate) fn waits(&self) -> Waits {
        let state = self.0.lock();
        let all = state.of.values().flat_map(|of| &of.calls);
        Waits::of(all.map(|(since, _)| since.elapsed()))
    }
}

impl WaitingCall<'_> {
    /// Since the call was made first.
    pub(crate) fn since(&self) -> Instant {
        self.key.0
    }

    /// Logs that such calls wait, once until none does.
    pub(crate) fn tell(&self, what: impl FnOnce() -> String) {
        let mut state = self.all.0.lock();
        let of = state.of.entry(self.whose).or_default();
        if !std::mem::replace(&mut of.told, true) {
            tracing::warn!("{}", what());
        }
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        let mut state = self.all.0.lock();
        let of = state.of.entry(self.whose).or_default();
        of.calls.remove(&self.key);
        if of.calls.is_empty() {
            if of.told {
                tracing::warn!("{}", self.over);
            }
            state.of.remove(&self.whose);
        }
    }
}
