//! What listeners get of calls, messages and connections.

use crate::common::data::cred;
use crate::common::*;
use nfsrdma_nfs3::Mounted;
use nfsrdma_nfs3::{Nfs3, NfsError};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rpcrdma::tap::{Ended, Event, Filter, Incoming, Interest, Listener, Outcome};
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::private_data::PrivateData;
use nfsrdma_xdr::rpcrdma::{Body, Header};

fn events(listener: &mut Listener) -> Vec<Event> {
    std::iter::from_fn(|| listener.try_next()).collect()
}

fn listen(mounted: &Mounted) -> (Listener, Listener) {
    let tap = mounted.client.tap();
    let filter = Filter {
        transmissions: true,
        ..Filter::default()
    };
    let calls = tap.listen(Interest::Calls(filter));
    (calls, tap.listen(Interest::Messages { limit: usize::MAX }))
}

/// The first event is the connection; the rest are pairs of a call and its reply.
fn exchanges(events: &[Event]) -> Vec<(Header, Incoming)> {
    assert!(matches!(&events[0], Event::Connected(c) if c.connection == 1));
    let pair = |pair: &[Event]| {
        let [Event::Outgoing(out), Event::Incoming(into)] = pair else {
            panic!("{pair:?}");
        };
        assert_eq!(out.message.bytes.len(), out.message.length);
        let (call, _) = Header::parse(&out.message.bytes).unwrap();
        let (reply, _) = Header::parse(&into.message.bytes).unwrap();
        assert_eq!(call.xid, reply.xid);
        (call, (**into).clone())
    };
    events[1..].chunks(2).map(pair).collect()
}

#[tokio::test]
async fn a_write_a_read_and_an_error() {
    let server = Server::plain();
    let f = server.plant(b"f", b"");
    let (mounted, pool) = server.mount(&options()).await;
    let (mut calls, mut messages) = listen(&mounted);
    let client = &mounted.client;
    let bytes: Vec<u8> = (0..70_001u32).map(|i| (i * 7) as u8).collect();
    let mut data = pool.alloc(bytes.len()).unwrap();
    data.copy_from_slice(&bytes);
    client
        .write(
            &cred(),
            &f,
            0,
            Segs::from_iter([data.freeze()]),
            Stable::FileSync,
        )
        .await
        .unwrap();
    let sink = Segs::from_iter([pool.alloc(80_000).unwrap()]);
    let read = client.read(&cred(), &f, 0, sink).await;
    assert_eq!(read.unwrap().count, 70_001);
    let none = client.lookup(&cred(), &mounted.root, b"none").await;
    assert!(matches!(none, Err(NfsError::Status(Status::NoEnt))));

    let heard = events(&mut calls);
    let ended: Vec<&Ended> = heard
        .iter()
        .filter_map(|event| match event {
            Event::Ended(ended) => Some(&**ended),
            _ => None,
        })
        .collect();
    assert_eq!((heard.len(), ended.len()), (1 + 3 * 2, 3));
    let of = |ended: &Ended| (ended.sent.procedure, ended.outcome.clone(), ended.placed);
    assert_eq!(of(ended[0]), (7, Outcome::Status(0), 0));
    assert_eq!(of(ended[1]), (6, Outcome::Status(0), 70_001));
    assert_eq!(of(ended[2]), (3, Outcome::Status(2), 0));
    assert_eq!(ended[0].sent.argument, 70_001);
    let transport = ended[0].sent.transport.as_ref().unwrap();
    assert_eq!((transport.connection, transport.transmission), (1, 1));
    assert!(transport.credits_in_use == 1 && transport.credits_granted >= 1);

    let heard = events(&mut messages);
    let Event::Connected(connected) = &heard[0] else {
        panic!("{:?}", heard[0]);
    };
    assert!(PrivateData::parse(&connected.own_private_data).is_some());
    let heard = exchanges(&heard);
    let lists = |header: &Header| match &header.body {
        Body::Msg(chunks) | Body::NoMsg(chunks) => chunks.clone(),
        other => panic!("{other:?}"),
    };
    let (write, answer) = &heard[0];
    assert_eq!(answer.offer, lists(write));
    let offered = &answer.read.as_ref().unwrap().bytes;
    // A Position Zero Read chunk holds the whole call, with padding.
    let whole = match lists(write).reads[0].position {
        0 => [&bytes[..], &[0; 3]].concat(),
        _ => bytes.clone(),
    };
    assert!(offered.ends_with(&whole));
    assert!(answer.written.is_none() && answer.reply.is_none());
    let (read, answer) = &heard[1];
    assert_eq!(answer.offer, lists(read));
    assert!(answer.written.as_ref().unwrap().bytes[..] == bytes);
    assert!(answer.read.is_none() && answer.reply.is_none());
    assert!(heard[2].1.written.is_none() && heard.len() == 3);
    mounted.unmount().await;
}

/// A call sent twice with a new connection in between, and a call sent before anybody listened.
#[tokio::test]
async fn a_lost_connection() {
    let server = Server::scripted::<Getattr>(|_, n| match n {
        // The first GETATTR is the mount's own.
        1 => Act::Hangup,
        _ => Act::Answer,
    });
    let (mounted, _pool) = server.mount(&options()).await;
    let (mut calls, mut messages) = listen(&mounted);
    let got = mounted.client.getattr(&cred(), &mounted.root).await;
    got.unwrap();
    let mut said = Vec::new();
    for event in events(&mut calls) {
        said.push(match event {
            Event::Connected(c) => format!("connected {}", c.connection),
            Event::Disconnected(d) => format!("disconnected {} {}", d.connection, d.calls),
            Event::Sent(sent) => format!("sent {}", sent.transport.as_ref().unwrap().transmission),
            Event::Ended(ended) => format!("{:?}", ended.outcome),
            other => panic!("{other:?}"),
        });
    }
    let expected = [
        "connected 1",
        "sent 1",
        "disconnected 1 1",
        "connected 2",
        "sent 2",
        "Status(0)",
    ];
    assert_eq!(said, expected);
    let connections: Vec<u64> = events(&mut messages)
        .iter()
        .map(|event| match event {
            Event::Connected(c) => c.connection,
            Event::Disconnected(d) => d.connection,
            Event::Outgoing(out) => out.connection,
            Event::Incoming(into) => into.connection,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(connections, [1, 1, 1, 2, 2, 2]);
    mounted.unmount().await;
}
