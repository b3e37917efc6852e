//! The requester's state machine and a peer that chooses every message.

use nfsrdma_rpcrdma::protocol::{Event, Record, Requester};
use nfsrdma_xdr::rpcrdma::{ChunkLists, Segment};
use std::collections::HashSet;

/// A number, and what was offered.
struct Call(u32, ChunkLists);

impl Record for Call {
    fn offer(&self) -> &ChunkLists {
        &self.1
    }
}

/// The requester against a peer that chooses every message. The input has commands of one byte, and
/// messages with their lengths. No call ends twice, and credits and Receives are never exceeded.
pub fn requester(bytes: &[u8]) {
    const MAXIMUM: u32 = 8;
    let mut machine = Requester::<Call>::new(MAXIMUM);
    let mut pending = HashSet::new();
    let mut receives: u32 = 0;
    let mut next = 0;
    let mut rest = bytes;
    while let Some((&command, after)) = rest.split_first() {
        rest = after;
        match command % 8 {
            0 => {
                machine.receive_posted();
                receives += 1;
            }
            1 | 2 => {
                if !machine.reserve() {
                    continue;
                }
                let chunk = || {
                    [Segment {
                        handle: next,
                        length: 4096,
                        offset: 0,
                    }]
                    .into_iter()
                    .collect()
                };
                let offer = ChunkLists {
                    writes: (command & 8 != 0).then(chunk).into_iter().collect(),
                    reply: (command & 16 != 0).then(chunk),
                    ..ChunkLists::default()
                };
                if machine.launch(next, Call(next, offer)).is_err() {
                    machine.cancel();
                } else {
                    assert!(pending.insert(next), "an XID is in flight twice");
                }
                next = (next + 1) % 16;
            }
            3 => {
                let xid = u32::from(command >> 3) % 16;
                if let Some(call) = machine.withdraw(xid) {
                    assert!(pending.remove(&call.0), "withdrawn, and not pending");
                }
            }
            4 => {
                let mut lost: Vec<_> = machine.lost().into_iter().map(|call| call.0).collect();
                lost.sort_unstable();
                let mut all: Vec<_> = pending.drain().collect();
                all.sort_unstable();
                assert_eq!(lost, all, "what is lost is what was pending");
                receives = 0;
            }
            _ => {
                if receives == 0 {
                    continue;
                }
                let Some((&len, after)) = rest.split_first() else {
                    return;
                };
                let (message, after) = after.split_at(after.len().min(usize::from(len)));
                rest = after;
                receives -= 1;
                match machine.received(message) {
                    Event::Reply { call, placed, .. } => {
                        assert!(pending.remove(&call.0), "answered, and not pending");
                        assert!(placed.unwrap_or(0) <= 4096, "more than was offered");
                    }
                    Event::Failed { call, .. } => {
                        assert!(pending.remove(&call.0), "failed, and not pending");
                    }
                    Event::Discarded { xid, .. } => {
                        assert!(xid.is_none_or(|xid| pending.contains(&xid)), "not pending");
                    }
                }
            }
        }
        assert!((1..=MAXIMUM).contains(&machine.granted()));
        assert!(machine.used() <= MAXIMUM);
    }
}
