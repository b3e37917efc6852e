//! The requester end to end, over soft-iWARP, against servers good and bad.

use crate::common::data::*;
use crate::common::*;
use nfsrdma_nfs3::{Acls, Nfs3, NfsError, SetLists};
use nfsrdma_nfs3::{ClientOptions, Recovery, WriteChunk};
use nfsrdma_rdma_testing::fault::Plan;
use nfsrdma_rpcrdma::abandon::Caller;
use nfsrdma_xdr::nfs_acl;
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::private_data::PrivateData;
use nfsrdma_xdr::rpcrdma::Body;
use std::time::Duration;

const SIZES: [usize; 12] = [
    1, 3, 511, 700, 1024, 3900, 4095, 4096, 4097, 65_535, 65_541, 524_287,
];

async fn every_size(options: ClientOptions, device: Device, manners: Manners) {
    let server = Server::start(device, manners, |_| Act::Answer);
    let (mounted, pool) = server.mount(&options).await;
    for (seed, len) in SIZES.into_iter().enumerate() {
        let bytes = pattern(len, seed);
        let f = server.plant(b"f", b"");
        for piece in [4096, 65_536, 1 << 20] {
            write(&mounted, &pool, &f, &bytes, piece).await;
            assert_eq!(server.contents("f"), bytes, "{len} by {piece}");
            assert_eq!(
                read(&mounted, &pool, &f, len, piece).await,
                bytes,
                "{len} by {piece}"
            );
            // Read past the end.
            assert_eq!(read(&mounted, &pool, &f, len + 5000, piece).await, bytes);
        }
        server.uproot(b"f");
    }
    let target = pattern(4000, 1).iter().map(|b| b | 1).collect::<Vec<u8>>();
    let root = mounted.root;
    let set = SetAttributes::default();
    let link = mounted
        .client
        .symlink(&cred(), &root, b"l", &target, &set)
        .await;
    let link = link.unwrap().object.unwrap();
    assert_eq!(
        mounted.client.readlink(&cred(), &link).await.unwrap().0,
        target
    );
    let names: Vec<Vec<u8>> = (0..300)
        .map(|i| format!("name-{i:05}").into_bytes())
        .collect();
    for name in &names {
        server.plant(name, b"");
    }
    let mut listed = Vec::new();
    let mut cookie = 0;
    loop {
        let cred = cred();
        let page = mounted
            .client
            .readdir(&cred, &root, cookie, Verifier::default(), 8192);
        let page = page.await.unwrap();
        let entries = page.entries.iter().map(|e| e.name.to_vec());
        listed.extend(entries.filter(|name| name.starts_with(b"name-")));
        cookie = page.entries.last().map_or(cookie, |e| e.cookie);
        if page.eof {
            break;
        }
    }
    assert_eq!(listed, names);
    leaves_nothing(mounted, pool).await;
}

//= RFC 8166, Section 3.4.4.4
//= type=test
//# Except in special cases (covered in Section 3.5.3), a chunk MUST contain exactly one XDR data
//# item.
//= RFC 8166, Section 3.4.5.2
//= type=test
//# If the sender chooses not to include roundup padding [...]
//= RFC 8166, Section 3.4.6
//= type=test
//# Thus, it MUST register Write chunks long enough to [...]
//= RFC 8166, Section 3.5.3
//= type=test
//# As these chunks contain a Payload stream, such chunks [...]
//= RFC 8166, Section 4.2.4
//= type=test
//# A Requester MUST NOT send an RPC-over-RDMA header with the RDMA_ERROR procedure.
//= RFC 8166, Section 4.3.2.2
//= type=test
//# Therefore, the Requester MUST provision each Write chunk so [...]
//= RFC 8166, Section 4.6.1
//= type=test
//# Therefore, senders MUST NOT send RDMA_MSGP procedures.
//= RFC 8166, Section 4.6.2
//= type=test
//# Therefore, senders MUST NOT send RDMA_DONE messages.
#[tokio::test]
async fn every_size_with_every_transport_setting() {
    for inline in [1024, 4096, 65_536] {
        for write_chunk in [WriteChunk::PositionZero, WriteChunk::Reduced] {
            for credits in [1, 64] {
                let options = options_with(|t| {
                    t.inline = inline;
                    t.write_chunk = write_chunk;
                    t.credits = credits;
                });
                every_size(options, Device::default(), Manners::default()).await;
            }
        }
    }
}

#[tokio::test]
async fn every_size_with_every_kind_of_device() {
    for scatter_handle in [true, false] {
        for posted_invalidation in [true, false] {
            for remote_invalidate in [true, false] {
                for max_segments in [3, 16, 256] {
                    let device = Device {
                        scatter_handle,
                        posted_invalidation,
                        remote_invalidate,
                        max_segments,
                    };
                    for write_chunk in [WriteChunk::PositionZero, WriteChunk::Reduced] {
                        let options = options_with(|t| t.write_chunk = write_chunk);
                        every_size(options, device.clone(), Manners::default()).await;
                    }
                }
            }
        }
    }
}

//= RFC 8166, Section 3.3.3
//= type=test
//# Receiver implementations MUST support inline thresholds of 1024 bytes [...]
#[tokio::test]
async fn servers_that_announce_little_or_nothing() {
    let announced = |send_size, receive_size| {
        Some(PrivateData {
            remote_invalidation: false,
            send_size,
            receive_size,
        })
    };
    for private_data in [
        None,
        announced(4096, 4096),
        announced(1024, 65_536),
        announced(65_536, 1024),
    ] {
        for inline in [1024, 65_536] {
            let manners = Manners {
                private_data,
                grant: 3,
                ..Manners::default()
            };
            let options = options_with(|t| t.inline = inline);
            every_size(options, Device::default(), manners).await;
        }
    }
}

//= RFC 8797, Section 4
//= type=test
//# An implementation of the extension described in this document [...]
/// What a server announced on one connection does not hold on the next: calls whose size was sent
/// inline there are sent in chunks here, and the server invalidates no handle.
#[tokio::test]
async fn a_server_may_announce_something_else_after_a_reconnect() {
    let manners = Manners {
        later_private_data: Some(PrivateData {
            remote_invalidation: false,
            send_size: 1024,
            receive_size: 1024,
        }),
        ..Manners::default()
    };
    let script = |seen: &Seen| match (seen.connection, seen.procedure) {
        (0, Lookup::NUMBER) if seen.program == PROGRAM => Act::Hangup,
        _ => Act::Answer,
    };
    let server = Server::start(Device::default(), manners, script);
    let options = options_with(|t| t.inline = 65_536);
    let (mounted, pool) = server.mount(&options).await;
    let f = server.plant(b"f", b"");
    let invalidations = || mounted.client.stats().connections[0].remote_invalidations;
    for connection in [0, 1] {
        let before = invalidations();
        write(&mounted, &pool, &f, &pattern(20_000, 0), 1 << 20).await;
        let bytes = read(&mounted, &pool, &f, 20_000, 1 << 20).await;
        assert_eq!(bytes, pattern(20_000, 0));
        let writes = server.calls::<Write>();
        let last = writes.last().unwrap();
        assert_eq!(last.connection, connection);
        let chunks = last.header.chunks().unwrap();
        assert_eq!(chunks.is_empty(), connection == 0, "{:?}", last.header);
        if connection == 0 {
            let found = mounted.client.lookup(&cred(), &mounted.root, b"f").await;
            assert_eq!(found.unwrap().object, f);
        } else {
            assert_eq!(invalidations(), before);
        }
    }
    leaves_nothing(mounted, pool).await;
}

//= RFC 8166, Section 3.5.3
//= type=test
//# Every RDMA read segment in this chunk MUST contain zero in its Position field.
#[tokio::test]
async fn small_data_travel_inline_and_large_in_chunks() {
    let server = Server::plain();
    let options = options_with(|t| t.inline = 4096);
    let (mounted, pool) = server.mount(&options).await;
    let f = server.plant(b"f", b"");
    write(&mounted, &pool, &f, &pattern(100, 0), 4096).await;
    write(&mounted, &pool, &f, &pattern(4096, 0), 4096).await;
    read(&mounted, &pool, &f, 100, 4096).await;
    read(&mounted, &pool, &f, 4096, 4096).await;
    let writes = server.calls::<Write>();
    assert!(writes[0].header.chunks().unwrap().is_empty());
    assert!(matches!(
        &writes[1].header.body,
        Body::NoMsg(c) if c.reads.len() == 1 && c.reads[0].position == 0
    ));
    let reads = server.calls::<Read>();
    assert!(reads[0].header.chunks().unwrap().is_empty());
    assert!(
        matches!(&reads[1].header.body, Body::Msg(c) if c.writes.len() == 1 && c.reply.is_none())
    );
    // The client requests all credits that it wants, although it may assume only one.
    assert!(reads.iter().all(|seen| seen.header.credits == 64));
    let stats = mounted.client.stats();
    assert!(stats.connections[0].remote_invalidations >= 2);
    assert_eq!(stats.procedures[Read::NUMBER as usize].calls, 2);
    assert_eq!(
        stats.procedures[Read::NUMBER as usize].bytes_received / 4096,
        1
    );
    leaves_nothing(mounted, pool).await;
}

#[tokio::test]
async fn many_callers_share_few_credits() {
    for credits in [1, 3, 64] {
        let manners = Manners {
            grant: credits,
            ..Manners::default()
        };
        let server = Server::start(Device::default(), manners, |_| Act::Answer);
        for nconnect in [1, 3] {
            let options = options_with(|t| t.nconnect = nconnect);
            let (mounted, pool) = server.mount(&options).await;
            let f = server.plant(b"f", &pattern(70_000, 1));
            let len = |i| [100, 4096, 65_536][i % 3];
            read_at_once((&mounted, &pool), f, 200, len).await;
            let stats = mounted.client.stats();
            assert!(stats.connections.iter().all(|c| c.credits <= credits));
            assert_eq!(
                stats.connections.iter().map(|c| c.retransmits).sum::<u64>(),
                0
            );
            leaves_nothing(mounted, pool).await;
        }
    }
}

/// After a sleep a machine has no network for a while. Pauses that double would have lasted 22 seconds here.
#[tokio::test]
async fn a_network_that_comes_back_is_found_soon() {
    let server = Server::at_first::<Write, _>([Act::Hangup]);
    let plan = Plan {
        no_route: 1..10,
        ..Plan::default()
    };
    let (mounted, pool) = server.mount_faulty(plan).await;
    let f = server.plant(b"f", b"");
    let bytes = pattern(100, 3);
    let written = write(&mounted, &pool, &f, &bytes, 4096);
    let soon = Duration::from_secs(12);
    assert!(tokio::time::timeout(soon, written).await.is_ok());
    assert_eq!(mounted.client.stats().connections[0].connect_failures, 9);
    leaves_nothing(mounted, pool).await;
}

#[tokio::test]
async fn a_lost_reply_is_answered_on_the_next_connection() {
    for write_chunk in [WriteChunk::PositionZero, WriteChunk::Reduced] {
        let server = Server::at_first::<Write, _>([Act::Hangup, Act::RunThenHangup]);
        let options = options_with(|t| t.write_chunk = write_chunk);
        let (mounted, pool) = server.mount(&options).await;
        let f = server.plant(b"f", b"");
        let bytes = pattern(100_000, 3);
        write(&mounted, &pool, &f, &bytes, 4096).await;
        assert_eq!(server.contents("f"), bytes);
        let calls = server.calls::<Write>();
        assert_eq!(calls.len(), 3);
        // The bytes and the XID are the same, each connection and each handle is different.
        assert!(calls.iter().all(|c| c.message == calls[0].message));
        assert_eq!([0, 1, 2].map(|i| calls[i].connection), [0, 1, 2]);
        let handle = |i: usize| calls[i].header.chunks().unwrap().reads[0].target.handle;
        assert!(handle(0) != handle(1) && handle(1) != handle(2));
        assert_eq!(
            mounted.client.stats().procedures[Write::NUMBER as usize].retransmits,
            2
        );
        leaves_nothing(mounted, pool).await;
    }
}

#[tokio::test]
async fn many_pending_calls_survive_many_connections() {
    let server = Server::scripted::<Read>(|_, n| match n % 13 {
        5 => Act::Hangup,
        9 => Act::RunThenHangup,
        _ => Act::Answer,
    });
    let (mounted, pool) = server.mount(&options()).await;
    let f = server.plant(b"f", &pattern(9000, 1));
    read_at_once((&mounted, &pool), f, 60, |_| 8000).await;
    let mut sent: Vec<_> = server
        .calls::<Read>()
        .iter()
        .map(|c| (c.header.xid, c.connection))
        .collect();
    let count = sent.len();
    sent.sort_unstable();
    sent.dedup();
    assert_eq!(sent.len(), count, "never twice on one connection");
    leaves_nothing(mounted, pool).await;
}

#[tokio::test]
async fn silence_ends_in_a_new_connection_or_for_soft_mounts_in_an_error() {
    // Long enough for the answer of a busy machine.
    let timeo = Duration::from_secs(2);
    let server =
        Server::at_first::<Getattr, _>([Act::Answer, Act::Silence, Act::Silence, Act::Silence]);
    let options = |recovery| {
        options_with(|t| {
            t.timeo = timeo;
            t.recovery = recovery;
            t.retrans = 1;
        })
    };
    let (mounted, pool) = server.mount(&options(Recovery::Hard)).await;
    mounted
        .client
        .getattr(&cred(), &mounted.root)
        .await
        .unwrap();
    let calls = server.calls::<Getattr>();
    assert_eq!(calls.len(), 5);
    assert!(calls[2..].iter().all(|c| c.message == calls[1].message));
    assert!(
        calls
            .windows(2)
            .skip(1)
            .all(|w| w[0].connection < w[1].connection)
    );
    leaves_nothing(mounted, pool).await;
    for recovery in [Recovery::Soft, Recovery::SoftErr] {
        let server = Server::scripted::<Getattr>(|_, n| match n {
            0 => Act::Answer,
            _ => Act::Silence,
        });
        let (mounted, pool) = server.mount(&options(recovery)).await;
        let result = mounted.client.getattr(&cred(), &mounted.root).await;
        let told = match recovery {
            Recovery::Soft => matches!(result, Err(NfsError::GivenUp)),
            _ => matches!(result, Err(NfsError::TimedOut)),
        };
        assert!(told, "{result:?}");
        // One call by the mount, then the first transmission, and one retransmission unless the
        // time was over before there was a new connection.
        assert!(matches!(server.calls::<Getattr>().len(), 2 | 3));
        leaves_nothing(mounted, pool).await;
    }
}

/// A call whose caller was killed is not made again after JUKEBOX: a SETATTR or SETACL would undo
/// what others have set since, and a READ would go on as long as the server puts it off.
#[tokio::test]
async fn a_call_that_is_put_off_ends_with_its_caller() {
    let server = Server::acting(|seen| match (seen.program, seen.procedure) {
        (PROGRAM, Read::NUMBER | Access::NUMBER | Setattr::NUMBER) => Act::JukeBox,
        (nfs_acl::PROGRAM, nfs_acl::Setacl::NUMBER) => Act::JukeBox,
        _ => Act::Answer,
    });
    let (mounted, pool) = server.mount(&options()).await;
    let f = server.plant(b"f", &pattern(5000, 1));
    let free = pool.free_bytes();
    let into = sink(&pool, 1 << 20, 1 << 20);
    let (client, who, new) = (&mounted.client, root(), SetAttributes::default());
    let caller = Caller::default();
    let calls = caller.clone().run(async {
        let (acls, lists) = (
            Acls::default(),
            SetLists {
                access: true,
                default: false,
            },
        );
        tokio::join!(
            async { client.read(&who, &f, 0, into).await.map(drop) },
            async { client.access(&who, &f, access::READ).await.map(drop) },
            async { client.setattr(&who, &f, &new).await.map(drop) },
            async { client.setacl(&who, &f, &acls, lists).await.map(drop) },
        )
    });
    let leave = async {
        until("all were put off", || {
            let seen = server.seen.lock();
            let setacl = (nfs_acl::PROGRAM, nfs_acl::Setacl::NUMBER);
            seen.iter()
                .any(|seen| (seen.program, seen.procedure) == setacl)
        })
        .await;
        caller.leave();
    };
    let (results, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(60), calls), leave);
    let results = results.expect("nobody waits for them");
    for result in [results.0, results.1, results.2, results.3] {
        let put_off = matches!(result, Err(NfsError::Status(Status::JukeBox)));
        assert!(put_off, "{result:?}");
    }
    // The connection has taken a little for its own messages meanwhile, but less than the READ had.
    until("the memory of the READ is back", || {
        pool.free_bytes() + (512 << 10) >= free
    })
    .await;
    leaves_nothing(mounted, pool).await;
}

#[tokio::test]
async fn an_abandoned_call_keeps_its_memory_until_the_reply() {
    let (allow, allowed) = std::sync::mpsc::channel::<()>();
    let allowed = parking_lot::Mutex::new(allowed);
    let server = Server::scripted::<Read>(move |_, n| {
        if n == 0 {
            allowed.lock().recv().unwrap();
        }
        Act::Answer
    });
    let (mounted, pool) = server.mount(&options()).await;
    let f = server.plant(b"f", &pattern(1 << 20, 1));
    let free = pool.free_bytes();
    let (client, into) = (mounted.client.clone(), sink(&pool, 1 << 20, 1 << 20));
    let call = tokio::spawn(async move {
        let _ = client.read(&cred(), &f, 0, into).await;
    });
    until("the call is there", || !server.calls::<Read>().is_empty()).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert_eq!(mounted.client.stats().connections[0].open_registrations, 1);
    assert!(
        pool.free_bytes() <= free - (1 << 20),
        "the server may still write there"
    );
    allow.send(()).unwrap();
    until("the memory is back", || {
        pool.free_bytes() + (64 << 10) >= free
    })
    .await;
    // The connection still works.
    read(&mounted, &pool, &f, 100, 4096).await;
    assert_eq!(mounted.client.stats().connections[0].connects, 1);
    leaves_nothing(mounted, pool).await;
}
