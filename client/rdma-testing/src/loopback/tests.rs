//! Tests of loopback's own behaviour; the conformance suite tests the contract.

use super::*;
use nfsrdma_rdma::{Completion, Memory, Pool, Wait, WorkId, WorkRequest};
use smallvec::smallvec;

fn params(pool: &Pool) -> ConnectParams {
    ConnectParams {
        pool: pool.clone(),
        private_data: b"hello".to_vec(),
        send_depth: 8,
        recv_depth: 8,
        reads_out: 1,
        reads_in: 1,
        receive_buffers: 2,
        receive_size: 4096,
        timeout: Duration::from_secs(30),
        local: None,
    }
}

fn pair(provider: &Loopback, pool: &Pool) -> (Connection, Connection) {
    let listener = provider.listen(ANY).unwrap();
    let addr = listener.local_addr();
    std::thread::scope(|scope| {
        let connect = scope.spawn(|| provider.connect(addr, &params(pool)).unwrap());
        let accepted = listener.accept().unwrap().accept(&params(pool)).unwrap();
        (connect.join().unwrap(), accepted)
    })
}

/// RFC 5040 section 5.5: a Read may complete after Sends posted later; here it always does.
#[test]
fn a_read_is_done_after_a_send_posted_later() {
    let pool = Pool::new(1 << 22).unwrap();
    let (mut a, b) = pair(&Loopback::new(), &pool);
    let mut data = pool.alloc(100).unwrap();
    data.fill(7);
    let exposure = b
        .queue_pair
        .expose(Memory::Source(smallvec![data.freeze()]))
        .unwrap();
    let mut batch = vec![
        WorkRequest::Read {
            id: WorkId(1),
            sink: smallvec![pool.alloc(100).unwrap()],
            source: exposure.segments()[0],
        },
        WorkRequest::Send {
            id: WorkId(2),
            data: smallvec![],
            invalidate: None,
            signaled: true,
        },
    ];
    a.queue_pair.post(&mut batch).unwrap();
    let mut out = Vec::new();
    a.completions.poll(&mut out, Wait::Forever).unwrap();
    assert!(matches!(out[0], Completion::Sent { id: WorkId(2) }));
    let Completion::Read { id, sink } = &out[1] else {
        panic!("{out:?}");
    };
    assert_eq!(*id, WorkId(1));
    assert!(sink[0].iter().all(|&byte| byte == 7));
}
