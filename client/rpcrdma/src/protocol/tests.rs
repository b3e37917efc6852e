//! Tests of the state machine with an adversary that chooses every message, and of plans against
//! the sizes that they promise.

use super::*;
use crate::options::WriteChunk as Style;
use nfsrdma_xdr::codec::{Encode, roundup};
use nfsrdma_xdr::private_data::PrivateData;
use nfsrdma_xdr::rpc::MAX_REPLY_LEN;
use nfsrdma_xdr::rpcrdma::{Body, ChunkLists, ErrorBody, Header, Segment, WriteChunk};
use proptest::prelude::*;
use std::collections::HashMap;

fn chunk(lengths: &[u32]) -> WriteChunk {
    let segments = lengths.iter().enumerate().map(|(i, length)| Segment {
        handle: i as u32 + 1,
        length: *length,
        offset: 0x1000,
    });
    segments.collect()
}

fn lists(write: Option<&[u32]>, reply: Option<&[u32]>) -> ChunkLists {
    ChunkLists {
        writes: write.map(chunk).into_iter().collect(),
        reply: reply.map(chunk),
        ..ChunkLists::default()
    }
}

fn message(xid: u32, credits: u32, no_msg: bool, chunks: ChunkLists) -> Vec<u8> {
    let body = match no_msg {
        true => Body::NoMsg(chunks),
        false => Body::Msg(chunks),
    };
    let mut bytes = Header::new(xid, credits, body).to_xdr();
    if !no_msg {
        for word in [xid, 1, 0, 0, 0, 0] {
            bytes.extend(word.to_be_bytes());
        }
    }
    bytes
}

impl Record for (u32, ChunkLists) {
    fn offer(&self) -> &ChunkLists {
        &self.1
    }
}

fn ready(maximum: u32) -> Requester<(u32, ChunkLists)> {
    let mut machine = Requester::new(maximum);
    (0..maximum).for_each(|_| machine.receive_posted());
    machine
}

//= RFC 8166, Section 3.3.1
//= type=test
//# A Requester MUST maintain enough receive resources to accommodate expected replies.
//= RFC 8166, Section 3.3.3
//= type=test
//# A Responder MAY exceed this basic level of configuration, [...]
#[test]
fn one_credit_until_the_first_reply() {
    let mut machine = ready(8);
    assert!(machine.reserve() && !machine.reserve());
    machine.launch(5, (0, ChunkLists::default())).unwrap();
    machine.receive_posted();
    let event = machine.received(&message(5, 4, false, ChunkLists::default()));
    assert!(matches!(
        event,
        Event::Reply {
            call: (0, _),
            body: ReplyBody::Inline { start: 28 },
            placed: None
        }
    ));
    assert_eq!((0..9).filter(|_| machine.reserve()).count(), 4);
    (0..4).for_each(|_| machine.cancel());
    // Without a posted Receive no call may be sent, whatever the grant is.
    let mut machine: Requester<(u32, ChunkLists)> = Requester::new(8);
    assert!(!machine.reserve());
    machine.receive_posted();
    assert!(machine.reserve());
}

#[test]
fn a_withdrawn_call_gives_its_credit_back() {
    let mut machine = ready(8);
    assert!(machine.reserve() && !machine.reserve());
    machine.launch(5, (7, ChunkLists::default())).unwrap();
    assert_eq!(machine.withdraw(6), None, "another call");
    assert!(!machine.reserve());
    assert_eq!(machine.withdraw(5), Some((7, ChunkLists::default())));
    assert!(machine.reserve() && !machine.reserve());
}

//= RFC 8166, Section 4.5
//= type=test
//# If errors are detected in the RPC-over-RDMA header of [...]
#[test]
fn returned_chunks_are_held_against_the_offer() {
    let run = |offer: ChunkLists, no_msg, returned: ChunkLists| {
        let mut machine = ready(1);
        assert!(machine.reserve());
        machine.launch(5, (0, offer)).unwrap();
        match machine.received(&message(5, 1, no_msg, returned)) {
            Event::Reply { placed, body, .. } => Ok((placed, body)),
            Event::Discarded { why, xid } => {
                assert_eq!(xid, Some(5));
                // The call is unchanged, keeps its credit, and still accepts a good reply.
                assert_eq!(machine.used(), 1);
                assert!(!machine.is_proven());
                machine.receive_posted();
                let good = message(5, 1, false, ChunkLists::default());
                assert!(matches!(machine.received(&good), Event::Reply { .. }));
                assert_eq!(machine.used(), 0);
                match why {
                    Discard::Chunks(violation) => Err(violation),
                    other => panic!("{other:?}"),
                }
            }
            other => panic!("{other:?}"),
        }
    };
    let placed = |write: Option<&[u32]>, back: Option<&[u32]>| {
        run(lists(write, None), false, lists(back, None)).map(|(placed, body)| {
            assert!(matches!(body, ReplyBody::Inline { .. }));
            placed
        })
    };
    assert_eq!(placed(None, None), Ok(None));
    assert_eq!(placed(Some(&[8, 8]), Some(&[8, 3])), Ok(Some(11)));
    assert_eq!(placed(Some(&[8, 8]), Some(&[0, 0])), Ok(Some(0)));
    // As in drafts of the RFC: trailing segments left out, no segments at all, no list at all.
    assert_eq!(placed(Some(&[8, 8]), Some(&[8])), Ok(Some(8)));
    assert_eq!(placed(Some(&[8, 8]), Some(&[])), Ok(Some(0)));
    assert_eq!(placed(Some(&[8, 8]), None), Ok(Some(0)));
    // In another shape: the sum counts.
    assert_eq!(placed(Some(&[8, 8]), Some(&[9, 0])), Ok(Some(9)));
    assert_eq!(placed(Some(&[8]), Some(&[8, 0])), Ok(Some(8)));
    assert_eq!(placed(Some(&[8]), Some(&[0, 8])), Ok(Some(8)));
    assert_eq!(placed(Some(&[8]), Some(&[3, 2, 2])), Ok(Some(7)));
    assert_eq!(placed(None, Some(&[])), Ok(None));
    assert_eq!(placed(None, Some(&[0])), Ok(None));
    for empty in [&[][..], &[0]] {
        let unused = run(lists(None, None), false, lists(None, Some(empty)));
        assert!(unused.is_ok(), "{unused:?}");
    }
    let (long, gap) = (Err(Violation::TooLong), Err(Violation::Gap));
    assert_eq!(placed(Some(&[8, 8]), Some(&[9, 8])), long);
    assert_eq!(placed(Some(&[8]), Some(&[8, 8])), long);
    assert_eq!(placed(Some(&[8]), Some(&[u32::MAX, 9])), long);
    assert_eq!(placed(Some(&[8, 8]), Some(&[7, 1])), gap);
    assert_eq!(placed(Some(&[8, 8]), Some(&[0, 8])), gap);
    assert_eq!(placed(Some(&[8, 8, 8]), Some(&[8, 0, 1])), gap);
    assert_eq!(placed(None, Some(&[8])), Err(Violation::ChunkNotOffered));
    let two = |second: &[u32]| {
        let mut returned = lists(Some(&[8]), None);
        returned.writes.push(chunk(second));
        run(lists(Some(&[8]), None), false, returned).map(|(placed, _)| placed)
    };
    assert_eq!(two(&[]), Ok(Some(8)));
    assert_eq!(two(&[0, 0]), Ok(Some(8)));
    assert_eq!(two(&[0, 1]), Err(Violation::ChunkNotOffered));
    let reply = |offer: Option<&[u32]>, back: &[u32]| {
        let returned = run(lists(None, offer), true, lists(None, Some(back)));
        returned.map(|(_, body)| match body {
            ReplyBody::ReplyChunk { len } => len,
            ReplyBody::Inline { .. } => panic!("inline"),
        })
    };
    assert_eq!(reply(Some(&[99]), &[50]), Ok(50));
    assert_eq!(reply(Some(&[99]), &[40, 0, 10]), Ok(50));
    assert_eq!(reply(Some(&[99]), &[100]), Err(Violation::TooLong));
    assert_eq!(reply(Some(&[99]), &[0]), Err(Violation::NoReply));
    assert_eq!(reply(None, &[50]), Err(Violation::ChunkNotOffered));
}

#[test]
fn an_rdma_error_ends_its_call_and_grants_credits() {
    let errors = [
        (ErrorBody::ErrChunk, Failure::Chunk),
        (ErrorBody::Other(9), Failure::Other(9)),
        (
            ErrorBody::ErrVers { low: 2, high: 3 },
            Failure::Version { low: 2, high: 3 },
        ),
    ];
    for (body, wanted) in errors {
        let mut machine = ready(8);
        assert!(machine.reserve());
        machine.launch(5, (0, ChunkLists::default())).unwrap();
        let error = |xid| Header::new(xid, 4, Body::Error(body)).to_xdr();
        let stray = machine.received(&error(6));
        assert!(matches!(stray, Event::Discarded { xid: None, .. }));
        match machine.received(&error(5)) {
            Event::Failed { call, failure } => assert_eq!((call.0, failure), (0, wanted)),
            other => panic!("{other:?}"),
        }
        assert_eq!((machine.used(), machine.granted()), (0, 4));
        assert!(machine.call(5).is_none());
    }
}

#[test]
fn a_connection_tells_its_credits_and_whether_it_has_answered() {
    let mut machine = ready(8);
    assert_eq!((machine.requested(), machine.granted()), (8, 1));
    assert!(machine.reserve() && !machine.is_proven());
    assert_eq!((machine.used(), machine.sending()), (1, 1));
    machine.launch(5, (0, ChunkLists::default())).unwrap();
    assert_eq!((machine.used(), machine.sending()), (1, 0));
    machine.received(&message(5, 4, false, ChunkLists::default()));
    assert_eq!((machine.requested(), machine.granted()), (8, 4));
    assert_eq!((machine.used(), machine.sending()), (0, 0));
    assert!(machine.is_proven());
    assert!(machine.reserve() && machine.reserve());
    assert_eq!((machine.used(), machine.sending()), (2, 2));
}

/// A discarded message is told to be of a call only if it is a reply by a header that can be
/// trusted, and only if the call is in flight.
#[test]
fn what_is_discarded_names_its_call() {
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_be_bytes()).collect() };
    let discarded = |bytes: Vec<u8>| {
        let mut machine = ready(1);
        assert!(machine.reserve());
        let offer = lists(Some(&[8]), None);
        machine.launch(5, (0, offer)).unwrap();
        match machine.received(&bytes) {
            Event::Discarded { why, xid } => {
                assert_eq!((machine.used(), machine.is_proven()), (1, false));
                assert_eq!(machine.call(5).map(|call| call.0), Some(0));
                (why, xid)
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(discarded(words(&[5, 1, 1])), (Discard::TooShort, None));
    assert_eq!(
        discarded(words(&[5, 1, 1, 3, 0, 0, 0])),
        (Discard::Done, None)
    );
    let other = message(6, 1, false, ChunkLists::default());
    assert_eq!(discarded(other), (Discard::UnknownXid, None));
    let version = discarded(words(&[6, 2, 1, 0, 0, 0, 0]));
    assert_eq!(version, (Discard::Version(2), None));
    let of_five: [(&[u32], Discard); 4] = [
        (&[5, 2, 1, 0, 0, 0, 0], Discard::Version(2)),
        (&[5, 1, 1, 2, 0, 0, 0, 0, 0], Discard::Padded),
        (&[5, 1, 1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0], Discard::ReadList),
        (&[5, 1, 1, 0, 0, 0, 0, 6, 1], Discard::NotAReply),
    ];
    for (bytes, why) in of_five {
        assert_eq!(discarded(words(bytes)), (why, Some(5)));
    }
    // An unknown procedure, and ERR_VERS without its range.
    for bytes in [&[5, 1, 1, 9, 0, 0, 0][..], &[5, 1, 1, 4, 1, 1]] {
        let (why, xid) = discarded(words(bytes));
        assert!(matches!(why, Discard::Malformed(_)), "{why:?}");
        assert_eq!(xid, Some(5));
    }
}

/// A step of the adversary.
#[derive(Debug, Clone)]
enum Step {
    Call,
    Cancel,
    Post,
    /// A reply to the call of this index, or to no call if the index is too large.
    Reply {
        to: usize,
        credits: u32,
        no_msg: bool,
        write: Option<Vec<u32>>,
        reply: Option<Vec<u32>>,
    },
    Error {
        to: usize,
    },
    Bytes(Vec<u8>),
    Withdraw(usize),
    Lost,
}

fn step() -> impl Strategy<Value = Step> {
    let lengths = || {
        prop::option::of(prop::collection::vec(
            prop_oneof![0u32..20, any::<u32>()],
            0..4,
        ))
    };
    prop_oneof![
        6 => Just(Step::Call),
        1 => Just(Step::Cancel),
        4 => Just(Step::Post),
        6 => (0usize..6, prop_oneof![0u32..20, any::<u32>()], any::<bool>(), lengths(), lengths())
            .prop_map(|(to, credits, no_msg, write, reply)| Step::Reply { to, credits, no_msg, write, reply }),
        1 => (0usize..6).prop_map(|to| Step::Error { to }),
        2 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Step::Bytes),
        1 => (0usize..6).prop_map(Step::Withdraw),
        1 => Just(Step::Lost),
    ]
}

/// The thresholds of who announces nothing.
const SMALL: Thresholds = Thresholds {
    call: 1024,
    reply: 1024,
    receive: 4096,
    remote_invalidation: false,
};

proptest! {
    //= RFC 8166, Section 3.3.1
    //= type=test
    //# A Requester MUST NOT send unacknowledged requests in excess of the Responder's granted
    //# credit limit.
    /// Whatever messages arrive, every call ends exactly once, credits and Receives are respected,
    /// and no reply claims more bytes than were offered.
    #[test]
    fn no_adversary_confuses_it(maximum in 1u32..10, steps in prop::collection::vec(step(), 0..200)) {
        let mut machine: Requester<(u32, ChunkLists)> = Requester::new(maximum);
        let mut open: HashMap<u32, ChunkLists> = HashMap::new();
        let (mut next, mut posted, mut reserved) = (u32::MAX - 20, 0u32, 0u32);
        // What the last valid answer granted.
        let mut granted = 1;
        for step in steps {
            let xid = |to: usize| open.keys().copied().min().map_or(7, |x| x.wrapping_add(to as u32));
            let bytes = match step {
                Step::Call => {
                    if machine.reserve() {
                        prop_assert!((open.len() as u32) + reserved < granted.min(maximum));
                        prop_assert!((open.len() as u32) + reserved < posted);
                        let offer = lists(Some(&[16, 4]), Some(&[64]));
                        prop_assert!(machine.launch(next, (next, offer.clone())).is_ok());
                        open.insert(next, offer);
                        next = next.wrapping_add(1);
                    }
                    continue;
                }
                Step::Cancel => {
                    if machine.reserve() {
                        reserved += 1;
                    } else if reserved > 0 {
                        reserved -= 1;
                        machine.cancel();
                    }
                    continue;
                }
                Step::Post => {
                    machine.receive_posted();
                    posted += 1;
                    continue;
                }
                Step::Withdraw(to) => {
                    let xid = xid(to);
                    let withdrawn = machine.withdraw(xid).map(|call| call.0);
                    prop_assert_eq!(withdrawn, open.remove(&xid).map(|_| xid));
                    continue;
                }
                Step::Lost => {
                    let mut lost: Vec<u32> = machine.lost().into_iter().map(|call| call.0).collect();
                    lost.sort_unstable();
                    let mut expected: Vec<u32> = open.drain().map(|(xid, _)| xid).collect();
                    expected.sort_unstable();
                    prop_assert_eq!(lost, expected);
                    (posted, reserved, granted) = (0, 0, 1);
                    continue;
                }
                Step::Reply { to, credits, no_msg, write, reply } => {
                    message(xid(to), credits, no_msg, lists(write.as_deref(), reply.as_deref()))
                }
                Step::Error { to } => Header::err_chunk(xid(to), 3).to_xdr(),
                Step::Bytes(bytes) => bytes,
            };
            posted = posted.saturating_sub(1);
            let credits = Header::parse(&bytes).map(|(header, _)| header.credits);
            let event = machine.received(&bytes);
            if !matches!(event, Event::Discarded { .. }) {
                granted = credits.unwrap().max(1);
            }
            match event {
                Event::Reply { call, body, placed } => {
                    prop_assert!(open.remove(&call.0).is_some());
                    prop_assert!(placed.is_some_and(|len| len <= 20));
                    match body {
                        ReplyBody::Inline { start } => prop_assert!(start + 8 <= bytes.len()),
                        ReplyBody::ReplyChunk { len } => prop_assert!(len > 0 && len <= 64),
                    }
                }
                Event::Failed { call, .. } => prop_assert!(open.remove(&call.0).is_some()),
                Event::Discarded { xid, .. } => {
                    prop_assert!(xid.is_none_or(|xid| open.contains_key(&xid)));
                }
            }
            prop_assert!((1..=maximum).contains(&machine.granted()));
            prop_assert_eq!(machine.used(), open.len() as u32 + reserved);
        }
    }

    /// A planned call fits the thresholds, and what does not fit inline gets the chunk it needs.
    #[test]
    fn plans_keep_their_promises(
        head in 40usize..3000, argument in prop_oneof![Just(0usize), 1usize..9000],
        max_results in 0usize..9000, ddp in prop_oneof![Just(0usize), 1usize..9000],
        call in 1usize..65, reply in 1usize..65, pieces in 1usize..20, reduced: bool,
    ) {
        let thresholds = Thresholds {
            call: call * 1024, reply: reply * 1024, ..SMALL
        };
        let shape = Shape {
            head: roundup(head), argument, reducible: argument > 0, max_results, max_ddp_result: ddp,
        };
        let segments = Segments { message: pieces + 1, argument: pieces, result: pieces };
        let style = if reduced { Style::Reduced } else { Style::PositionZero };
        let Ok(plan) = plan(&shape, &segments, &thresholds, style) else {
            prop_assert!(28 + 24 * (pieces + 1) + 8 + 16 * pieces + 20 > thresholds.call);
            return Ok(());
        };
        let header = call_header_len(&plan, &segments);
        let sent = header + match plan.call {
            CallForm::Inline => shape.head + roundup(argument),
            CallForm::Reduced => shape.head,
            CallForm::PositionZero => 0,
        };
        prop_assert!(sent <= thresholds.call);
        prop_assert!(plan.call != CallForm::Reduced || reduced);
        // The largest reply, with the chunks of the call repeated in its header.
        let repeated = 28 + if plan.write_chunk { 8 + 16 * pieces } else { 0 };
        let inline = repeated + MAX_REPLY_LEN + max_results
            + if plan.write_chunk { 0 } else { roundup(ddp) };
        prop_assert!(plan.reply_chunk > 0 || inline <= thresholds.reply);
        prop_assert!(plan.reply_chunk == 0 || plan.reply_chunk >= MAX_REPLY_LEN + max_results);
        prop_assert!(!plan.write_chunk || ddp > 0);
    }

    /// The header has the length that the plan assumed.
    #[test]
    fn header_lengths_are_exact(reads in 0usize..9, write in prop::option::of(1usize..9), reply: bool) {
        let write_lengths = write.map(|n| vec![1; n]);
        let mut chunks = lists(write_lengths.as_deref(), reply.then_some(&[5][..]));
        chunks.reads = (0..reads).map(|_| nfsrdma_xdr::rpcrdma::ReadSegment {
            position: 0, target: chunk(&[1]).segments[0],
        }).collect();
        let plan = Plan {
            call: if reads > 0 { CallForm::PositionZero } else { CallForm::Inline },
            write_chunk: write.is_some(),
            reply_chunk: if reply { 5 } else { 0 },
        };
        let segments = Segments { message: reads, argument: 0, result: write.unwrap_or(0) };
        let header = Header::new(1, 1, Body::Msg(chunks)).to_xdr();
        prop_assert_eq!(call_header_len(&plan, &segments), header.len());
    }
}

//= RFC 8166, Section 3.5.3
//= type=test
//# If there are no DDP-eligible data items in the [...]
//= RFC 8166, Section 4.3.3
//= type=test
//# A Requester MUST provide a Reply chunk whenever the [...]
/// A message of exactly the threshold is inline (RFC 8166 section 3.3.2), and of four bytes more
/// not: each of the places where a size is compared.
#[test]
fn messages_exactly_at_a_threshold_are_inline() {
    let segments = Segments {
        message: 3,
        argument: 2,
        result: 2,
    };
    let planned = |shape: Shape| {
        let plan = plan(&shape, &segments, &SMALL, Style::Reduced).unwrap();
        (plan.call, plan.write_chunk, plan.reply_chunk > 0)
    };
    let call = |head, argument, max_ddp_result| Shape {
        head,
        argument,
        reducible: argument > 0,
        max_results: 0,
        max_ddp_result,
    };
    let (inline, reduced, zero) = (CallForm::Inline, CallForm::Reduced, CallForm::PositionZero);
    // A header without chunks has 28 bytes, and 24 for each Read segment.
    assert_eq!(planned(call(996, 0, 0)).0, inline);
    assert_eq!(planned(call(1000, 0, 0)).0, zero);
    assert_eq!(
        planned(call(96, 897, 0)).0,
        inline,
        "900 bytes with padding"
    );
    assert_eq!(planned(call(96, 901, 0)).0, reduced);
    assert_eq!(planned(call(948, 4000, 0)).0, reduced, "28 + 2 * 24 + 948");
    assert_eq!(planned(call(952, 4000, 0)).0, zero);
    // A Write chunk of two segments has 40 bytes.
    assert_eq!(planned(call(956, 0, 4000)), (inline, true, false));
    assert_eq!(planned(call(960, 0, 4000)), (zero, true, false));
    // A Reply chunk of one segment has 20.
    let room = 1024 - 28 - MAX_REPLY_LEN;
    let reply = |max_results, max_ddp_result| Shape {
        max_results,
        max_ddp_result,
        head: 40,
        ..Shape::default()
    };
    assert_eq!(planned(reply(room, 0)), (inline, false, false));
    assert_eq!(planned(reply(room + 4, 0)), (inline, false, true));
    assert_eq!(planned(reply(8, room - 8)), (inline, false, false));
    assert_eq!(planned(reply(8, room - 9)), (inline, false, false));
    assert_eq!(planned(reply(8, room - 7)), (inline, true, false));
    // What the reply has beside the data, with the Write chunk in its header.
    assert_eq!(planned(reply(room - 40, 4000)), (inline, true, false));
    assert_eq!(planned(reply(room - 36, 4000)), (inline, true, true));
    let with_reply_chunk = |head| Shape {
        head,
        ..reply(room + 4, 0)
    };
    assert_eq!(planned(with_reply_chunk(976)), (inline, false, true));
    assert_eq!(planned(with_reply_chunk(980)), (zero, false, true));
}

/// A header that alone has exactly the size of the threshold can be sent.
#[test]
fn a_header_exactly_at_the_threshold_is_sent() {
    let of = |message, call| {
        let segments = Segments {
            message,
            argument: 1,
            result: 0,
        };
        let shape = Shape {
            head: 8000,
            ..Shape::default()
        };
        let thresholds = Thresholds { call, ..SMALL };
        plan(&shape, &segments, &thresholds, Style::PositionZero).is_ok()
    };
    assert!(of(40, 28 + 40 * 24) && !of(40, 28 + 40 * 24 - 4));
}

//= RFC 8166, Section 3.4.2
//= type=test
//# All other XDR data items MUST NOT be reduced.
//= RFC 8166, Section 6.1
//= type=test
//# Senders MUST NOT reduce data items that are not DDP-eligible.
#[test]
fn only_a_ddp_eligible_argument_is_reduced() {
    let segments = Segments {
        message: 2,
        argument: 1,
        result: 0,
    };
    for (reducible, form) in [(true, CallForm::Reduced), (false, CallForm::PositionZero)] {
        let shape = Shape {
            head: 200,
            argument: 3000,
            reducible,
            ..Shape::default()
        };
        let plan = plan(&shape, &segments, &SMALL, Style::Reduced).unwrap();
        assert_eq!(plan.call, form);
    }
}

//= RFC 8166, Section 3.3.3
//= type=test
//# In the absence of such a mechanism, senders and [...]
//= RFC 8797, Section 5.1
//= type=test
//# In other words, the peer MUST behave as if [...]
#[test]
fn thresholds_are_what_both_sides_can() {
    let data = |send_size, receive_size| PrivateData {
        remote_invalidation: true,
        send_size,
        receive_size,
    };
    let both = Thresholds::negotiate(&data(65536, 65536), Some(&data(4096, 8192)));
    assert_eq!(
        (both.call, both.reply, both.remote_invalidation),
        (8192, 4096, true)
    );
    // A server may send as much as it announced, whatever we announced.
    assert_eq!(
        Thresholds::negotiate(&data(1024, 1024), Some(&data(4096, 4096))).receive,
        4096
    );
    let silent = Thresholds::negotiate(&data(65536, 65536), None);
    assert_eq!(
        (silent.call, silent.reply, silent.remote_invalidation),
        (1024, 1024, false)
    );
    assert!(silent.receive >= 4096);
}

proptest! {
    /// What is decoded in a shorter way is what the whole decoder decodes.
    #[test]
    fn usual_headers_are_decoded_alike(
        xid: u32, credits: u32, segments in proptest::collection::vec(any::<(u32, u32, u64)>(), 0..3),
        listed: bool, reply: bool, cut in 0usize..80, flip in proptest::option::of((0usize..52, 0u8..8)),
    ) {
        let chunk: WriteChunk = segments
            .iter()
            .map(|&(handle, length, offset)| Segment { handle, length, offset })
            .collect();
        let chunks = ChunkLists {
            writes: listed.then(|| chunk.clone()).into_iter().collect(),
            reply: reply.then_some(chunk),
            ..ChunkLists::default()
        };
        let mut bytes = message(xid, credits, false, chunks);
        if let Some((at, bit)) = flip && at < bytes.len() {
            bytes[at] ^= 1 << bit;
        }
        bytes.truncate(bytes.len() - cut.min(bytes.len()));
        if let Some((xid, credits, segment, start)) = super::requester::usual(&bytes) {
            let chunks = ChunkLists {
                writes: segment.map(|segment| [segment].into_iter().collect()).into_iter().collect(),
                ..ChunkLists::default()
            };
            let parsed = Header::parse(&bytes);
            prop_assert_eq!(parsed, Ok((Header::new(xid, credits, Body::Msg(chunks)), start)));
        }
    }
}

/// A segment of zeros looks like the empty lists that follow it.
#[test]
fn usual_headers_are_decoded_in_the_shorter_way() {
    let bytes = message(5, 4, false, ChunkLists::default());
    assert_eq!(super::requester::usual(&bytes), Some((5, 4, None, 28)));
    let of = |handle, length, offset| Segment {
        handle,
        length,
        offset,
    };
    for segment in [of(1, 2, 3 << 32 | 4), of(0, 0, 0)] {
        let chunks = ChunkLists {
            writes: [[segment].into_iter().collect()].into_iter().collect(),
            ..ChunkLists::default()
        };
        let bytes = message(5, 4, false, chunks);
        let usual = super::requester::usual(&bytes);
        assert_eq!(usual, Some((5, 4, Some(segment), 52)));
    }
}
