//! The end of a connection, and waking a poll.

use super::harness::{Bench, End, PATIENCE, RECEIVES, all_returned, finish, part, pattern, send};
use nfsrdma_rdma::{Completion, Error, Exposure, Instant, Memory, Wait, WorkId, WorkRequest};
use smallvec::smallvec;
use std::collections::HashMap;
use std::time::Duration;

/// A connection with Receives, a sink and a source at both ends, and requests under way from `a`.
struct Load {
    a: End,
    b: End,
    exposures: [Exposure; 4],
    /// The requests of `a` that must complete, in addition to its Receives.
    owed: Vec<WorkId>,
}

const LEN: usize = 1 << 18;

fn load(bench: &Bench<'_>) -> Load {
    let (a, b) = bench.pair();
    let data = pattern(LEN, 3);
    let exposures = [
        a.expose_sink(&b, &[LEN], 0),
        a.expose_source(&b, &[LEN], &data),
        b.expose_sink(&a, &[LEN], 0),
        b.expose_source(&a, &[LEN], &data),
    ];
    let mut batch = Vec::new();
    let mut owed = Vec::new();
    for n in 0..12 {
        let id = a.id();
        owed.push(id);
        batch.push(match n % 3 {
            0 => WorkRequest::Read {
                id,
                sink: smallvec![a.alloc(LEN)],
                source: exposures[3].segments()[0],
            },
            1 => WorkRequest::Write {
                id,
                source: smallvec![a.buf(&data)],
                target: part(exposures[2].segments(), 0, LEN)[0],
                signaled: true,
            },
            _ => WorkRequest::Send {
                id,
                data: smallvec![a.buf(&data[..100])],
                invalidate: None,
                signaled: true,
            },
        });
        batch.push(send(WorkId(u64::MAX), smallvec![a.buf(&data[..10])], false));
    }
    a.qp.post(&mut batch).unwrap();
    assert!(batch.is_empty());
    Load {
        a,
        b,
        exposures,
        owed,
    }
}

/// Each id in `owed` and each Receive has completed exactly once, and nothing else has.
fn assert_all_completed(end: &End, owed: &[WorkId]) {
    let mut count: HashMap<WorkId, usize> = HashMap::new();
    let mut receives = 0;
    for completion in end.rest() {
        let id = match completion {
            Completion::Sent { id } | Completion::Written { id } => id,
            Completion::Read { id, sink } => {
                assert_eq!(sink.iter().map(|b| b.len()).sum::<usize>(), LEN);
                id
            }
            Completion::Received { id, .. } => {
                assert!(id.0 < RECEIVES as u64);
                id
            }
            Completion::Flushed { id, memory } => {
                if let Some(Memory::Sink(bufs)) = &memory {
                    assert_eq!(bufs.len(), 1, "the sink comes back");
                }
                id
            }
            Completion::Invalidated { .. } => panic!("nothing was invalidated"),
        };
        *count.entry(id).or_default() += 1;
        receives += usize::from(id.0 < RECEIVES as u64);
    }
    for id in owed {
        assert_eq!(count.get(id), Some(&1), "one completion for {id:?}");
    }
    assert_eq!(receives, RECEIVES, "each Receive completes");
    assert_eq!(count.len(), owed.len() + RECEIVES, "{count:?}");
    assert!(count.values().all(|&n| n == 1), "{count:?}");
}

fn flushed_once(bench: &Bench<'_>, by_loaded_end: bool) {
    let Load {
        a,
        b,
        exposures,
        owed,
    } = load(bench);
    if by_loaded_end {
        a.qp.disconnect();
    } else {
        b.qp.disconnect();
    }
    for end in [&a, &b] {
        let error = end.ended(1);
        let by_itself = std::ptr::eq(end, &a) == by_loaded_end;
        assert!(
            matches!(error, Error::LinkLost(_)) || !by_itself,
            "{error:?}"
        );
        assert!(end.has_ended());
    }
    assert_all_completed(&a, &owed);
    assert_all_completed(&b, &[]);
    let [sink_a, source_a, sink_b, source_b] = exposures;
    let data = pattern(LEN, 3);
    assert!(a.take_back(sink_a) == vec![0; LEN], "nobody wrote here");
    assert!(a.take_back(source_a) == data);
    // Any part of the data may have been written.
    let found = b.take_back(sink_b);
    assert!(found.iter().zip(&data).all(|(f, d)| f == d || *f == 0));
    assert!(b.take_back(source_b) == data);
    finish(a, b);
}

/// Disconnecting with everything under way: each request completes once at both ends, and all
/// memory is returned.
pub fn disconnecting_flushes_everything_once(bench: &Bench<'_>) {
    for _ in 0..4 {
        flushed_once(bench, true);
    }
}

//= RFC 5041, Section 3
//= type=test
//# For a specific LLP Stream, the LLP MUST provide [...]
//# For a specific LLP Connection, the LLP MUST provide [...]
//= RFC 5041, Section 6.2.1
//= type=test
//# Following this event, when the Local Peer ULP requests [...]
/// The same when the peer disconnects.
pub fn being_disconnected_flushes_everything_once(bench: &Bench<'_>) {
    for _ in 0..4 {
        flushed_once(bench, false);
    }
}

/// Dropping a connection with unread completions ends it and returns all memory.
pub fn dropping_a_connection_ends_it(bench: &Bench<'_>) {
    let (mine, theirs) = (bench.params(), bench.params());
    let (a, b) = bench.connect(&mine, &theirs);
    let b = End::new(b, theirs.pool.clone());
    let mut batch = vec![send(
        WorkId(0),
        smallvec![mine.pool.alloc(9).unwrap().freeze()],
        true,
    )];
    a.queue_pair.post(&mut batch).unwrap();
    b.receive();
    b.send(b"never read");
    let exposure = a
        .queue_pair
        .expose(Memory::Sink(smallvec![mine.pool.alloc(100).unwrap()]))
        .unwrap();
    drop(a);
    assert!(matches!(
        b.ended(1),
        Error::LinkLost(_) | Error::PeerReported(_)
    ));
    drop(exposure);
    all_returned(&mine.pool);
    b.close();
    all_returned(&theirs.pool);
}

//= RFC 5041, Section 6.2.1
//= type=test
//# If the Local Peer ULP indicates graceful teardown, the [...]
/// After the end of the connection, requests are accepted and flushed.
pub fn what_is_posted_after_the_end_is_flushed(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    b.qp.disconnect();
    a.ended(1);
    a.rest();
    let posted: Vec<_> = (0..4).map(|_| a.id()).collect();
    let remote = nfsrdma_rdma::RemoteSegment {
        handle: nfsrdma_rdma::Handle(7),
        length: 10,
        offset: 0,
    };
    let mut batch = vec![
        send(posted[0], smallvec![a.buf(b"too late")], true),
        send(WorkId(u64::MAX), smallvec![a.buf(b"too late, too")], false),
        WorkRequest::Write {
            id: posted[1],
            source: smallvec![a.buf(&[0; 10])],
            target: remote,
            signaled: true,
        },
        WorkRequest::Read {
            id: posted[2],
            sink: smallvec![a.alloc(10)],
            source: remote,
        },
    ];
    a.qp.post(&mut batch).unwrap();
    assert!(batch.is_empty());
    a.qp.post_receive(posted[3], a.alloc(11)).unwrap();
    for (id, owes) in posted.into_iter().zip([None, None, Some(10), Some(11)]) {
        let done = a.wait(
            "the flush",
            |c| matches!(c, Completion::Flushed { id: done, .. } if *done == id),
        );
        let Completion::Flushed { memory, .. } = done else {
            unreachable!("it was matched");
        };
        assert_eq!(memory.map(|m| m.len()), owes);
    }
    assert!(a.rest().is_empty());
    finish(a, b);
}

/// Each later poll returns the same reason. (The harness compares them.)
pub fn the_reason_of_the_end_is_repeated(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    a.qp.disconnect();
    a.ended(3);
    b.ended(3);
    // Ending it again has no effect.
    a.qp.disconnect();
    b.qp.disconnect();
    a.ended(5);
    finish(a, b);
}

/// A caller that posts before each poll still gets the end, and each completion.
pub fn who_keeps_posting_learns_of_the_end(bench: &Bench<'_>) {
    let params = [bench.params(), bench.params()];
    let (mut a, b) = bench.connect(&params[0], &params[1]);
    let mut out = Vec::new();
    let mut rounds = 0;
    drop(b);
    let outcome = loop {
        rounds += 1;
        let mut batch = vec![send(
            WorkId(1000 + rounds),
            smallvec![params[0].pool.alloc(1).unwrap().freeze()],
            true,
        )];
        match a.queue_pair.post(&mut batch) {
            // This end does not know of the end yet.
            Ok(()) | Err(Error::QueueFull) => {}
            Err(error) => panic!("{error}"),
        }
        if !batch.is_empty() {
            rounds -= 1;
        }
        let wait = Wait::Until(Instant::now() + PATIENCE);
        match a.completions.poll(&mut out, wait) {
            // A device may need time to find out that nobody answers; a request completes each
            // time.
            Ok(()) => assert!(rounds < 100_000, "the end is never told"),
            Err(error) => break error,
        }
    };
    assert!(!matches!(outcome, Error::Misuse(_)), "{outcome:?}");
    let completed = |id: u64| {
        let of = |c: &&Completion| match c {
            Completion::Sent { id } | Completion::Flushed { id, .. } => *id,
            _ => WorkId(0),
        };
        out.iter().filter(|c| of(c).0 == id).count()
    };
    for id in [1001, 1000 + rounds] {
        assert_eq!(completed(id), 1, "one completion for {id}");
    }
}

/// `wake` ends the poll that sleeps; if none does, the next poll returns at once.
pub fn wake_returns_a_poll(bench: &Bench<'_>) {
    let params = [bench.params(), bench.params()];
    let (mut a, b) = bench.connect(&params[0], &params[1]);
    let mut out = Vec::new();
    a.queue_pair.wake();
    a.completions.poll(&mut out, Wait::Forever).unwrap();
    let qp = a.queue_pair.clone();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut out = Vec::new();
            let outcome = a.completions.poll(&mut out, Wait::Forever);
            (outcome.is_ok(), out.len())
        });
        qp.wake();
        assert_eq!(sleeper.join().unwrap(), (true, 0));
    });
    assert!(out.is_empty());
    drop(b);
}

/// [`Wait::No`] does not wait, [`Wait::Until`] waits until that time.
pub fn a_poll_waits_no_longer_than_told(bench: &Bench<'_>) {
    let params = [bench.params(), bench.params()];
    let (mut a, b) = bench.connect(&params[0], &params[1]);
    let mut out = Vec::new();
    a.completions.poll(&mut out, Wait::No).unwrap();
    let until = Instant::now() + Duration::from_millis(50);
    a.completions.poll(&mut out, Wait::Until(until)).unwrap();
    assert!(Instant::now() >= until, "it waited");
    assert!(Instant::now() < until + PATIENCE);
    assert!(out.is_empty());
    // A time in the past is like `No`.
    a.completions.poll(&mut out, Wait::Until(until)).unwrap();
    drop(b);
}
