//! A server with smaller or larger limits after a restart.

use crate::common::data::*;
use crate::common::*;
use nfsrdma_nfs3::{Nfs3, NfsError, Transport};
use nfsrdma_xdr::codec::Encode;
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::rpcrdma::{Body, ErrorBody, Header};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// A server whose limit for WRITE is `takes`. It reports the limit in FSINFO and refuses larger
/// WRITEs with an RDMA_ERROR. It hangs up instead of answering the first LOOKUP.
fn strict(takes: Arc<AtomicU32>) -> Server {
    limited(takes, |seen| {
        let refusal = Header {
            body: Body::Error(ErrorBody::ErrChunk),
            ..seen.header.clone()
        };
        Act::Send(vec![refusal.to_xdr()])
    })
}

/// The same, which does to larger WRITEs what `refuse` says.
fn limited(takes: Arc<AtomicU32>, refuse: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Server {
    let script = move |seen: &Seen| {
        let takes = takes.load(SeqCst);
        if seen.program != Write::PROGRAM {
            return Act::Answer;
        }
        match seen.procedure {
            Lookup::NUMBER if seen.connection == 0 => Act::Hangup,
            // Everything except the data takes less than 500 bytes.
            Write::NUMBER if seen.message.len() > takes as usize + 500 => refuse(seen),
            Fsinfo::NUMBER => Act::Tamper(Box::new(move |_, payload| {
                // The sizes follow RPC header, status and attributes (RFC 1813 section 3.3.19).
                let at = payload.len() - 48;
                for place in [at, at + 4, at + 12, at + 16] {
                    payload[place..place + 4].copy_from_slice(&takes.to_be_bytes());
                }
            })),
            _ => Act::Answer,
        }
    };
    Server::acting(script)
}

/// Loses the connection, and waits until the client has asked for the limits again.
async fn asked_again(server: &Server, mounted: &nfsrdma_nfs3::Mounted) {
    // The LOOKUP is sent again, and answered then.
    let client = &mounted.client;
    let nothing = client.lookup(&cred(), &mounted.root, b"f").await;
    assert!(matches!(nothing, Err(NfsError::Status(Status::NoEnt))));
    // The next call after a lost connection asks for the limits.
    client.getattr(&cred(), &mounted.root).await.unwrap();
    until("FSINFO", || server.calls::<Fsinfo>().len() == 2).await;
}

#[tokio::test]
async fn options_bound_limits_also_later() {
    let takes = Arc::new(AtomicU32::new(16_384));
    let server = strict(takes.clone());
    let mut options = options();
    (options.rsize, options.wsize) = (Some(65_536), Some(32_768));
    let (mounted, pool) = server.mount(&options).await;
    let limits = || (mounted.client.limits().rtmax, mounted.client.limits().wtmax);
    assert_eq!(limits(), (16_384, 12_288));
    takes.store(1 << 20, SeqCst);
    asked_again(&server, &mounted).await;
    until("larger limits", || limits() == (65_536, 32_768)).await;
    leaves_nothing(mounted, pool).await;
}

/// The server refuses such a WRITE, or ends the connection over it.
#[tokio::test]
async fn a_write_that_is_too_large_now_is_cut() {
    for refuses in [true, false] {
        let takes = Arc::new(AtomicU32::new(1 << 20));
        let server = match refuses {
            true => strict(takes.clone()),
            false => limited(takes.clone(), |_| Act::Hangup),
        };
        let options = options_with(|t| t.timeo = Duration::from_secs(2));
        let (mounted, pool) = server.mount(&options).await;
        let f = server.plant(b"f", b"");
        let bytes = pattern(40_000, 5);
        takes.store(16_384, SeqCst);
        let (client, cred) = (&mounted.client, cred());
        let mut at = 0;
        while at < bytes.len() {
            // In pieces whose boundaries differ from those of the WRITEs.
            let data = source(&pool, &bytes[at..], 10_000);
            let done = client.write(&cred, &f, at as u64, data, Stable::Unstable);
            let took = done.await.unwrap().count as usize;
            // Data within the server's limit are not cut, although later WRITEs are planned smaller.
            let left = bytes.len() - at;
            assert_eq!(took, if left > 16_384 { 12_288 } else { left });
            at += took;
        }
        assert_eq!(server.contents("f"), bytes);
        assert_eq!(client.limits().wtmax, 12_288);
        // Asked once only: the later WRITEs are cut according to the new limits.
        assert!(!refuses || server.calls::<Fsinfo>().len() == 2);
        leaves_nothing(mounted, pool).await;
    }
}

/// A server that puts FSINFO off, and ends the connection again and again.
#[tokio::test]
async fn limits_are_asked_for_once_at_a_time() {
    const LOSSES: usize = 20;
    let hangs_up = Arc::new(AtomicBool::new(false));
    let puts_off = Arc::new(AtomicBool::new(false));
    let (hang, off) = (hangs_up.clone(), puts_off.clone());
    let script = move |seen: &Seen| match (seen.program, seen.procedure) {
        (PROGRAM, Getattr::NUMBER) if hang.swap(false, SeqCst) => Act::Hangup,
        (PROGRAM, Fsinfo::NUMBER) if off.load(SeqCst) => Act::JukeBox,
        _ => Act::Answer,
    };
    let server = Server::acting(script);
    let (mounted, pool) = server.mount(&options()).await;
    puts_off.store(true, SeqCst);
    for _ in 0..LOSSES {
        hangs_up.store(true, SeqCst);
        for _ in 0..3 {
            let client = &mounted.client;
            client.getattr(&cred(), &mounted.root).await.unwrap();
        }
    }
    let asked = server.calls::<Fsinfo>().len();
    assert!((2..LOSSES - 5).contains(&asked), "{asked} times");
    leaves_nothing(mounted, pool).await;
}

#[tokio::test]
async fn a_write_refused_for_another_reason_is_an_error() {
    let takes = Arc::new(AtomicU32::new(1 << 20));
    let server = strict(takes.clone());
    let (mounted, pool) = server.mount(&options()).await;
    // The server refuses every WRITE, and reports no limit (0).
    takes.store(0, SeqCst);
    let f = server.plant(b"f", b"");
    let data = source(&pool, &pattern(3_000, 1), 1_000);
    let client = &mounted.client;
    let result = client.write(&cred(), &f, 0, data, Stable::Unstable).await;
    // A limit of 0 counts as what every server accepts, which is more than this.
    assert!(matches!(result, Err(NfsError::Refused(_))));
    assert!(server.contents("f").is_empty());
    leaves_nothing(mounted, pool).await;
}
