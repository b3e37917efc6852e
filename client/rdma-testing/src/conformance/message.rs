//! Sends and Receives.

use super::harness::{Bench, End, PATIENCE, RECEIVE_SIZE, RECEIVES, finish, pattern, send};
use nfsrdma_rdma::{
    Completion, Error, Handle, Instant, RemoteSegment, Wait, WorkId, WorkRequest, buf::MAX_BLOCK,
};
use smallvec::smallvec;

fn exchange(from: &End, to: &End, len: usize) {
    let data = pattern(len, len as u64);
    from.send(&data);
    assert_eq!(to.receive().1, data, "{len} bytes");
}

//= RFC 5041, Section 5.4
//= type=test
//# At the Data Sink, DDP MUST provide the ULP [...]
/// Messages of zero and one bytes, of lengths around multiples of four, and as long as the Receive.
pub fn sends_of_every_size_arrive(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    for len in [0, 1, 2, 3, 4, 5, 1023, 1024, RECEIVE_SIZE - 1, RECEIVE_SIZE] {
        exchange(&a, &b, len);
        exchange(&b, &a, len);
    }
    finish(a, b);
}

//= RFC 5041, Section 4.1
//= type=test
//# If set to zero, the ULP Payload carried in this DDP Segment MUST be Placed into an Untagged
//# Buffer.
/// One message from many buffers, some of which are empty.
pub fn sends_are_gathered(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    let lens = [3, 0, 1, 28, 1000, 4, 7, 0, 513, 100, 64];
    let data = pattern(lens.iter().sum(), 5);
    let mut rest = &data[..];
    let pieces = lens
        .iter()
        .map(|&len| {
            let (now, later) = rest.split_at(len);
            rest = later;
            // A part of a larger buffer, at an odd offset.
            let mut padded = vec![0xee; 5];
            padded.extend_from_slice(now);
            padded.push(0xee);
            a.buf(&padded).slice(5..5 + len)
        })
        .collect();
    a.post(send(WorkId(1), pieces, true));
    assert_eq!(b.receive().1, data);
    a.sent(WorkId(1));
    a.post(send(WorkId(2), smallvec![], true));
    assert_eq!(b.receive().1, b"");
    finish(a, b);
}

/// Sends posted by `post_later` are sent by a flush or by the next `post`, before later requests.
pub fn sends_put_off_keep_their_order(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    let later = |id: u64, text: &[u8]| {
        let request = send(WorkId(id), smallvec![a.buf(text)], true);
        a.qp.post_later(request).unwrap();
    };
    later(1, b"one");
    later(2, b"two");
    a.post(send(WorkId(3), smallvec![a.buf(b"three")], true));
    later(4, b"four");
    a.qp.kick();
    for (id, text) in [(1, "one"), (2, "two"), (3, "three"), (4, "four")] {
        assert_eq!(b.receive().1, text.as_bytes());
        a.sent(WorkId(id));
    }
    a.qp.kick();
    finish(a, b);
}

/// A message as large as the provider allows, but at most a megabyte.
pub fn a_large_send_arrives(bench: &Bench<'_>) {
    let mut params = bench.params();
    params.receive_buffers = 1;
    let (a, b) = bench.pair_with(bench.params(), params);
    let len = a.qp.capabilities().max_message.min(1 << 20);
    // The small Receive is used first, then the large one.
    b.qp.post_receive(b.id(), b.alloc(len)).unwrap();
    exchange(&a, &b, 10);
    let data = pattern(len, 8);
    a.send(&data);
    assert_eq!(b.receive().1, data);
    finish(a, b);
}

//= RFC 5040, Section 5.3
//= type=test
//# At the Remote Peer, the Send Message Type MUST [...]
//# The Local Peer MUST issue Send Message Type Messages in the order they were submitted by the
//# ULP.
//= RFC 5040, Section 5.5
//= type=test
//# Send Messages MUST be Delivered to the ULP at [...]
//# The RDMAP layer MUST submit RDMA Messages to the [...]
//= RFC 5041, Section 5.3
//= type=test
//# MUST transmit DDP Messages in the order they were submitted to the DDP layer,
//# MUST Deliver a DDP Message to the ULP at most once,
//# MUST Deliver DDP Messages to the ULP in the order they were sent by the Data Source.
/// Thousands of messages arrive in order while each Receive is posted again, and their completions
/// are in order, too.
pub fn sends_arrive_in_order(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    const COUNT: u64 = 2000;
    const ROUND: u64 = 8;
    for first in (0..COUNT).step_by(ROUND as usize) {
        let mut batch: Vec<_> = (first..first + ROUND)
            .map(|n| send(WorkId(n), smallvec![a.buf(&n.to_be_bytes())], n % 3 != 0))
            .collect();
        a.qp.post(&mut batch).unwrap();
        assert!(batch.is_empty(), "what is accepted is taken");
        for n in first..first + ROUND {
            assert_eq!(b.receive().1, n.to_be_bytes());
        }
        for n in (first..first + ROUND).filter(|n| n % 3 != 0) {
            let done = a.wait("Sent", |c| matches!(c, Completion::Sent { .. }));
            assert!(matches!(done, Completion::Sent { id } if id == WorkId(n)));
        }
        b.send(b"round");
        assert_eq!(a.receive().1, b"round");
    }
    finish(a, b);
}

/// Messages in both directions at once, each with a window.
pub fn sends_cross(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    const COUNT: u32 = 600;
    const WINDOW: u32 = RECEIVES as u32 / 2;
    let run = |end: &End| {
        let (mut sent, mut received) = (0, 0);
        while received < COUNT {
            // If we have all but WINDOW of the peer's messages, it has as many of ours.
            while sent < COUNT && sent < received + WINDOW {
                end.send(&pattern(100 + sent as usize, u64::from(sent)));
                sent += 1;
            }
            let (_, data) = end.receive();
            assert_eq!(data, pattern(100 + received as usize, u64::from(received)));
            received += 1;
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(&a));
        scope.spawn(|| run(&b));
    });
    finish(a, b);
}

/// Requests beyond `send_depth` are returned, and accepted later.
pub fn a_full_send_queue_gives_the_rest_back(bench: &Bench<'_>) {
    let (mut small, large) = (bench.params(), bench.params());
    small.send_depth = 4;
    // The test itself polls this end, so that nothing completes unnoticed.
    let (mut a, b) = bench.connect(&small, &large);
    let b = End::new(b, large.pool.clone());
    let buf = small.pool.alloc(1).unwrap().freeze();
    let mut batch: Vec<_> = (0..7)
        .map(|n| send(WorkId(n), smallvec![buf.clone()], true))
        .collect();
    drop(buf);
    let outcome = a.queue_pair.post(&mut batch);
    assert!(matches!(outcome, Err(Error::QueueFull)), "{outcome:?}");
    assert_eq!(batch.len(), 3);
    let mut out = Vec::new();
    while out.len() < 4 {
        let wait = Wait::Until(Instant::now() + PATIENCE);
        a.completions.poll(&mut out, wait).unwrap();
    }
    a.queue_pair.post(&mut batch).unwrap();
    assert!(batch.is_empty());
    while out.len() < 7 {
        let wait = Wait::Until(Instant::now() + PATIENCE);
        a.completions.poll(&mut out, wait).unwrap();
    }
    for (n, done) in out.iter().enumerate() {
        assert!(matches!(done, Completion::Sent { id } if id.0 == n as u64));
    }
    for _ in 0..7 {
        b.receive();
    }
    drop(a);
    b.ended(1);
}

/// An unsignaled request never completes, but its buffers are returned: many more requests than the
/// queue holds, from a small pool.
pub fn unsignaled_sends_complete_silently(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    for round in 0..100u64 {
        for n in 0..8 {
            let data = pattern(1000, round * 8 + n);
            a.post(send(WorkId(n), smallvec![a.buf(&data)], false));
            assert_eq!(b.receive().1, data);
        }
        // The answer to the last request, as a requester gets it; no Sent.
        exchange(&b, &a, 1);
    }
    a.qp.disconnect();
    a.ended(1);
    for completion in a.rest() {
        // Only the Receives must complete.
        let Completion::Flushed { memory, .. } = &completion else {
            panic!("{completion:?}");
        };
        assert!(memory.is_some(), "{completion:?}");
    }
    finish(a, b);
}

/// A request that violates the contract fails with [`Error::Misuse`]. It stays in the batch with
/// those behind it, those before it are executed, and the connection lives.
pub fn misuse_is_reported_and_harmless(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    let target = RemoteSegment {
        handle: Handle(1),
        length: 11,
        offset: 0,
    };
    let bad = [
        WorkRequest::Write {
            id: WorkId(1),
            source: smallvec![a.buf(&[0; 10])],
            target,
            signaled: true,
        },
        WorkRequest::Read {
            id: WorkId(2),
            sink: smallvec![a.alloc(12)],
            source: target,
        },
        {
            // The same block, so often that it exceeds the largest message of any device.
            let block = a.alloc(MAX_BLOCK).freeze();
            let count = a.qp.capabilities().max_message / MAX_BLOCK + 1;
            send(WorkId(3), std::iter::repeat_n(block, count).collect(), true)
        },
    ];
    for bad in bad {
        let mut batch = vec![
            send(WorkId(10), smallvec![a.buf(b"before")], true),
            bad,
            send(WorkId(11), smallvec![a.buf(b"after")], true),
        ];
        let outcome = a.qp.post(&mut batch);
        assert!(matches!(outcome, Err(Error::Misuse(_))), "{outcome:?}");
        assert_eq!(batch.len(), 2);
        assert_eq!(b.receive().1, b"before");
        a.post(batch.pop().unwrap());
        assert_eq!(b.receive().1, b"after");
        for id in [10, 11] {
            a.sent(WorkId(id));
        }
    }
    finish(a, b);
}

/// RFC 5041 section 7.2, RFC 5040 section 7: the stream is torn down.
pub fn a_send_longer_than_the_receive_ends_the_connection(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    a.post(send(
        WorkId(1),
        smallvec![a.buf(&[0; RECEIVE_SIZE + 1])],
        false,
    ));
    b.ended(1);
    a.ended(1);
    assert!(
        b.rest()
            .iter()
            .all(|c| matches!(c, Completion::Flushed { .. }))
    );
    finish(a, b);
}

/// The same without a posted Receive.
pub fn a_send_without_a_receive_ends_the_connection(bench: &Bench<'_>) {
    let mut params = bench.params();
    params.receive_buffers = 1;
    let (a, b) = bench.pair_with(bench.params(), params);
    // `pair` has posted the only Receive again.
    for n in 0..2 {
        a.post(send(WorkId(n), smallvec![a.buf(&[1; 10])], false));
    }
    b.ended(1);
    a.ended(1);
    let rest = b.rest();
    let received = rest
        .iter()
        .filter(|c| matches!(c, Completion::Received { .. }));
    assert_eq!(received.count(), 1);
    assert_eq!(rest.len(), 1);
    drop(rest);
    finish(a, b);
}

/// Send with Invalidate: the handle is invalid when the message is received.
pub fn a_send_can_invalidate(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    if !b.qp.capabilities().remote_invalidate {
        println!(
            "skipped: {} has no remote invalidation",
            bench.provider.name()
        );
        return finish(a, b);
    }
    let exposure = b.expose_sink(&a, &[5000], 0);
    let segment = exposure.segments()[0];
    a.write(&[segment], &pattern(5000, 1));
    a.send_invalidating(segment.handle, b"take it back");
    let (_, data, invalidated) = b.receive_any();
    assert_eq!(data, b"take it back");
    assert_eq!(invalidated, Some(segment.handle));
    assert_eq!(b.take_back(exposure), pattern(5000, 1));
    // The next exposure is independent.
    let exposure = b.expose_sink(&a, &[10], 0);
    a.write(&[exposure.segments()[0]], &[7; 10]);
    exchange(&a, &b, 1);
    assert_eq!(b.take_back(exposure), [7; 10]);
    finish(a, b);
}
