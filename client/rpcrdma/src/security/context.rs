//! A context with its sequence numbers.
//!
//! The server remembers the numbers of a window up to the highest that it has seen, and drops a call
//! whose number is below the window or was seen already (RFC 2203 section 5.3.3.1). Linux's server also
//! closes the connection then. So each transmission takes a new number, and none is taken that would put
//! the oldest open one out of the window: the server may not have looked at that call yet. Calls that find
//! no number wait, and the connections that have such calls are woken when an answer moves the window.
//!
//! | a number is open until          | if the call has | because                                     |
//! | ------------------------------- | --------------- | ------------------------------------------- |
//! | its call is answered            | data            | the server fetches them, and looks then     |
//! | that, or a number of half a     | none            | the calls of a connection are taken up in   |
//! | window more is answered on its  |                 | order: it was, is slow, and holds nobody    |
//! | connection                      |                 | back                                        |

use super::SecurityContext;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use nfsrdma_rdma::QueuePair;
use nfsrdma_xdr::rpcsec_gss::MAX_SEQUENCE;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Numbers that are left for retransmissions when a context counts as used up.
const RESERVE: u32 = 1 << 20;

/// A context of one user with the server, for any number of connections and programs.
pub struct Context {
    security: Box<dyn SecurityContext>,
    numbers: Mutex<Numbers>,
    made: Instant,
    /// Whether the server has answered a call under it.
    known: AtomicBool,
}

struct Numbers {
    next: u32,
    /// Those that the server may not have seen yet, and the connections on which calls without data
    /// were posted.
    open: BTreeMap<u32, Option<usize>>,
    /// Connections on which calls wait for a number.
    blocked: Vec<Arc<dyn QueuePair>>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.security).finish()
    }
}

impl Context {
    /// A context that was just established.
    pub fn new(security: Box<dyn SecurityContext>) -> Self {
        Context {
            security,
            numbers: Mutex::new(Numbers {
                next: 1,
                open: BTreeMap::new(),
                blocked: Vec::new(),
            }),
            made: Instant::now(),
            known: AtomicBool::new(false),
        }
    }

    /// The server has answered a call under it.
    pub fn note_known(&self) {
        if !self.is_known() {
            self.known.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed)
    }

    /// Since it was made.
    pub(super) fn age(&self) -> Duration {
        self.made.elapsed()
    }

    /// What the mechanism provides.
    pub fn security(&self) -> &dyn SecurityContext {
        &*self.security
    }

    /// Whether new calls should use another context: the server accepts this one no longer, or its
    /// numbers are used up (RFC 2203 section 5.3.3.1).
    pub fn is_over(&self, now: SystemTime) -> bool {
        let expires = self.security.expires();
        expires.is_some_and(|at| at.duration_since(now).unwrap_or(Duration::ZERO).is_zero())
            || self.numbers.lock().next >= MAX_SEQUENCE - RESERVE
    }

    /// Takes a number for a transmission on the connection of `queue_pair`. `None` if there is none
    /// now; then `queue_pair` is woken when there may be one.
    pub(crate) fn take(&self, queue_pair: &Arc<dyn QueuePair>) -> Option<u32> {
        let mut numbers = self.numbers.lock();
        if !numbers.has_room(self.security.window(), queue_pair) {
            return None;
        }
        let number = numbers.next;
        numbers.next += 1;
        numbers.open.insert(number, None);
        Some(number)
    }

    /// A call without data and with this number was posted. Those posted on its connection later reach
    /// the server later.
    pub(crate) fn posted(&self, number: u32, queue_pair: &Arc<dyn QueuePair>) {
        if let Some(connection) = self.numbers.lock().open.get_mut(&number) {
            *connection = Some(address(queue_pair));
        }
    }

    /// Whether [`Context::take`] would find a number.
    pub(crate) fn has_room(&self, queue_pair: &Arc<dyn QueuePair>) -> bool {
        let mut numbers = self.numbers.lock();
        numbers.has_room(self.security.window(), queue_pair)
    }

    /// The transmission with this number was answered, or its connection has ended.
    pub(crate) fn give(&self, number: u32) {
        let blocked = {
            let mut numbers = self.numbers.lock();
            let before = numbers.oldest();
            let seen = number.saturating_sub(self.security.window() / 2);
            let connection = numbers.open.remove(&number).flatten();
            if connection.is_some() {
                let open = &mut numbers.open;
                open.retain(|&other, on| other > seen || *on != connection);
            }
            match numbers.oldest() == before {
                true => Vec::new(),
                false => std::mem::take(&mut numbers.blocked),
            }
        };
        blocked.iter().for_each(|queue_pair| queue_pair.wake());
    }
}

/// Tells connections apart, as long as calls are under way on them.
fn address(queue_pair: &Arc<dyn QueuePair>) -> usize {
    Arc::as_ptr(queue_pair).addr()
}

impl Numbers {
    fn oldest(&self) -> u32 {
        let oldest = self.open.first_key_value();
        oldest.map_or(self.next, |(number, _)| *number)
    }

    fn has_room(&mut self, window: u32, queue_pair: &Arc<dyn QueuePair>) -> bool {
        if self.next - self.oldest() < window.max(1) && self.next < MAX_SEQUENCE {
            return true;
        }
        let mut blocked = self.blocked.iter();
        if !blocked.any(|other| Arc::ptr_eq(other, queue_pair)) {
            self.blocked.push(queue_pair.clone());
        }
        false
    }
}
