//! Both ends of a connection of the provider, over loopback TCP.

use nfsrdma_iwarp::{IwarpOptions, IwarpProvider};
use nfsrdma_rdma::*;
use smallvec::smallvec;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

fn params(pool: &Pool, reads: u32) -> ConnectParams {
    ConnectParams {
        pool: pool.clone(),
        private_data: b"hello".to_vec(),
        send_depth: 64,
        recv_depth: 64,
        reads_out: reads,
        reads_in: reads,
        receive_buffers: 8,
        receive_size: 4096,
        timeout: LIMIT,
        local: None,
    }
}

fn pair(options: &IwarpOptions, local: &str, pool: &Pool) -> (Connection, Connection) {
    let provider = IwarpProvider::new(options.clone());
    let listener = provider
        .listen(local.parse::<SocketAddr>().unwrap())
        .unwrap();
    let addr = listener.local_addr();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut incoming = listener.accept().unwrap();
            assert_eq!(incoming.request(LIMIT).unwrap(), b"hello");
            incoming.accept(&params(pool, 4)).unwrap()
        });
        let client = provider.connect(addr, &params(pool, 4)).unwrap();
        (client, server.join().unwrap())
    })
}

#[test]
fn the_end_of_a_process_waits_for_the_answer_to_a_request() {
    let pool = Pool::new(1 << 20).unwrap();
    let provider = IwarpProvider::new(IwarpOptions::default());
    let listener = provider.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr();
    assert!(provider.await_answers());
    std::thread::scope(|scope| {
        let client = scope.spawn(|| provider.connect(addr, &params(&pool, 4)).map(drop));
        let mut incoming = listener.accept().unwrap();
        incoming.request(LIMIT).unwrap();
        assert!(!provider.await_answers());
        incoming.reject(b"no");
        assert!(client.join().unwrap().is_err());
    });
    assert!(provider.await_answers());
}

#[test]
fn a_connection_comes_from_the_address_that_is_asked_for() {
    let pool = Pool::new(1 << 20).unwrap();
    let provider = IwarpProvider::new(IwarpOptions::default());
    let listener = provider.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr();
    let from = |local: &str| ConnectParams {
        local: Some(local.parse().unwrap()),
        ..params(&pool, 4)
    };
    std::thread::scope(|scope| {
        let client = scope.spawn(|| provider.connect(addr, &from("127.0.0.7")).unwrap());
        let incoming = listener.accept().unwrap();
        assert_eq!(incoming.peer_addr().ip().to_string(), "127.0.0.7");
        let _server = incoming.accept(&params(&pool, 4)).unwrap();
        let local = client.join().unwrap().queue_pair.local_addr();
        assert_eq!(local.ip().to_string(), "127.0.0.7");
    });
    // RFC 5737: nobody has it.
    match provider.connect(addr, &from("192.0.2.1")) {
        Err(Error::Local { what, error }) => {
            assert_eq!(what, "cannot connect from 192.0.2.1");
            assert_eq!(error.kind(), std::io::ErrorKind::AddrNotAvailable);
        }
        other => panic!("{other:?}"),
    }
}

//= RFC 5040, Section 8.1.1
//= type=test
//# An RNIC MUST ensure that the network interface can [...]
//= RFC 5041, Section 8.3.1
//= type=test
//# An RNIC MUST ensure that the network interface can [...]
/// Memory that `invalidate` returned does not change any more, even while the peer writes all the
/// time.
#[test]
fn nothing_is_written_after_invalidation() {
    const LEN: usize = 256 * 1024;
    // The responder sends first, which needs an RTR message.
    let options = IwarpOptions {
        peer_to_peer: true,
        ..IwarpOptions::default()
    };
    let pool = Pool::new(64 << 20).unwrap();
    for round in 0u32..60 {
        let (mut client, mut server) = pair(&options, "127.0.0.1:0", &pool);
        let sink = smallvec![pool.alloc(LEN).unwrap()];
        let exposure = client.queue_pair.expose(Memory::Sink(sink)).unwrap();
        let target = exposure.segments()[0];
        let written = std::sync::atomic::AtomicU32::new(0);
        let server_pair = server.queue_pair.clone();
        let client_pair = client.queue_pair.clone();
        let error = std::thread::scope(|scope| {
            // The peer writes alternating contents until it gets an error.
            scope.spawn(|| {
                let sources = [1u8, 2].map(|n| {
                    let mut buf = pool.alloc(LEN).unwrap();
                    buf.fill(n);
                    buf.freeze()
                });
                let mut out = Vec::new();
                for turn in 0.. {
                    let mut batch = vec![WorkRequest::Write {
                        id: WorkId(0),
                        source: smallvec![sources[turn % 2].clone()],
                        target,
                        signaled: true,
                    }];
                    server_pair.post(&mut batch).unwrap();
                    out.clear();
                    while out.is_empty() {
                        if server.completions.poll(&mut out, Wait::Forever).is_err() {
                            return;
                        }
                    }
                    written.fetch_add(1, Ordering::SeqCst);
                }
            });
            let poller = scope.spawn(|| {
                let mut out = Vec::new();
                loop {
                    if let Err(e) = client.completions.poll(&mut out, Wait::Forever) {
                        return e;
                    }
                }
            });
            let until = Instant::now() + LIMIT;
            while written.load(Ordering::SeqCst) < 3 + round % 7 {
                assert!(Instant::now() < until, "the peer does not write");
                std::thread::yield_now();
            }
            let Invalidation::Done(Memory::Sink(back)) =
                client_pair.invalidate(WorkId(0), exposure)
            else {
                panic!("the sink")
            };
            let before = back[0].to_vec();
            let error = poller.join().unwrap();
            assert!(
                back[0][..] == before[..],
                "round {round}: changed afterwards"
            );
            error
        });
        assert!(matches!(error, Error::PeerMisbehaved(_)), "{error:?}");
    }
}
