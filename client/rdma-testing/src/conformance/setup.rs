//! Connecting, listening, rejecting.

use super::harness::{Bench, End, PATIENCE, all_returned, finish, part, pattern};
use nfsrdma_rdma::{Error, PRIVATE_DATA_MAX, Pool};
use std::time::{Duration, Instant};

/// Whether `got` is `sent`, followed only by zeros (some transports pad).
fn is_padded(got: &[u8], sent: &[u8]) -> bool {
    got.starts_with(sent) && got[sent.len()..].iter().all(|&byte| byte == 0)
}

/// The accepting side gets the private data of the request, and the connecting side those of the
/// acceptance.
pub fn private_data_goes_both_ways(bench: &Bench<'_>) {
    for (forth, back) in [(0, 0), (1, 2), (8, 8), (PRIVATE_DATA_MAX, PRIVATE_DATA_MAX)] {
        let (mut a, mut b) = (bench.params(), bench.params());
        a.private_data = pattern(forth, 1);
        b.private_data = pattern(back, 2);
        let listener = bench.provider.listen(bench.at).unwrap();
        let addr = listener.local_addr();
        assert_ne!(addr.port(), 0, "a free port was taken");
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| {
                let outcome = bench.provider.connect(addr, &a);
                if outcome.is_err() {
                    listener.close();
                }
                outcome
            });
            let mut incoming = match listener.accept() {
                Ok(incoming) => incoming,
                Err(error) => panic!("{error}; connect: {:?}", connecting.join().unwrap()),
            };
            let request = incoming.request(PATIENCE).unwrap();
            assert!(is_padded(&request, &a.private_data), "{request:?}");
            assert_eq!(incoming.peer_addr().ip(), bench.at.ip());
            let accepted = incoming.accept(&b).unwrap();
            assert!(is_padded(&accepted.peer_private_data, &a.private_data));
            let connected = connecting.join().unwrap().unwrap();
            assert!(is_padded(&connected.peer_private_data, &b.private_data));
            assert_eq!(connected.queue_pair.peer_addr(), addr);
            assert_eq!(accepted.queue_pair.local_addr(), addr);
        });
    }
}

//= RFC 5044, Section 7.1.1
//= type=test
//# The Private Data field MUST be between 0 and 512 octets in length.
/// More private data than every transport carries is misuse; they are not truncated.
pub fn private_data_has_a_largest_size(bench: &Bench<'_>) {
    let listener = bench.provider.listen(bench.at).unwrap();
    let mut params = bench.params();
    params.private_data = vec![0; PRIVATE_DATA_MAX + 1];
    let outcome = bench.provider.connect(listener.local_addr(), &params);
    assert!(matches!(outcome, Err(Error::Misuse(_))), "{outcome:?}");
}

/// The peer gets the private data of a rejection.
pub fn rejection_carries_private_data(bench: &Bench<'_>) {
    let listener = bench.provider.listen(bench.at).unwrap();
    let addr = listener.local_addr();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| bench.provider.connect(addr, &bench.params()));
        let mut incoming = listener.accept().unwrap();
        incoming.request(PATIENCE).unwrap();
        incoming.reject(b"not today");
        match connecting.join().unwrap() {
            Err(Error::Refused(why)) => assert!(is_padded(&why, b"not today"), "{why:?}"),
            other => panic!("rejected, yet {other:?}"),
        }
    });
}

/// Dropping a request rejects it.
pub fn a_dropped_request_is_a_rejection(bench: &Bench<'_>) {
    let listener = bench.provider.listen(bench.at).unwrap();
    let addr = listener.local_addr();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| bench.provider.connect(addr, &bench.params()));
        let mut incoming = listener.accept().unwrap();
        incoming.request(PATIENCE).unwrap();
        drop(incoming);
        let outcome = connecting.join().unwrap();
        assert!(matches!(outcome, Err(Error::Refused(_))), "{outcome:?}");
    });
}

/// If nobody listens, connecting is refused and does not time out.
pub fn refused_where_nobody_listens(bench: &Bench<'_>) {
    let listener = bench.provider.listen(bench.at).unwrap();
    let addr = listener.local_addr();
    drop(listener);
    let params = bench.params();
    let outcome = bench.provider.connect(addr, &params);
    assert!(matches!(outcome, Err(Error::Refused(_))), "{outcome:?}");
    assert_eq!(params.pool.free_bytes(), params.pool.capacity());
}

/// If a listener never answers, connecting times out in time.
pub fn silence_times_out(bench: &Bench<'_>) {
    let listener = bench.provider.listen(bench.at).unwrap();
    let mut params = bench.params();
    params.timeout = Duration::from_millis(300);
    let began = Instant::now();
    let outcome = bench.provider.connect(listener.local_addr(), &params);
    assert!(matches!(outcome, Err(Error::TimedOut(_))), "{outcome:?}");
    let waited = began.elapsed();
    assert!(waited >= params.timeout, "it waited");
    // With a wide margin: the transport's own time-out must not be what ends the wait.
    assert!(
        waited < params.timeout + Duration::from_secs(5),
        "{waited:?}"
    );
    all_returned(&params.pool);
}

/// `close` ends the `accept` that waits, and each later one.
pub fn closing_a_listener_ends_accept(bench: &Bench<'_>) {
    let listener = bench.provider.listen(bench.at).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| listener.accept().err());
        listener.close();
        let outcome = waiting.join().unwrap();
        assert!(matches!(outcome, Some(Error::LinkLost(_))), "{outcome:?}");
    });
    let outcome = listener.accept().err();
    assert!(matches!(outcome, Some(Error::LinkLost(_))), "{outcome:?}");
}

/// Connecting allocates the first Receives from the pool, or fails.
pub fn a_pool_too_small_for_the_receives_is_a_local_error(bench: &Bench<'_>) {
    let listener = bench.provider.listen(bench.at).unwrap();
    let mut params = bench.params();
    params.pool = Pool::new(1).unwrap();
    params.receive_size = nfsrdma_rdma::buf::MAX_BLOCK;
    let outcome = bench.provider.connect(listener.local_addr(), &params);
    assert!(matches!(outcome, Err(Error::Local { .. })), "{outcome:?}");
    assert_eq!(params.pool.free_bytes(), params.pool.capacity());
}

//= RFC 5040, Section 6.1
//= type=test
//# The RDMAP layer MUST provide the maximum number of outstanding, inbound [...]
//# The RDMAP layer MUST provide the maximum number of outstanding, outbound [...]
/// Neither side issues more Reads than the other serves, and a requester that issues none can still
/// serve them.
pub fn reads_are_negotiated(bench: &Bench<'_>) {
    let (mut a, mut b) = (bench.params(), bench.params());
    (a.reads_out, a.reads_in) = (0, 3);
    (b.reads_out, b.reads_in) = (2, 1);
    let (a, b) = bench.pair_with(a, b);
    assert_eq!(a.qp.capabilities().max_reads_out, 0);
    assert!((1..=3).contains(&a.qp.capabilities().max_reads_in));
    assert!((1..=2).contains(&b.qp.capabilities().max_reads_out));
    let data = pattern(10_000, 3);
    let exposure = a.expose_source(&b, &[10_000], &data);
    assert_eq!(b.read(exposure.segments()), data);
    a.take_back(exposure);
    finish(a, b);
}

/// Several connections at once; the end of one does not affect the others.
pub fn connections_are_independent(bench: &Bench<'_>) {
    let listener = bench.provider.listen(bench.at).unwrap();
    let addr = listener.local_addr();
    let mut ends: Vec<(End, End)> = std::thread::scope(|scope| {
        let connecting: Vec<_> = (0..4u8)
            .map(|n| {
                scope.spawn(move || {
                    let mut params = bench.params();
                    params.private_data = vec![n + 1; 4];
                    let connection = bench.provider.connect(addr, &params).unwrap();
                    End::new(connection, params.pool)
                })
            })
            .collect();
        let mut accepted: Vec<(u8, End)> = (0..4)
            .map(|_| {
                let params = bench.params();
                let connection = listener.accept().unwrap().accept(&params).unwrap();
                let n = connection.peer_private_data[0] - 1;
                (n, End::new(connection, params.pool))
            })
            .collect();
        accepted.sort_by_key(|(n, _)| *n);
        let connected = connecting.into_iter().map(|c| c.join().unwrap());
        connected
            .zip(accepted.into_iter().map(|(_, end)| end))
            .collect()
    });
    for (n, (a, b)) in ends.iter().enumerate() {
        a.send(&[n as u8; 100]);
        assert_eq!(b.receive().1, [n as u8; 100]);
    }
    let (a, b) = ends.remove(1);
    finish(a, b);
    for (n, (a, b)) in ends.into_iter().enumerate() {
        let exposure = a.expose_sink(&b, &[1000], 0);
        b.write(
            &part(exposure.segments(), 0, 1000),
            &pattern(1000, n as u64),
        );
        b.send(b"written");
        assert_eq!(a.receive().1, b"written");
        assert_eq!(a.take_back(exposure), pattern(1000, n as u64));
        finish(a, b);
    }
}
