//! Each fault occurs where the plan says, and nowhere else.

use super::*;
use crate::Loopback;
use crate::loopback::ANY;
use nfsrdma_rdma::Pool;
use smallvec::smallvec;

mod without_faults_the_contract_holds {
    crate::conformance_tests!(
        crate::fault::Faulty::new(crate::Loopback::new(), crate::fault::Plan::default()),
        crate::loopback::ANY
    );
}

mod with_delays_the_contract_holds {
    crate::conformance_tests!(
        crate::fault::Faulty::new(
            crate::Loopback::new(),
            crate::fault::Plan {
                delay: std::time::Duration::from_micros(300),
                ..Default::default()
            }
        ),
        crate::loopback::ANY
    );
}

fn params() -> ConnectParams {
    ConnectParams {
        pool: Pool::new(1 << 22).unwrap(),
        private_data: Vec::new(),
        send_depth: 64,
        recv_depth: 64,
        reads_out: 1,
        reads_in: 1,
        receive_buffers: 32,
        receive_size: 4096,
        timeout: Duration::from_secs(60),
    }
}

/// A connection that follows the plan, and its peer without faults.
fn pair(plan: Plan, params: &ConnectParams) -> (Connection, Connection) {
    let faulty = Faulty::new(Loopback::new(), plan);
    let listener = faulty.listen(ANY).unwrap();
    let addr = listener.local_addr();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| faulty.connect(addr, params).unwrap());
        let accepted = listener.accept().unwrap().accept(&self::params()).unwrap();
        (connecting.join().unwrap(), accepted)
    })
}

fn send(connection: &Connection, pool: &Pool, ids: std::ops::Range<u64>) -> Result<usize> {
    let mut batch: Vec<_> = ids
        .map(|n| {
            let mut buf = pool.alloc(100).unwrap();
            buf.fill(n as u8);
            WorkRequest::Send {
                id: WorkId(n),
                data: smallvec![buf.freeze()],
                invalidate: None,
                signaled: true,
            }
        })
        .collect();
    let outcome = connection.queue_pair.post(&mut batch);
    outcome.map(|()| batch.len())
}

/// Polls until the connection ends.
fn drain(connection: &mut Connection) -> (Vec<Completion>, Error) {
    let mut out = Vec::new();
    loop {
        if let Err(error) = connection.completions.poll(&mut out, Wait::Forever) {
            return (out, error);
        }
    }
}

fn received(completions: &[Completion]) -> Vec<Vec<u8>> {
    completions
        .iter()
        .filter_map(|c| match c {
            Completion::Received { buf, len, .. } => Some(buf[..*len].to_vec()),
            _ => None,
        })
        .collect()
}

#[test]
fn connecting_fails_in_the_order_planned() {
    let faulty = Faulty::new(
        Loopback::new(),
        Plan {
            connects: vec![
                Some(ConnectFault::Refuse),
                Some(ConnectFault::TimeOut),
                Some(ConnectFault::Local),
                None,
            ],
            ..Plan::default()
        },
    );
    let listener = faulty.listen(ANY).unwrap();
    let addr = listener.local_addr();
    let connect = || faulty.connect(addr, &params());
    assert!(matches!(connect(), Err(Error::Refused(_))));
    assert!(matches!(connect(), Err(Error::TimedOut(_))));
    assert!(matches!(connect(), Err(Error::Local { .. })));
    std::thread::scope(|scope| {
        let connecting = scope.spawn(connect);
        listener.accept().unwrap().accept(&params()).unwrap();
        connecting.join().unwrap().unwrap();
    });
    assert_eq!(faulty.connects(), 4);
}

#[test]
fn the_connection_drops_before_or_after_a_post() {
    for (before, arrive) in [(true, 3), (false, 4)] {
        let params = params();
        let mut plan = Plan::default();
        if before {
            plan.drop_before_post = When::At(3);
        } else {
            plan.drop_after_post = When::At(3);
        }
        let (mut a, mut b) = pair(plan, &params);
        assert_eq!(send(&a, &params.pool, 100..108).unwrap(), 0, "all accepted");
        let (at_b, _) = drain(&mut b);
        assert_eq!(received(&at_b).len(), arrive);
        let (at_a, error) = drain(&mut a);
        assert!(matches!(error, Error::LinkLost(_)));
        for n in 100..108u64 {
            let done = at_a.iter().find_map(|c| match c {
                Completion::Sent { id } if id.0 == n => Some(true),
                Completion::Flushed { id, .. } if id.0 == n => Some(false),
                _ => None,
            });
            assert_eq!(done, Some(n < 100 + arrive as u64));
        }
    }
}

#[test]
fn a_message_is_lost_with_the_connection() {
    let params = params();
    let plan = Plan {
        drop_at_completion: When::At(2),
        ..Plan::default()
    };
    let (mut a, b) = pair(plan, &params);
    send(&b, &self::params().pool, 0..5).unwrap();
    let (at_a, _) = drain(&mut a);
    // The third message is lost; what the device had received before remains received.
    let got = received(&at_a);
    assert_eq!(got.len(), 4);
    assert!(!got.iter().any(|data| data[0] == 2));
    let flushed = at_a
        .iter()
        .filter(|c| matches!(c, Completion::Flushed { .. }));
    assert_eq!(flushed.count(), 32 - 4);
}

#[test]
fn one_bit_is_turned_over_and_again_the_same() {
    let corrupted = |seed| {
        let params = params();
        let plan = Plan {
            seed,
            corrupt_receive: When::Every(2),
            ..Plan::default()
        };
        let (mut a, b) = pair(plan, &params);
        send(&b, &self::params().pool, 0..6).unwrap();
        b.queue_pair.disconnect();
        received(&drain(&mut a).0)
    };
    let got = corrupted(7);
    assert_eq!(got.len(), 6);
    for (n, data) in got.iter().enumerate() {
        let bits: u32 = data.iter().map(|b| (b ^ n as u8).count_ones()).sum();
        assert_eq!(bits, n as u32 % 2);
    }
    assert_eq!(got, corrupted(7), "a seed repeats");
    assert_ne!(got, corrupted(8), "another seed differs");
}

#[test]
fn calls_fail_and_give_back_what_they_took() {
    let params = params();
    let plan = Plan {
        fail_expose: When::At(0),
        fail_post_receive: When::At(0),
        queue_full: When::At(2),
        ..Plan::default()
    };
    let (a, mut b) = pair(plan, &params);
    let memory = Memory::Sink(smallvec![params.pool.alloc(10).unwrap()]);
    let (error, memory) = a.queue_pair.expose(memory).unwrap_err();
    assert!(matches!(error, Error::Local { .. }));
    let exposure = a.queue_pair.expose(memory).unwrap();
    assert_eq!(exposure.segments().len(), 1);
    let receive = || {
        let buf = params.pool.alloc(10).unwrap();
        a.queue_pair.post_receive(WorkId(77), buf)
    };
    assert!(matches!(receive(), Err(Error::Local { .. })));
    receive().unwrap();

    let mut batch: Vec<_> = (0..5)
        .map(|n| WorkRequest::Send {
            id: WorkId(n),
            data: smallvec![],
            invalidate: None,
            signaled: false,
        })
        .collect();
    assert!(matches!(
        a.queue_pair.post(&mut batch),
        Err(Error::QueueFull)
    ));
    assert!(matches!(batch[0], WorkRequest::Send { id: WorkId(2), .. }));
    assert_eq!(batch.len(), 3);
    a.queue_pair.post(&mut batch).unwrap();
    a.queue_pair.disconnect();
    assert_eq!(received(&drain(&mut b).0).len(), 5);
}

#[test]
fn the_pool_is_short_while_the_connection_lives() {
    let params = params();
    let plan = Plan {
        hold_pool_bytes: usize::MAX,
        ..Plan::default()
    };
    let (a, b) = pair(plan, &params);
    assert!(params.pool.alloc(1).is_none());
    drop((a, b));
    assert_eq!(params.pool.free_bytes(), params.pool.capacity());
}

#[test]
fn chances_are_drawn_from_the_seed() {
    let draw = |seed| {
        let plan = Plan {
            seed,
            ..Plan::default()
        };
        let counter = Counter::new(When::Chance(4), &plan, 0, 1);
        (0..400).map(|_| counter.strikes()).collect::<Vec<_>>()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    let struck = draw(1).iter().filter(|&&s| s).count();
    assert!(
        (60..140).contains(&struck),
        "{struck} of 400 at one in four"
    );
}
