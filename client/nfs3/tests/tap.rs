//! What listeners get of calls, messages and connections.

use crate::common::data::cred;
use crate::common::*;
use nfsrdma_nfs3::Mounted;
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rpcrdma::tap::{Event, Filter, Interest, Listener};
use nfsrdma_xdr::nfs3::*;

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

/// A call sent twice with a new connection in between, and a call sent before anybody listened.
#[tokio::test]
async fn a_lost_connection() {
    // The first GETATTR is the mount's own.
    let server = Server::at_first::<Getattr, _>([Act::Answer, Act::Hangup]);
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
