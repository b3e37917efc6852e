//! Commands of tests about calls of the running server: let them fail or wait, or count them.

use super::failing::{Failing, Failure, Failures, procedure};
use nfsrdma_xdr::nfs3::ProcedureNumber;
use parking_lot::{Condvar, Mutex};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A held call continues after this time in any case.
const HOLD_MAX: Duration = Duration::from_secs(300);

/// A delay for calls of a procedure: `PROCEDURE=MS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delaying {
    procedure: Option<ProcedureNumber>,
    delay: Duration,
}

impl FromStr for Delaying {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, ms) = text
            .split_once('=')
            .ok_or("PROCEDURE=MS is wanted, as WRITE=100")?;
        let ms = ms.parse().map_err(|_| "MS is a number")?;
        Ok(Delaying {
            procedure: procedure(name)?,
            delay: Duration::from_millis(ms),
        })
    }
}

/// The stage at which a held call waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Before it is executed.
    Call,
    /// After it was executed, and before it is answered.
    Reply,
}

#[derive(Debug)]
struct Hold {
    procedure: Option<ProcedureNumber>,
    stage: Stage,
    /// The number of calls that are still to be held.
    left: u64,
    /// The number of calls that wait, and of those that may continue.
    waiting: u64,
    released: bool,
}

#[derive(Debug, Default)]
struct State {
    failures: Failures,
    delays: Vec<Delaying>,
    /// By number, so that a call finds its own hold again.
    holds: Vec<(u64, Hold)>,
    next: u64,
}

/// The state of the commands.
#[derive(Debug, Default)]
pub struct Script {
    state: Mutex<State>,
    changed: Condvar,
    /// Whether a call may have to wait.
    slow: AtomicBool,
    /// Whether a call may fail.
    fails: AtomicBool,
    calls: [AtomicU64; ProcedureNumber::COUNT],
}

impl Script {
    /// Adds a failure of calls.
    pub fn fail(&self, failing: Failing) {
        let mut state = self.state.lock();
        state.failures.add(failing);
        self.fails.store(true, Ordering::Relaxed);
    }

    /// Delays calls of a procedure from now on. Replaces an earlier delay of the same procedure.
    pub fn delay(&self, delaying: Delaying) {
        let mut state = self.state.lock();
        state.delays.retain(|d| d.procedure != delaying.procedure);
        if !delaying.delay.is_zero() {
            state.delays.push(delaying);
        }
        self.note_slow(&state);
    }

    /// Holds the next `count` calls of `procedure` (`None` for all but NULL) until
    /// [`Script::release`].
    pub fn hold(&self, procedure: Option<ProcedureNumber>, stage: Stage, count: u64) {
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        let hold = Hold {
            procedure,
            stage,
            left: count,
            waiting: 0,
            released: false,
        };
        state.holds.push((id, hold));
        self.note_slow(&state);
    }

    /// Lets held calls of a procedure, or all held calls, continue, and holds no further ones.
    pub fn release(&self, procedure: Option<ProcedureNumber>) {
        let mut state = self.state.lock();
        for (_, hold) in &mut state.holds {
            if procedure.is_none() || hold.procedure == procedure {
                hold.released = true;
            }
        }
        state.holds.retain(|(_, hold)| !hold.is_over());
        self.note_slow(&state);
        self.changed.notify_all();
    }

    /// The number of calls that are held now.
    pub fn held(&self) -> u64 {
        let state = self.state.lock();
        state.holds.iter().map(|(_, hold)| hold.waiting).sum()
    }

    /// Waits until this number of calls is held. Returns whether it was reached.
    pub fn wait_held(&self, count: u64, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.state.lock();
        loop {
            let held: u64 = state.holds.iter().map(|(_, hold)| hold.waiting).sum();
            if held >= count {
                return true;
            }
            if self.changed.wait_until(&mut state, until).timed_out() {
                return false;
            }
        }
    }

    /// Removes failures and delays, and releases held calls.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.failures.clear();
        self.fails.store(false, Ordering::Relaxed);
        state.delays.clear();
        drop(state);
        self.release(None);
    }

    /// The number of calls of each procedure.
    pub fn calls(&self) -> impl Iterator<Item = (ProcedureNumber, u64)> {
        ProcedureNumber::ALL
            .iter()
            .map(|p| (*p, self.calls[*p as usize].load(Ordering::Relaxed)))
    }

    fn note_slow(&self, state: &State) {
        let slow = !state.delays.is_empty() || !state.holds.is_empty();
        self.slow.store(slow, Ordering::Relaxed);
    }

    /// Whether a call may have to wait.
    pub(super) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    /// Counts a call, and blocks it as long as it has to wait. Returns its failure, if any.
    pub(super) fn arrive(&self, procedure: ProcedureNumber) -> Option<Failure> {
        self.calls[procedure as usize].fetch_add(1, Ordering::Relaxed);
        if self.is_slow() {
            self.wait(procedure, Stage::Call);
            let delay = {
                let state = self.state.lock();
                let of = |p| state.delays.iter().find(|d| d.procedure == p);
                let found = of(Some(procedure))
                    .or_else(|| of(None).filter(|_| procedure != ProcedureNumber::Null));
                found.map(|d| d.delay)
            };
            if let Some(delay) = delay {
                std::thread::sleep(delay);
            }
        }
        if !self.fails.load(Ordering::Relaxed) {
            return None;
        }
        self.state.lock().failures.next(procedure)
    }

    /// Blocks a call that was executed for as long as its reply is held.
    pub(super) fn depart(&self, procedure: ProcedureNumber) {
        if self.is_slow() {
            self.wait(procedure, Stage::Reply);
        }
    }

    fn wait(&self, procedure: ProcedureNumber, stage: Stage) {
        if procedure == ProcedureNumber::Null {
            return;
        }
        let mut state = self.state.lock();
        let found = state.holds.iter_mut().find(|(_, hold)| {
            hold.stage == stage
                && hold.left > 0
                && !hold.released
                && hold.procedure.is_none_or(|of| of == procedure)
        });
        let Some((id, hold)) = found else { return };
        let id = *id;
        hold.left -= 1;
        hold.waiting += 1;
        self.changed.notify_all();
        let until = Instant::now() + HOLD_MAX;
        loop {
            let timed_out = self.changed.wait_until(&mut state, until).timed_out();
            let Some((_, hold)) = state.holds.iter_mut().find(|(n, _)| *n == id) else {
                return;
            };
            if hold.released || timed_out {
                hold.waiting -= 1;
                break;
            }
        }
        state.holds.retain(|(_, hold)| !hold.is_over());
        self.note_slow(&state);
    }
}

impl Hold {
    fn is_over(&self) -> bool {
        self.waiting == 0 && (self.released || self.left == 0)
    }
}
