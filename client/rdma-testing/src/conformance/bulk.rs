//! Ordering, and large amounts of data.

use super::harness::{Bench, End, finish, part, pattern, send};
use nfsrdma_rdma::{Completion, Exposure, RemoteSegment, WorkId, WorkRequest};
use smallvec::smallvec;
use std::sync::Barrier;

//= RFC 5040, Section 5.1
//= type=test
//# The Data Source RDMAP layer MUST issue RDMA Write [...]
/// RFC 5040 section 5.5, rule 10: when a Send is received, the data of earlier Writes are placed.
pub fn a_send_comes_after_the_writes_before_it(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    for round in 0..100u64 {
        let len = 1 + (round as usize * 7919) % 60_000;
        let exposure = b.expose_sink(&a, &[len], 0);
        let data = pattern(len, round);
        let cut = len / 3;
        let mut batch: Vec<_> = [(0, cut), (cut, len)]
            .into_iter()
            .map(|(from, to)| WorkRequest::Write {
                id: WorkId(0),
                source: smallvec![a.buf(&data[from..to])],
                target: part(exposure.segments(), from, to - from)[0],
                signaled: false,
            })
            .collect();
        batch.push(send(
            WorkId(round),
            smallvec![a.buf(&round.to_be_bytes())],
            true,
        ));
        a.qp.post(&mut batch).unwrap();
        assert_eq!(b.receive().1, round.to_be_bytes());
        assert!(b.take_back(exposure) == data, "round {round}");
        a.wait("Sent", |c| matches!(c, Completion::Sent { .. }));
    }
    finish(a, b);
}

//= RFC 5040, Section 5.2.1
//= type=test
//# The Local Peer MUST pass to the DDP layer [...]
//# The Remote Peer MUST process the RDMA Read Request Messages in the order they were sent.
//= RFC 5040, Section 5.2.2
//= type=test
//# The Data Source RDMAP layer MUST pass RDMA Read [...]
//= RFC 5040, Section 5.5
//= type=test
//# RDMA Read Response Messages MUST be Delivered to the [...]
//# If more than one outstanding RDMA Read Request Messages [...]
/// Many more Reads than may be outstanding, followed by a Send.
pub fn more_reads_than_the_limit_complete_in_order(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    const COUNT: usize = 48;
    const LEN: usize = 16_411;
    let data = pattern(COUNT * LEN, 9);
    let exposure = b.expose_source(&a, &[data.len()], &data);
    let mut batch: Vec<_> = (0..COUNT)
        .map(|n| WorkRequest::Read {
            id: WorkId(n as u64),
            sink: smallvec![a.alloc(LEN)],
            source: part(exposure.segments(), n * LEN, LEN)[0],
        })
        .collect();
    batch.push(send(WorkId(99), smallvec![a.buf(b"behind")], true));
    a.qp.post(&mut batch).unwrap();
    for n in 0..COUNT {
        let done = a.wait("a Read", |c| matches!(c, Completion::Read { .. }));
        let Completion::Read { id, sink } = done else {
            unreachable!("it was matched");
        };
        assert_eq!(id, WorkId(n as u64), "rule 11: in order");
        assert!(sink[0][..] == data[n * LEN..(n + 1) * LEN]);
    }
    assert_eq!(b.receive().1, b"behind");
    b.take_back(exposure);
    finish(a, b);
}

/// Megabytes by Write and Read in both directions at once: neither side waits for the other to stop
/// writing before it reads.
pub fn bulk_moves_both_ways_at_once(bench: &Bench<'_>) {
    const LEN: usize = 1 << 20;
    const ROUNDS: u64 = 12;
    let (a, b) = bench.pair();
    let barrier = Barrier::new(2);
    let prepare = |end: &End, peer: &End, seed: u64| {
        let sink = end.expose_sink(peer, &[LEN], 0);
        let source = end.expose_source(peer, &[LEN], &pattern(LEN, seed));
        (sink, source)
    };
    let run =
        |end: &End, round: u64, sink: RemoteSegment, source: RemoteSegment, seeds: [u64; 2]| {
            let mine = end.buf(&pattern(LEN, seeds[0] + round));
            let mut batch = Vec::new();
            for n in 0..4 {
                let (from, len) = (n * LEN / 4, LEN / 4);
                batch.push(WorkRequest::Write {
                    id: WorkId(n as u64),
                    source: smallvec![mine.slice(from..from + len)],
                    target: part(&[sink], from, len)[0],
                    signaled: n == 3,
                });
                batch.push(WorkRequest::Read {
                    id: WorkId(10 + n as u64),
                    sink: smallvec![end.alloc(len)],
                    source: part(&[source], from, len)[0],
                });
            }
            batch.push(send(WorkId(20), smallvec![], false));
            barrier.wait();
            end.qp.post(&mut batch).unwrap();
            let theirs = pattern(LEN, seeds[1]);
            for n in 0..4 {
                let done = end.wait("a Read", |c| matches!(c, Completion::Read { .. }));
                let Completion::Read { id, sink } = done else {
                    unreachable!("it was matched");
                };
                assert_eq!(id, WorkId(10 + n as u64));
                assert!(sink[0][..] == theirs[n * LEN / 4..(n + 1) * LEN / 4]);
            }
            end.wait("Written", |c| matches!(c, Completion::Written { .. }));
            end.receive();
        };
    for round in 0..ROUNDS {
        let (sink_a, source_a) = prepare(&a, &b, 1000);
        let (sink_b, source_b) = prepare(&b, &a, 2000);
        let first = |exposure: &Exposure| exposure.segments()[0];
        std::thread::scope(|scope| {
            scope.spawn(|| run(&a, round, first(&sink_b), first(&source_b), [100, 2000]));
            scope.spawn(|| run(&b, round, first(&sink_a), first(&source_a), [200, 1000]));
        });
        assert!(a.take_back(sink_a) == pattern(LEN, 200 + round));
        assert!(b.take_back(sink_b) == pattern(LEN, 100 + round));
        a.take_back(source_a);
        b.take_back(source_b);
    }
    finish(a, b);
}
