use super::*;
use nfsrdma_xdr::rpcrdma::ChunkLists;
use std::time::Duration;
use std::time::SystemTime;

fn sent(procedure: usize, transmission: u32) -> Arc<Sent> {
    Arc::new(Sent {
        time: SystemTime::UNIX_EPOCH,
        xid: 7,
        pid: 0,
        procedure,
        head: Box::new([0; 100]),
        argument: 0,
        transport: Some(Transmission {
            connection: 1,
            slot: 0,
            transmission,
            message: 128,
            chunks: ChunkLists::default(),
            credits_in_use: 1,
            credits_granted: 1,
        }),
    })
}

fn ended(procedure: usize, outcome: Outcome, millis: u64) -> Arc<Ended> {
    Arc::new(Ended {
        time: SystemTime::UNIX_EPOCH,
        sent: sent(procedure, 1),
        outcome,
        queued: Duration::ZERO,
        round_trip: Duration::from_millis(millis),
        received: 0,
        placed: 0,
    })
}

fn outgoing(bytes: usize, limit: usize) -> Event {
    let data = vec![1; bytes];
    Event::Outgoing(Outgoing {
        connection: 1,
        time: SystemTime::UNIX_EPOCH,
        message: Data::gather([&data[..]], bytes, limit),
    })
}

fn procedures(listener: &mut Listener) -> Vec<usize> {
    let mut found = Vec::new();
    while let Some(event) = listener.try_next() {
        match event {
            Event::Sent(sent) => found.push(sent.procedure),
            Event::Ended(ended) => found.push(ended.sent.procedure),
            other => panic!("{other:?}"),
        }
    }
    found
}

#[test]
fn wanted_follows_the_listeners() {
    let tap = Arc::new(Tap::default());
    assert!(tap.wanted().is_nothing());
    let calls = tap.listen(Interest::Calls(Filter::default()));
    assert!(tap.wanted().calls() && !tap.wanted().messages());
    let messages = tap.listen(Interest::Messages { limit: 1 });
    assert!(tap.wanted().calls() && tap.wanted().messages());
    drop(calls);
    assert!(!tap.wanted().calls() && tap.wanted().messages());
    drop(messages);
    assert!(tap.wanted().is_nothing());
}

#[test]
fn each_listener_gets_what_it_asked_for() {
    let tap = Arc::new(Tap::default());
    let ask = |change: &dyn Fn(&mut Filter)| {
        let mut filter = Filter::default();
        change(&mut filter);
        tap.listen(Interest::Calls(filter))
    };
    let mut all = ask(&|_| {});
    let mut reads = ask(&|f| f.procedures = 1 << 6);
    let mut errors = ask(&|f| f.errors = true);
    let mut slow = ask(&|f| f.slow = Duration::from_millis(10));
    let mut transmissions = ask(&|f| f.transmissions = true);
    tap.sent(&sent(6, 1));
    tap.sent(&sent(7, 2));
    tap.ended(&ended(6, Outcome::Status(0), 9));
    tap.ended(&ended(3, Outcome::Status(2), 10));
    tap.ended(&ended(99, Outcome::Failed(String::new()), 0));
    // Call 7 was a retransmission.
    assert_eq!(procedures(&mut all), [7, 6, 3, 99]);
    assert_eq!(procedures(&mut reads), [6]);
    assert_eq!(procedures(&mut errors), [7, 3, 99]);
    assert_eq!(procedures(&mut slow), [7, 3]);
    assert_eq!(procedures(&mut transmissions), [6, 7, 6, 3, 99]);
}

#[test]
fn what_does_not_fit_is_counted() {
    let tap = Arc::new(Tap::default());
    let mut listener = tap.listen(Interest::Calls(Filter::default()));
    for _ in 0..5000 {
        tap.ended(&ended(1, Outcome::Status(0), 0));
    }
    let mut next = || listener.try_next();
    for _ in 0..2048 {
        assert!(matches!(next(), Some(Event::Ended(_))));
    }
    assert!(matches!(next(), Some(Event::Lost(2952))));
    assert!(next().is_none());
    // A loss is reported before the events that follow it.
    for _ in 0..2050 {
        tap.ended(&ended(1, Outcome::Status(0), 0));
    }
    assert!(matches!(next(), Some(Event::Ended(_))));
    tap.ended(&ended(2, Outcome::Status(0), 0));
    for _ in 0..2047 {
        assert!(matches!(next(), Some(Event::Ended(e)) if e.sent.procedure == 1));
    }
    assert!(matches!(next(), Some(Event::Lost(2))));
    assert!(matches!(next(), Some(Event::Ended(e)) if e.sent.procedure == 2));
    assert!(next().is_none());
}

#[test]
fn bytes_are_bounded_and_not_copied_in_vain() {
    let tap = Arc::new(Tap::default());
    let mut listener = tap.listen(Interest::Messages { limit: usize::MAX });
    let made = std::cell::Cell::new(0);
    for _ in 0..40 {
        tap.message(1 << 20, |limit| {
            made.set(made.get() + 1);
            outgoing(1 << 20, limit)
        });
    }
    assert_eq!(made.get(), 31);
    let mut got = 0;
    let lost = loop {
        match listener.try_next() {
            Some(Event::Outgoing(_)) => got += 1,
            Some(Event::Lost(lost)) => break lost,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((got, lost), (31, 9));
    // An event larger than the bound is not refused for ever.
    tap.message(64 << 20, |_| outgoing(10, 4));
    let Some(Event::Outgoing(Outgoing { message, .. })) = listener.try_next() else {
        panic!("nothing");
    };
    assert_eq!((&message.bytes[..], message.length), (&[1; 4][..], 10));
}

#[tokio::test]
async fn connections_and_the_end() {
    let tap = Arc::new(Tap::default());
    let connected = |connection| {
        Arc::new(Connected {
            connection,
            slot: 0,
            time: SystemTime::UNIX_EPOCH,
            provider: "loopback",
            local: ([127, 0, 0, 1], 1).into(),
            peer: ([127, 0, 0, 1], 2).into(),
            own_private_data: vec![],
            peer_private_data: vec![],
            greeting: None,
        })
    };
    tap.connected(connected(1));
    tap.connected(connected(2));
    tap.disconnected(&Arc::new(Disconnected {
        connection: 1,
        slot: 0,
        time: SystemTime::UNIX_EPOCH,
        why: "gone".into(),
        calls: 3,
    }));
    let mut listener = tap.listen(Interest::Messages { limit: 0 });
    assert!(matches!(listener.next().await, Some(Event::Connected(c)) if c.connection == 2));
    assert!(listener.try_next().is_none());
    let waiting = tokio::spawn(async move {
        let first = listener.next().await;
        (first, listener.next().await)
    });
    tap.connected(connected(3));
    tap.close();
    let (first, second) = waiting.await.unwrap();
    assert!(matches!(first, Some(Event::Connected(c)) if c.connection == 3));
    assert!(second.is_none());
    assert!(tap.wanted().is_nothing());
    let mut late = tap.listen(Interest::Messages { limit: 0 });
    assert!(late.next().await.is_some() && late.next().await.is_some());
    assert!(late.next().await.is_none());
}
