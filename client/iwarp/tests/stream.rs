//! Both ends of a connection of the provider, over loopback TCP.

use nfsrdma_iwarp::{Fpdu, IwarpOptions, IwarpProvider};
use nfsrdma_rdma::*;
use smallvec::smallvec;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Polls until a completion arrives.
fn next(connection: &mut Connection) -> Completion {
    let until = Instant::now() + LIMIT;
    let mut out = Vec::new();
    while out.is_empty() {
        connection
            .completions
            .poll(&mut out, Wait::Until(until))
            .unwrap();
        assert!(Instant::now() < until, "no completion in time");
    }
    assert_eq!(out.len(), 1);
    out.remove(0)
}

/// Runs `body` while another thread polls `connection`, which gets no completions.
fn while_polling<T>(connection: &mut Connection, body: impl FnOnce() -> T) -> T {
    struct Stop<'a>(&'a AtomicBool, Arc<dyn QueuePair>);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
            self.1.wake();
        }
    }
    let stopped = AtomicBool::new(false);
    let queue_pair = connection.queue_pair.clone();
    let completions = &mut connection.completions;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut out = Vec::new();
            while !stopped.load(Ordering::SeqCst) {
                completions.poll(&mut out, Wait::Forever).unwrap();
            }
            assert!(out.is_empty(), "{out:?}");
        });
        let _stop = Stop(&stopped, queue_pair);
        body()
    })
}

fn fill(pool: &Pool, len: usize, seed: u8) -> BufMut {
    let mut buf = pool.alloc(len).unwrap();
    for (i, b) in buf.iter_mut().enumerate() {
        *b = (i as u8).wrapping_mul(31).wrapping_add(seed) ^ (i >> 8) as u8;
    }
    buf
}

fn post(connection: &Connection, request: WorkRequest) {
    let mut batch = vec![request];
    connection.queue_pair.post(&mut batch).unwrap();
    assert!(batch.is_empty());
}

/// Sends messages of several lengths, each into a Receive.
fn sends(pool: &Pool, client: &mut Connection, server: &mut Connection) {
    for len in [0usize, 1, 3, 1000, 4096] {
        let data = fill(pool, len, 1).freeze();
        let send = WorkRequest::Send {
            id: WorkId(9),
            data: smallvec![data.clone()],
            invalidate: None,
            signaled: true,
        };
        post(client, send);
        let Completion::Received { buf, len: got, .. } = next(server) else {
            panic!("a Receive")
        };
        assert_eq!(got, len);
        assert_eq!(buf[..got], data[..]);
        assert!(matches!(next(client), Completion::Sent { id: WorkId(9) }));
    }
}

/// The server writes into two buffers by RDMA Write, and reports it by a Send with Invalidate.
fn server_writes(pool: &Pool, data: &Buf, client: &mut Connection, server: &mut Connection) {
    let len = data.len();
    let split = len / 2 + 1;
    let mut sink: Segs<BufMut> = smallvec![pool.alloc(split).unwrap()];
    if len > split {
        sink.push(pool.alloc(len - split).unwrap());
    }
    let exposure = client.queue_pair.expose(Memory::Sink(sink)).unwrap();
    let target = exposure.segments()[0];
    assert_eq!(exposure.segments().len(), 1);
    let mut batch = vec![
        WorkRequest::Write {
            id: WorkId(1),
            source: smallvec![data.clone()],
            target,
            signaled: false,
        },
        WorkRequest::Send {
            id: WorkId(2),
            data: smallvec![],
            invalidate: Some(target.handle),
            signaled: false,
        },
    ];
    let queue_pair = server.queue_pair.clone();
    let got = while_polling(server, || {
        queue_pair.post(&mut batch).unwrap();
        next(client)
    });
    let Completion::Received {
        len: got,
        invalidated,
        ..
    } = got
    else {
        panic!("a Receive, not {got:?}")
    };
    assert_eq!((got, invalidated), (0, Some(target.handle)));
    let Invalidation::Done(Memory::Sink(bufs)) = client.queue_pair.invalidate(WorkId(0), exposure)
    else {
        panic!("the sink")
    };
    let flat: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
    assert!(flat == data[..], "{len} bytes written");
    let spare = pool.alloc(4096).unwrap();
    client.queue_pair.post_receive(WorkId(77), spare).unwrap();
}

/// The server reads the same data by RDMA Read.
fn server_reads(pool: &Pool, data: &Buf, client: &mut Connection, server: &mut Connection) {
    let len = data.len();
    let exposure = client
        .queue_pair
        .expose(Memory::Source(smallvec![data.clone()]))
        .unwrap();
    let sink = pool.alloc(len).unwrap();
    post(
        server,
        WorkRequest::Read {
            id: WorkId(5),
            sink: smallvec![sink],
            source: exposure.segments()[0],
        },
    );
    let got = while_polling(client, || next(server));
    let Completion::Read { id, sink } = got else {
        panic!("a Read, not {got:?}")
    };
    assert_eq!(id, WorkId(5));
    assert!(sink[0][..] == data[..], "{len} bytes read");
    assert!(matches!(
        client.queue_pair.invalidate(WorkId(0), exposure),
        Invalidation::Done(Memory::Source(_))
    ));
}

fn exercise(options: &IwarpOptions, local: &str) {
    let pool = Pool::new(64 << 20).unwrap();
    let (mut client, mut server) = pair(options, local, &pool);
    sends(&pool, &mut client, &mut server);
    for len in [1usize, 2, 4095, 65_520, 65_521, 200_003, 1 << 20] {
        let data = fill(&pool, len, 2).freeze();
        server_writes(&pool, &data, &mut client, &mut server);
        server_reads(&pool, &data, &mut client, &mut server);
    }
    client.queue_pair.disconnect();
    let mut out = Vec::new();
    let ended = loop {
        if let Err(e) = server.completions.poll(&mut out, Wait::Forever) {
            break e;
        }
    };
    assert!(matches!(ended, Error::LinkLost(_)), "{ended:?}");
    assert!(
        out.iter().all(|c| matches!(
            c,
            Completion::Flushed {
                memory: Some(_),
                ..
            }
        )),
        "{out:?}"
    );
}

#[test]
fn all_operations_in_every_setting() {
    for crc in [false, true] {
        for fpdu in [
            Fpdu::Auto,
            Fpdu::Bytes(128),
            Fpdu::Bytes(1460),
            Fpdu::Bytes(9000),
        ] {
            for mpa_revision in [1, 2] {
                let options = IwarpOptions {
                    crc,
                    fpdu,
                    mpa_revision,
                    peer_to_peer: crc,
                    ..IwarpOptions::default()
                };
                exercise(&options, "127.0.0.1:0");
            }
        }
    }
    exercise(&IwarpOptions::default(), "[::1]:0");
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
