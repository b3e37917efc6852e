//! The duplicate-request cache: a call that is retransmitted (after a lost reply, on a new
//! connection) is answered with the first reply, and not executed again.

use lru::LruCache;
use nfsrdma_xdr::rpc::Call;
use parking_lot::Mutex;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// The number of bytes of the arguments that are compared.
const COMPARED: usize = 256;
/// Most duplicates of one call that wait for its end. Further ones are dropped.
const WAITERS_MAX: usize = 4;
/// Longest reply that is kept. Replies to calls that change something are all shorter.
const REPLY_MAX: usize = 4096;

/// The properties that two transmissions of one call share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallKey {
    address: IpAddr,
    /// The port is 0 over RDMA, where a new connection has another port.
    port: u16,
    xid: u32,
    length: usize,
    hash: u64,
}

impl CallKey {
    /// The key of a call from `peer` with these arguments, as far as they are not in chunks. The
    /// credential does not count: under RPCSEC_GSS each transmission has another one.
    pub fn new(peer: SocketAddr, rdma: bool, call: &Call<'_>, arguments: &[u8]) -> Self {
        let mut hasher = SipHasher13::new();
        for number in [call.program, call.version, call.procedure] {
            hasher.write_u32(number);
        }
        hasher.write(&arguments[..arguments.len().min(COMPARED)]);
        CallKey {
            address: peer.ip(),
            port: if rdma { 0 } else { peer.port() },
            xid: call.xid,
            length: arguments.len(),
            hash: hasher.finish(),
        }
    }
}

/// A function that gets the reply to a call that was already in progress.
pub(super) type Waiter = Box<dyn FnOnce(Option<Arc<[u8]>>) + Send>;

enum Entry {
    InProgress(Vec<Waiter>),
    Done(Arc<[u8]>),
}

/// What to do with a call.
#[derive(Debug)]
pub enum Admission {
    /// Execute it, and give the reply to the ticket.
    New(Ticket),
    /// Answer with this reply.
    Done(Arc<[u8]>),
    /// It is being executed; use [`Drc::wait`].
    InProgress,
}

/// The right and duty to finish a call. If it is dropped, the call is forgotten.
#[derive(Debug)]
pub struct Ticket {
    key: CallKey,
    drc: Option<Arc<Drc>>,
}

impl Ticket {
    /// Records the reply, and passes it to those who wait for it.
    pub fn finish(mut self, reply: &[u8]) {
        if let Some(drc) = self.drc.take() {
            let reply = (reply.len() <= REPLY_MAX).then(|| Arc::from(reply));
            drc.end(&self.key, reply);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(drc) = self.drc.take() {
            drc.end(&self.key, None);
        }
    }
}

/// Calls by key. The oldest is evicted first.
pub struct Drc {
    entries: Mutex<LruCache<CallKey, Entry>>,
}

impl std::fmt::Debug for Drc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Drc({} calls)", self.entries.lock().len())
    }
}

impl Drc {
    /// A cache of `size` calls; `None` for 0.
    pub fn new(size: usize) -> Option<Arc<Self>> {
        let size = NonZeroUsize::new(size)?;
        Some(Arc::new(Drc {
            entries: Mutex::new(LruCache::new(size)),
        }))
    }

    /// Forgets every call. Retransmissions of calls under way are not recognised then.
    pub fn clear(&self) {
        let mut entries = self.entries.lock();
        let out: Vec<Entry> = std::iter::from_fn(|| entries.pop_lru())
            .map(|(_, entry)| entry)
            .collect();
        drop(entries);
        for entry in out {
            if let Entry::InProgress(waiters) = entry {
                for waiter in waiters {
                    waiter(None);
                }
            }
        }
    }

    /// Looks a call up, and adds it if it is new.
    pub fn admit(self: &Arc<Self>, key: CallKey) -> Admission {
        let mut entries = self.entries.lock();
        match entries.get(&key) {
            Some(Entry::Done(reply)) => Admission::Done(reply.clone()),
            Some(Entry::InProgress(_)) => Admission::InProgress,
            None => {
                let out = entries.push(key, Entry::InProgress(Vec::new()));
                drop(entries);
                drop(out);
                Admission::New(Ticket {
                    key,
                    drc: Some(self.clone()),
                })
            }
        }
    }

    /// Passes the reply to `waiter` when it is there, which may be at once; `None` if there will be
    /// none.
    pub(super) fn wait(&self, key: &CallKey, waiter: Waiter) {
        let mut entries = self.entries.lock();
        let now = match entries.get_mut(key) {
            Some(Entry::InProgress(waiters)) if waiters.len() < WAITERS_MAX => {
                waiters.push(waiter);
                return;
            }
            Some(Entry::Done(reply)) => Some(reply.clone()),
            _ => None,
        };
        drop(entries);
        waiter(now);
    }

    fn end(&self, key: &CallKey, reply: Option<Arc<[u8]>>) {
        let mut entries = self.entries.lock();
        let waiters = match (&reply, entries.pop(key)) {
            (_, Some(Entry::InProgress(waiters))) => waiters,
            // Newer calls have evicted it meanwhile.
            _ => Vec::new(),
        };
        if let Some(reply) = &reply {
            entries.push(*key, Entry::Done(reply.clone()));
        }
        drop(entries);
        for waiter in waiters {
            waiter(reply.clone());
        }
    }
}
