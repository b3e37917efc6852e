//! Servers that send false replies: a call fails or is sent again, and memory stays protected.

use crate::common::data::*;
use crate::common::*;
use nfsrdma_nfs3::{Nfs3, NfsError};
use nfsrdma_xdr::codec::{Encode, Encoder};
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::rpcrdma::{Body, ChunkLists, Header, ReadSegment, Segment};
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}

fn misbehaved<T: Debug>(result: Result<T, NfsError>) {
    let told = matches!(result, Err(NfsError::PeerMisbehaved(_)));
    assert!(told, "{result:?}");
}

/// Reads `len` bytes while `script` answers READ, then once more without it. Returns the result of
/// the first READ, and the statistics.
async fn misbehaving(
    len: usize,
    script: impl Fn(&Seen) -> Act + Send + Sync + 'static,
) -> (Result<u32, NfsError>, nfsrdma_nfs3::Stats) {
    misbehaving_times(1, len, script).await
}

/// As `misbehaving`; `script` answers the first `times` transmissions.
async fn misbehaving_times(
    times: usize,
    len: usize,
    script: impl Fn(&Seen) -> Act + Send + Sync + 'static,
) -> (Result<u32, NfsError>, nfsrdma_nfs3::Stats) {
    let server = Server::scripted::<Read>(move |seen, n| match n < times {
        true => script(seen),
        false => Act::Answer,
    });
    let options = options_with(|t| t.timeo = Duration::from_secs(2));
    let (mounted, pool) = server.mount(&options).await;
    let f = server.plant(b"f", &pattern(20_000, 1));
    let into = sink(&pool, len, 4096);
    let result = mounted.client.read(&cred(), &f, 0, into).await;
    let result = result.map(|done| done.count);
    let stats = mounted.client.stats();
    assert_eq!(
        read(&mounted, &pool, &f, len, 4096).await,
        pattern(20_000, 1)[..len]
    );
    leaves_nothing(mounted, pool).await;
    (result, stats)
}

//= RFC 8166, Section 6.1
//= type=test
//# The Requester MUST terminate the pending RPC transaction and [...]
#[tokio::test]
async fn replies_whose_chunks_lie_are_discarded_and_their_calls_sent_again() {
    let long = |_: &Seen| tamper(|c, _| c.writes[0].segments[0].length += 1);
    let (result, stats) = misbehaving(8192, long).await;
    assert_eq!(result.unwrap(), 8192);
    let link = &stats.connections[0];
    assert_eq!((link.violations, link.discards, link.timeouts), (1, 1, 1));
    let resent = (link.connects, link.retransmits);
    assert_eq!(resent, (2, 1), "as for a lost reply");
    // A chunk shorter than its data is an error of the procedure, not of the header.
    let short = |_: &Seen| tamper(|c, _| c.writes[0].segments[0].length -= 1);
    let (result, stats) = misbehaving(8192, short).await;
    misbehaved(result);
    assert_eq!(stats.connections[0].connects, 1, "the connection goes on");
    // The data are inline although a Write chunk was offered.
    let (result, stats) = misbehaving(8192, |_| Act::DataInline).await;
    misbehaved(result);
    assert_eq!(stats.connections[0].connects, 1);
}

/// Whatever is wrong with a reply, the call is sent again once. If the next reply is discarded for
/// the same reason, it is not lost, and the call fails; the connection goes on.
#[tokio::test]
async fn a_reply_that_is_wrong_in_the_same_way_again_fails_its_call() {
    type Wrong = fn(&Seen) -> Act;
    let wrongs: [(&str, Wrong); 9] = [
        ("more bytes in a chunk", |_| {
            tamper(|c, _| c.writes[0].segments[0].length += 1)
        }),
        ("a chunk that was not offered", |_| {
            tamper(|c, _| c.writes.push(c.writes[0].clone()))
        }),
        ("a chunk that was not offered", |_| {
            tamper(|c, _| c.reply = Some(c.writes[0].clone()))
        }),
        ("Read list", |_| {
            tamper(|c, _| {
                let target = c.writes[0].segments[0];
                let position = 0;
                c.reads.push(ReadSegment { position, target });
            })
        }),
        ("not the RPC reply", |_| Act::WrongXid),
        ("version 2", |seen| {
            Act::Send(vec![words(&[seen.header.xid, 2, 64, 0, 0, 0, 0])])
        }),
        ("RDMA_MSGP", |seen| {
            Act::Send(vec![words(&[seen.header.xid, 1, 64, 2, 1, 1, 0, 0, 0])])
        }),
        ("malformed", |seen| {
            Act::Send(vec![words(&[seen.header.xid, 1, 64, 9, 0, 0, 0])])
        }),
        // Not only the first of what comes back is looked at, but it decides.
        ("malformed", |seen| {
            let one = words(&[seen.header.xid, 1, 64, 9, 0, 0, 0]);
            let other = words(&[seen.header.xid, 1, 64, 0, 0, 0, 0]);
            Act::Send(vec![one.clone(), one, other])
        }),
    ];
    let ways = wrongs.map(|(why, wrong)| {
        tokio::spawn(async move {
            let (result, stats) = misbehaving_times(2, 8192, wrong).await;
            match result {
                Err(NfsError::PeerMisbehaved(text)) => {
                    assert!(text.contains(why) && text.contains("READ"), "{text}");
                }
                other => panic!("{why}: {other:?}"),
            }
            let link = &stats.connections[0];
            assert_eq!((link.connects, link.retransmits), (2, 1), "{why}");
        })
    });
    for way in ways {
        way.await.unwrap();
    }
}

/// Two replies that are wrong in different ways are two accidents: the call goes on.
#[tokio::test]
async fn replies_that_are_wrong_in_different_ways_fail_no_call() {
    let (result, stats) = misbehaving_times(2, 8192, |seen| match seen.connection {
        0 => Act::WrongXid,
        _ => tamper(|c, _| c.writes[0].segments[0].length += 1),
    })
    .await;
    assert_eq!(result.unwrap(), 8192);
    assert_eq!(stats.connections[0].retransmits, 2);
}

/// The data are in the Write chunk, which comes back in another shape: Linux takes the sum. (Every
/// shape: `returned_chunks_are_held_against_the_offer`.)
#[tokio::test]
async fn a_write_chunk_in_another_shape_is_taken_by_its_sum() {
    // Split in two.
    let split = |_: &Seen| {
        tamper(|c, _| {
            let mut second = c.writes[0].segments[0];
            second.length -= 1000;
            second.offset += 1000;
            c.writes[0].segments[0].length = 1000;
            c.writes[0].segments.push(second);
        })
    };
    let (result, stats) = misbehaving(8192, split).await;
    assert_eq!(result.unwrap(), 8192);
    let link = &stats.connections[0];
    assert_eq!((link.connects, link.discards), (1, 0));
    // Segments that come back as one, and without those that are unused, as in drafts of the RFC.
    type Change = fn(&mut ChunkLists, &mut Vec<u8>);
    let shapes: [Change; 2] = [
        |c, _| {
            let segments = &mut c.writes[0].segments;
            segments[0].length = segments.iter().map(|s| s.length).sum();
            segments.truncate(1);
        },
        |c, _| c.writes[0].segments.retain(|s| s.length > 0),
    ];
    for shape in shapes {
        let whole = Device {
            scatter_handle: false,
            ..Device::default()
        };
        let script = move |seen: &Seen| match (seen.program, seen.procedure) {
            (PROGRAM, Read::NUMBER) => tamper(shape),
            _ => Act::Answer,
        };
        let server = Server::start(whole, Manners::default(), script);
        let (mounted, pool) = server.mount(&options()).await;
        for len in [0, 1, 4096, 5000, 12_000] {
            let f = server.plant(b"f", &pattern(len, 1));
            let data = read(&mounted, &pool, &f, 12_288, 4096).await;
            assert_eq!(data, pattern(len, 1));
        }
        leaves_nothing(mounted, pool).await;
    }
}

//= RFC 8166, Section 4.5
//= type=test
//# The rdma_vers field MUST contain the same version that [...]
#[tokio::test]
async fn rdma_error_ends_one_call() {
    let error = |seen: &Seen| Act::Send(vec![Header::err_chunk(seen.header.xid, 64).to_xdr()]);
    let (result, stats) = misbehaving(8192, error).await;
    assert!(matches!(result, Err(NfsError::Refused(_))), "{result:?}");
    assert_eq!(
        (
            stats.connections[0].rdma_errors,
            stats.connections[0].connects
        ),
        (1, 1)
    );
    let versions = |seen: &Seen| Act::Send(vec![words(&[seen.header.xid, 1, 64, 4, 1, 2, 3])]);
    let (result, _) = misbehaving(8192, versions).await;
    assert!(matches!(result, Err(NfsError::Refused(_))), "{result:?}");
    // A code that the RFC does not define is permanent as well, with more words behind it or none.
    for len in [20, 28] {
        let unknown = move |seen: &Seen| {
            let bytes = words(&[seen.header.xid, 1, 64, 4, 9, 0, 0]);
            Act::Send(vec![bytes[..len].to_vec()])
        };
        let (result, stats) = misbehaving(8192, unknown).await;
        match result {
            Err(NfsError::Refused(why)) => assert!(why.contains("code 9"), "{why}"),
            other => panic!("{other:?}"),
        }
        let link = &stats.connections[0];
        assert_eq!(
            (link.rdma_errors, link.connects, link.timeouts),
            (1, 1, 0),
            "at once"
        );
    }
    // No call has another version, so an RDMA_ERROR that has one is no answer to it.
    let other = |seen: &Seen| {
        let xid = seen.header.xid;
        Act::SendThenAnswer(vec![
            words(&[xid, 2, 64, 4, 1, 1, 1]),
            words(&[xid, 2, 64, 4, 2, 0, 0]),
            words(&[xid, 0, 64, 4, 9, 0, 0]),
        ])
    };
    let (result, stats) = misbehaving(8192, other).await;
    assert_eq!(result.unwrap(), 8192);
    let link = &stats.connections[0];
    assert_eq!((link.rdma_errors, link.discards, link.connects), (0, 3, 1));
}

//= RFC 8166, Section 4.2.1
//= type=test
//# This XID MUST be the same as the XID in the RPC message.
//= RFC 8166, Section 4.5
//= type=test
//# If errors are detected in the RPC-over-RDMA header of [...]
//# A receiver MUST silently discard an RDMA_ERROR procedure that it cannot decode.
//= RFC 8166, Section 4.6.1
//= type=test
//# Requesters MUST silently discard the message.
//= RFC 8166, Section 4.6.2
//= type=test
//# Receivers MUST silently discard RDMA_DONE messages.
#[tokio::test]
async fn nonsense_is_discarded_in_silence() {
    let nonsense = |seen: &Seen| {
        let xid = seen.header.xid;
        let reply = [0, 1, 0, 0, 0, 0];
        let read_list = ChunkLists {
            reads: [ReadSegment {
                position: 0,
                target: Segment {
                    handle: 1,
                    length: 1,
                    offset: 1,
                },
            }]
            .into_iter()
            .collect(),
            ..ChunkLists::default()
        };
        let with_reply = |body| {
            [
                Header::new(xid, 64, body).to_xdr(),
                words(&[xid, 1, 0, 0, 0, 0]),
            ]
            .concat()
        };
        Act::SendThenAnswer(vec![
            vec![],
            words(&[xid]),
            words(&[xid, 1, 64, 0, 0, 0]),
            // Another version, RDMA_MSGP, RDMA_DONE, an unknown procedure, half an ERR_VERS.
            words(&[xid, 2, 64, 0, 0, 0, 0, xid, 1]),
            words(&[xid, 1, 64, 2, 1, 1, 0, 0, 0, xid, 1]),
            words(&[xid, 1, 64, 3, 0, 0, 0]),
            words(&[xid, 1, 64, 9, 0, 0, 0]),
            words(&[xid, 1, 64, 4, 1, 1]),
            // A reply and an RDMA_ERROR with an unknown XID.
            words(&[xid ^ 0x8000_0000, 1, 64, 0, 0, 0, 0, xid ^ 0x8000_0000, 1]),
            words(&[xid ^ 0x8000_0000, 1, 64, 4, 2, 0, 0]),
            // Different XIDs; a call; no RPC message; RDMA_NOMSG without a chunk.
            [words(&[xid, 1, 64, 0, 0, 0, 0, xid + 1]), words(&reply)].concat(),
            words(&[xid, 1, 64, 0, 0, 0, 0, xid, 0, 2, 100003, 3]),
            words(&[xid, 1, 64, 0, 0, 0, 0]),
            words(&[xid, 1, 64, 1, 0, 0, 0]),
            with_reply(Body::Msg(read_list)),
            vec![0xff; 2000],
        ])
    };
    let (result, stats) = misbehaving(8192, nonsense).await;
    assert_eq!(result.unwrap(), 8192);
    assert_eq!(
        (stats.connections[0].discards, stats.connections[0].connects),
        (16, 1)
    );
}

/// NFS-Ganesha returns a chunk with up to three bytes more than `count`, and writes as many.
#[tokio::test]
async fn a_write_chunk_with_a_surplus_is_taken_by_its_count() {
    for len in [4097usize, 8189, 8190, 8191, 12_001] {
        let surplus = move |_: &Seen| {
            tamper(move |c, _| {
                // All sinks have one handle, so there is one segment.
                c.writes[0].segments[0].length = (len + len % 4) as u32;
            })
        };
        let (result, stats) = misbehaving(len, surplus).await;
        assert_eq!(result.unwrap() as usize, len);
        assert_eq!(stats.connections[0].connects, 1);
    }
}

/// The XID in a Reply chunk is checked after the memory has been invalidated. The call is then as
/// unanswered as after a bad header.
#[tokio::test]
async fn a_reply_chunk_with_another_xid_is_discarded() {
    for times in [1, 2] {
        wrong_xid_in_reply_chunk(times).await;
    }
}

async fn wrong_xid_in_reply_chunk(times: usize) {
    let server = Server::scripted::<Readlink>(move |_, n| match n < times {
        true => Act::WrongXid,
        false => Act::Answer,
    });
    let options = options_with(|t| {
        t.timeo = Duration::from_secs(2);
        t.inline = 1024;
    });
    let (mounted, pool) = server.mount(&options).await;
    let (who, plain) = (root(), SetAttributes::default());
    let link = server
        .memory
        .symlink(&who, &mounted.root, b"l", &[b'x'; 3000], &plain);
    let link = link.await.unwrap().object.unwrap();
    match mounted.client.readlink(&cred(), &link).await {
        Ok((path, _)) => assert_eq!((path, times), (vec![b'x'; 3000], 1)),
        Err(NfsError::PeerMisbehaved(_)) => assert_eq!(times, 2, "the same twice"),
        Err(other) => panic!("{other:?}"),
    }
    let stats = mounted.client.stats();
    let link = &stats.connections[0];
    let wrong = times as u64;
    assert_eq!(
        (link.violations, link.discards, link.timeouts),
        (wrong, wrong, 1)
    );
    assert_eq!((link.connects, link.retransmits), (2, 1));
    leaves_nothing(mounted, pool).await;
}

/// A server that hangs up over each READLINK, whether it is sent alone or with others: READLINK
/// fails, and no other call does.
#[tokio::test]
async fn a_call_that_ends_every_connection_fails_alone() {
    let server = Server::scripted::<Readlink>(|_, _| Act::Hangup);
    let options = options_with(|t| t.timeo = Duration::from_secs(2));
    let (mounted, pool) = server.mount(&options).await;
    server.plant(b"f", &pattern(20_000, 1));
    let client = &mounted.client;
    let bystander = async {
        let mut calls = 0;
        while client.stats().procedures[Readlink::NUMBER as usize].calls == 0 {
            client.getattr(&cred(), &mounted.root).await.unwrap();
            calls += 1;
        }
        calls
    };
    let (cred, link) = (cred(), mounted.root);
    let (result, calls) = tokio::join!(client.readlink(&cred, &link), bystander);
    match result {
        Err(NfsError::Disconnects(why)) => assert!(why.contains("READLINK"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert!(calls > 10, "{calls}");
    let seen = server.calls::<Readlink>().len();
    assert!((5..=8).contains(&seen), "sent {seen} times");
    leaves_nothing(mounted, pool).await;
}

/// A server that hangs up as often, but over any call and before any answer: no call fails.
#[tokio::test]
async fn a_server_that_ends_every_connection_fails_no_call() {
    let server = Server::acting(|seen| match (seen.program, seen.connection) {
        (PROGRAM, 1..=6) => Act::Hangup,
        (PROGRAM, 0) if seen.procedure == Write::NUMBER => Act::Hangup,
        _ => Act::Answer,
    });
    let options = options_with(|t| t.timeo = Duration::from_secs(2));
    let (mounted, pool) = server.mount(&options).await;
    let f = server.plant(b"f", b"");
    write(&mounted, &pool, &f, &pattern(5000, 2), 4096).await;
    let stats = mounted.client.stats();
    assert!(stats.connections[0].connects >= 8, "{stats:?}");
    leaves_nothing(mounted, pool).await;
}

#[tokio::test]
async fn zero_credits_and_floods_of_them() {
    for credits in [0, 1, 65, u32::MAX] {
        let grant = move |_: &Seen| {
            Act::Tamper(Box::new(move |header: &mut Header, _| {
                header.credits = credits
            }))
        };
        let (result, stats) = misbehaving(8192, grant).await;
        assert_eq!(result.unwrap(), 8192);
        assert_eq!(stats.connections[0].credits, credits.clamp(1, 64));
    }
}

#[tokio::test]
async fn results_that_lie_are_errors() {
    // In the reply to READ, these follow 24 bytes of RPC header, the status, and the attributes
    // with the word before them: count, eof, and the opaque length.
    const COUNT: usize = 24 + 4 + 4 + 84;
    type Change = fn(&mut Vec<u8>);
    let lies: [Change; 4] = [
        |p| p[COUNT + 3] ^= 1,
        // Less than the data, 8192 bytes.
        |p| p[COUNT + 2] ^= 0x30,
        |p| p[COUNT + 11] ^= 1,
        |p| p.truncate(30),
    ];
    for lie in lies {
        let (result, stats) = misbehaving(8192, move |_| tamper(move |_, p| lie(p))).await;
        misbehaved(result);
        assert_eq!(stats.connections[0].connects, 1);
    }
    // More data than were asked for, inline, of which the count tells the truth.
    let more = |p: &mut Vec<u8>| {
        for last in [COUNT + 3, COUNT + 11] {
            assert_eq!(p[last], 100);
            p[last] = 104;
        }
        p.extend([b'x'; 4]);
    };
    let (result, _) = misbehaving(100, move |_| tamper(move |_, p| more(p))).await;
    misbehaved(result);
    // The reply says SYSTEM_ERR.
    let (result, _) = misbehaving(8192, |_| tamper(|_, p| p[23] = 5)).await;
    assert!(matches!(result, Err(NfsError::Refused(_))), "{result:?}");
}

/// RFC 1813 section 3.3.4: ACCESS is asked for some bits, and the others say nothing. A path with a NUL
/// ends there for programs.
#[tokio::test]
async fn rights_nobody_asked_for_are_not_taken_and_a_link_with_a_nul_is_an_error() {
    let script = |seen: &Seen| match (seen.program, seen.procedure) {
        (PROGRAM, Access::NUMBER) => tamper(|_, p| *p.last_mut().unwrap() |= 0x3f),
        (PROGRAM, Readlink::NUMBER) => tamper(|_, p| *p.last_mut().unwrap() = 0),
        _ => Act::Answer,
    };
    let server = Server::acting(script);
    // Its replies are inline.
    let options = options_with(|t| t.inline = 65_536);
    let (mounted, pool) = server.mount(&options).await;
    let (client, plain) = (&mounted.client, SetAttributes::default());
    let granted = client.access(&cred(), &mounted.root, access::READ).await;
    assert_eq!(granted.unwrap().0, access::READ);
    let made = client
        .symlink(&root(), &mounted.root, b"l", b"path", &plain)
        .await
        .unwrap();
    let read = client.readlink(&root(), &made.object.unwrap()).await;
    misbehaved(read);
    leaves_nothing(mounted, pool).await;
}

#[tokio::test]
async fn a_symbolic_link_that_no_program_could_get_is_too_long() {
    const PLANTED: usize = 4000;
    // The kernel gets 4095 bytes at most. Longer ones than 4096 are not decoded.
    for len in [4095usize, 4096, 4097, 4300] {
        let server = Server::scripted::<Readlink>(move |_, _| {
            tamper(move |_, results| {
                results.truncate(results.len() - PLANTED - 4);
                results.extend((len as u32).to_be_bytes());
                results.resize(results.len() + len.next_multiple_of(4), b'x');
            })
        });
        // Its replies are inline.
        let options = options_with(|t| t.inline = 65_536);
        let (mounted, pool) = server.mount(&options).await;
        let client = &mounted.client;
        let (cred, attributes) = (root(), SetAttributes::default());
        let made = client
            .symlink(&cred, &mounted.root, b"l", &[b'x'; PLANTED], &attributes)
            .await
            .unwrap();
        let result = client.readlink(&cred, &made.object.unwrap()).await;
        match result {
            Ok((path, _)) => assert_eq!((path.len(), len), (4095, 4095)),
            Err(NfsError::Status(Status::NameTooLong)) => assert!(len > 4095),
            other => panic!("{len}: {other:?}"),
        }
        leaves_nothing(mounted, pool).await;
    }
}

#[tokio::test]
async fn names_are_components_both_ways() {
    let server = Server::plain();
    let (mounted, pool) = server.mount(&options()).await;
    let lookup = |name: Vec<u8>| {
        let (client, root) = (mounted.client.clone(), mounted.root);
        async move { client.lookup(&cred(), &root, &name).await.unwrap_err() }
    };
    let before = server.seen.lock().len();
    for name in [&b""[..], b"a/b", b"a\0b"] {
        assert!(matches!(
            lookup(name.to_vec()).await,
            NfsError::Status(Status::Inval)
        ));
    }
    let long = lookup(vec![b'n'; 256]).await;
    assert!(matches!(long, NfsError::Status(Status::NameTooLong)));
    assert_eq!(server.seen.lock().len(), before, "nothing was sent");
    for name in [&b"a/b"[..], b"a\0b"] {
        server.plant(name, b"");
        let cred = cred();
        let list = mounted
            .client
            .readdir(&cred, &mounted.root, 0, Verifier::default(), 4096);
        // The name spoils nothing; who lists the directory leaves it out.
        let names = list.await.unwrap().entries;
        assert!(names.iter().any(|entry| *entry.name == *name));
        server.uproot(name);
    }
    leaves_nothing(mounted, pool).await;
}

/// What a server says of the stability of data, and NFSv3 does not define, promises nothing.
#[tokio::test]
async fn data_of_undefined_stability_are_taken_for_unstable() {
    let server = Server::scripted::<Write>(|_, _| {
        tamper(|_, results| {
            let at = results.len() - 12;
            results[at..at + 4].copy_from_slice(&3u32.to_be_bytes());
        })
    });
    let (mounted, pool) = server.mount(&options()).await;
    let f = server.plant(b"f", b"");
    let result = try_to_write(&mounted, &pool, &f, &pattern(5000, 1), 4096).await;
    let done = result.unwrap();
    assert_eq!((done.count, done.committed), (5000, Stable::Unstable));
    leaves_nothing(mounted, pool).await;
}

#[tokio::test]
async fn a_write_that_took_more_than_was_sent_or_nothing_is_an_error() {
    for count in [0u32, 5001, u32::MAX] {
        let server = Server::scripted::<Write>(move |_, n| match n {
            // The results end in count, committed and the verifier of 8 bytes.
            0 => tamper(move |_, results| {
                let at = results.len() - 16;
                results[at..at + 4].copy_from_slice(&count.to_be_bytes());
            }),
            _ => Act::Answer,
        });
        let (mounted, pool) = server.mount(&options()).await;
        let f = server.plant(b"f", b"");
        let result = try_to_write(&mounted, &pool, &f, &pattern(5000, 1), 4096).await;
        misbehaved(result);
        let stats = mounted.client.stats();
        assert_eq!(stats.connections[0].connects, 1, "the connection goes on");
        write(&mounted, &pool, &f, &pattern(5000, 2), 4096).await;
        assert_eq!(
            read(&mounted, &pool, &f, 5000, 4096).await,
            pattern(5000, 2)
        );
        leaves_nothing(mounted, pool).await;
    }
}

/// A handle is at most 64 bytes long (RFC 1813 section 2.3.3), and an empty one names nothing. Either is
/// the fault of its object alone.
#[tokio::test]
async fn a_handle_that_cannot_be_used_spoils_no_other_object() {
    for odd in [0, 65, 100, 3000] {
        let of_f = Arc::new(OnceLock::<Vec<u8>>::new());
        let known = of_f.clone();
        let script = move |_: &Seen| {
            let mut to = Encoder::default();
            to.opaque(&vec![9; odd]);
            let (from, to) = (known.get().cloned(), to.into_vec());
            tamper(move |_, payload| {
                let Some(from) = &from else { return };
                let at = payload.windows(from.len()).position(|bytes| bytes == from);
                if let Some(at) = at {
                    payload.splice(at..at + from.len(), to.iter().copied());
                }
            })
        };
        let server = Server::acting(script);
        let (mounted, pool) = server.mount(&options()).await;
        let root = mounted.root;
        let [f, g] = [&b"f"[..], b"g"].map(|name| server.plant(name, b"x"));
        of_f.set(f.to_xdr()).unwrap();
        let client = &mounted.client;
        let page = client
            .readdirplus(&cred(), &root, 0, Verifier::default(), 1000, 1000)
            .await
            .unwrap();
        let of = |name: &[u8]| page.entries.iter().find(|e| *e.name == *name).unwrap();
        assert_eq!((of(b"f").handle, of(b"g").handle), (None, Some(g)), "{odd}");
        assert_eq!(of(b"f").fileid, of(b"f").attributes.unwrap().fileid);
        let found = client.lookup(&cred(), &root, b"f").await;
        assert!(
            matches!(&found, Err(NfsError::PeerMisbehaved(why)) if why.contains("file handle")),
            "{odd}: {found:?}"
        );
        assert_eq!(client.lookup(&cred(), &root, b"g").await.unwrap().object, g);
        leaves_nothing(mounted, pool).await;
    }
}
