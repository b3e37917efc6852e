//! RPC-over-RDMA (RFC 8166) of the responder: every form of call and reply, over soft-iWARP.

use crate::common::Dirs;
use crate::common::requester::*;
use nfsrdma_iwarp::{IwarpOptions, IwarpProvider};
use nfsrdma_rdma::{Exposure, Provider};
use nfsrdma_responder::rpc::Stage;
use nfsrdma_xdr::codec::{Decode, Decoder, Payload};
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::rpcrdma::{Body, ChunkLists, ErrorBody, Header, WriteChunk};
use std::sync::Arc;
use std::time::Duration;

fn providers() -> Vec<Arc<dyn Provider>> {
    let crc = IwarpOptions {
        crc: true,
        ..IwarpOptions::default()
    };
    vec![
        Arc::new(IwarpProvider::new(IwarpOptions::default())),
        Arc::new(IwarpProvider::new(crc)),
    ]
}

/// Runs `test` over every provider, each with an empty export, and once with all posting by the
/// connection's thread.
fn over_all(test: impl Fn(&Dirs, &mut Requester)) {
    let together = providers().into_iter().map(|provider| (provider, false));
    let apart: Arc<dyn Provider> = Arc::new(IwarpProvider::default());
    for (provider, apart) in together.chain([(apart, true)]) {
        let dirs = Dirs::new();
        let change = |settings: &mut nfsrdma_responder::rdma::Settings| settings.apart = apart;
        let (server, address) = serve(&dirs.export(), provider.clone(), change);
        let mut requester = Requester::connect(&*provider, address);
        test(&dirs, &mut requester);
        drop(requester);
        server.stop();
    }
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 251 + i) as u8).collect()
}

fn look_up(requester: &mut Requester, dir: FileHandle, name: &[u8]) -> FileHandle {
    let what = DirOp {
        dir,
        name: Name(name),
    };
    let results = requester.inline::<Lookup>(2, &LookupArgs { what });
    ok(LookupRes::from_xdr(&results).unwrap()).object
}

fn ok<T, F>(reply: Reply<T, F>) -> T {
    match reply {
        Reply::Ok(ok) => ok,
        Reply::Fail(status, _) => panic!("{status:?}"),
    }
}

/// The first bytes of a file.
fn read_args(file: FileHandle, count: u32) -> ReadArgs {
    ReadArgs {
        file,
        offset: 0,
        count,
    }
}

fn without_chunks() -> Body {
    Body::Msg(ChunkLists::default())
}

fn with_write_list(chunks: &[WriteChunk]) -> Body {
    Body::Msg(ChunkLists {
        writes: chunks.iter().cloned().collect(),
        ..Default::default()
    })
}

fn read_list(position: u32, sources: &[&Exposure]) -> ChunkLists {
    ChunkLists {
        reads: read_chunk(position, sources).into_iter().collect(),
        ..Default::default()
    }
}

fn reply_chunk(sinks: &[&Exposure]) -> ChunkLists {
    ChunkLists {
        reply: Some(write_chunk(sinks)),
        ..Default::default()
    }
}

fn is_err_chunk(answer: &Answer) -> bool {
    answer.header.body == Body::Error(ErrorBody::ErrChunk)
}

//= RFC 8166, Section 4.3.2
//= type=test
//# When a Requester provides a Write list, the Responder [...]
//= RFC 8166, Section 3.4.6.2
//= type=test
//# A Responder MUST NOT write XDR roundup padding into [...]
//# Therefore, when returning a single variable-length result data item, [...]
#[test]
fn read_fills_the_write_chunk() {
    over_all(|dirs, requester| {
        let data = data(300_001);
        std::fs::write(dirs.export().join("file"), &data).unwrap();
        let root = requester.mount();
        let file = look_up(requester, root, b"file");
        // Three segments, of which the last one is used in part.
        let sinks = [
            requester.sink(100_000),
            requester.sink(150_001),
            requester.sink(100_000),
        ];
        let body = with_write_list(&[write_chunk(&sinks.each_ref())]);
        let read = call::<Read>(5, &read_args(file, 350_001));
        let answer = requester.call(5, body, &read);
        let lengths: Vec<u32> = answer.lists().writes[0]
            .segments
            .iter()
            .map(|s| s.length)
            .collect();
        assert_eq!(lengths, [100_000, 150_001, 50_000]);
        // The chunk has three handles, so none is invalidated.
        assert_eq!(answer.invalidated, None);
        let mut from = Decoder::with_placed(answer.results(), 300_001);
        let read = ok(ReadRes::decode(&mut from).unwrap());
        assert_eq!((read.count, read.eof), (300_001, true));
        assert_eq!(read.data, Payload::Placed(300_001));
        assert_eq!(from.remaining(), 0);
        let got: Vec<u8> = sinks.into_iter().flat_map(|s| requester.take(s)).collect();
        assert!(got[..300_001] == data);
        assert!(got[300_001..].iter().all(|&b| b == 0xee));
    });
}

//= RFC 8166, Section 4.3.2.2
//= type=test
//# If this is the last or only Write chunk [...]
//= RFC 8166, Section 4.3.2.3
//= type=test
//# The Responder MUST return the corresponding result data item [...]
#[test]
fn read_without_a_chunk_is_inline_and_a_failure_leaves_the_chunk_unused() {
    over_all(|dirs, requester| {
        std::fs::write(dirs.export().join("file"), b"five!").unwrap();
        let root = requester.mount();
        let file = look_up(requester, root, b"file");
        let args = read_args(file, 1000);
        let results = requester.inline::<Read>(5, &args);
        let read = ok(ReadRes::from_xdr(&results).unwrap());
        assert_eq!(read.data, Payload::Inline(b"five!"));
        // An empty chunk asks for the result inline, and comes back empty.
        let body = with_write_list(&[WriteChunk::default()]);
        let answer = requester.call(6, body, &call::<Read>(6, &args));
        assert_eq!(answer.lists().writes[..], [WriteChunk::default()]);
        assert_eq!(answer.results(), &results[..]);
        // A second chunk would be for a second result, which READ does not have.
        let spare = requester.sink(1000);
        let body = with_write_list(&[WriteChunk::default(), write_chunk(&[&spare])]);
        let answer = requester.call(8, body, &call::<Read>(8, &args));
        let returned = &answer.lists().writes;
        assert_eq!((returned.len(), returned[0].segments.len()), (2, 0));
        assert_eq!(returned[1].segments.len(), 1);
        assert!(returned[1].is_empty(), "unused");
        assert_eq!(answer.results(), &results[..]);
        assert!(requester.take(spare).iter().all(|&byte| byte == 0xee));
        // READ of a directory fails: the chunk is returned with empty segments.
        let sinks = [requester.sink(10), requester.sink(20)];
        let chunk = write_chunk(&sinks.each_ref());
        let body = with_write_list(std::slice::from_ref(&chunk));
        let read = call::<Read>(7, &read_args(root, 1000));
        let answer = requester.call(7, body, &read);
        let returned = &answer.lists().writes[0];
        assert_eq!(returned.segments.len(), 2);
        assert!(returned.is_empty());
        assert_eq!(returned.segments[1].handle, chunk.segments[1].handle);
        let status = ReadRes::from_xdr(answer.results()).unwrap().status();
        assert_eq!(status, Status::IsDir);
    });
}

#[test]
fn a_chunk_that_is_too_small_ends_the_call_alone() {
    over_all(|dirs, requester| {
        std::fs::write(dirs.export().join("file"), data(100)).unwrap();
        let root = requester.mount();
        let file = look_up(requester, root, b"file");
        let sink = requester.sink(99);
        let body = with_write_list(&[write_chunk(&[&sink])]);
        let read = call::<Read>(5, &read_args(file, 100));
        assert!(is_err_chunk(&requester.call(5, body, &read)));
        assert_eq!(requester.inline::<Null>(6, &Void {}), b"");
    });
}

fn write_args(file: FileHandle, data: &[u8]) -> WriteArgs<'_> {
    WriteArgs {
        file,
        offset: 10,
        count: data.len() as u32,
        stable: Stable::Unstable,
        data: Payload::Inline(data),
    }
}

fn written(results: &[u8]) -> u32 {
    ok(WriteRes::from_xdr(results).unwrap()).count
}

#[test]
fn write_comes_by_a_position_zero_chunk_in_pieces() {
    over_all(|dirs, requester| {
        let path = dirs.export().join("file");
        std::fs::write(&path, b"").unwrap();
        let root = requester.mount();
        let file = look_up(requester, root, b"file");
        for (xid, len) in [(10, 200_000), (11, 524_286), (12, 1), (13, 1 << 20)] {
            let data = data(len);
            let whole = call::<Write>(xid, &write_args(file, &data));
            let head = whole.len() - len.next_multiple_of(4);
            let middle = head + len / 3;
            // The head, the data in two pieces, and the padding in separate chunks; or all in one.
            let pieces: Vec<_> = [
                &whole[..head],
                &whole[head..middle],
                &whole[middle..head + len],
                &whole[head + len..],
            ]
            .into_iter()
            .filter(|piece| !piece.is_empty())
            .map(|piece| requester.source(piece))
            .collect();
            let one = requester.source(&whole);
            for sources in [pieces.iter().collect::<Vec<_>>(), vec![&one]] {
                let answer = requester.call(xid, Body::NoMsg(read_list(0, &sources)), b"");
                assert_eq!(written(answer.results()) as usize, len);
                let single = sources.len() == 1;
                assert_eq!(answer.invalidated.is_some(), single);
                let got = std::fs::read(&path).unwrap();
                assert!(got[10..10 + len] == data);
            }
        }
    });
}

//= RFC 8166, Section 6.1
//= type=test
//# The Responder MUST NOT process this RPC Call message [...]
#[test]
fn write_comes_by_a_reduced_chunk() {
    over_all(|dirs, requester| {
        let path = dirs.export().join("file");
        std::fs::write(&path, b"").unwrap();
        let root = requester.mount();
        let file = look_up(requester, root, b"file");
        let data = data(524_287);
        let args = WriteArgs {
            data: Payload::Placed(524_287),
            ..write_args(file, &data)
        };
        let encoder = encode_call::<Write>(20, &args);
        let position = encoder.placed_at().unwrap() as u32;
        let sources = [
            requester.source(&data[..1]),
            requester.source(&data[1..400_000]),
            requester.source(&data[400_000..]),
        ];
        let with = |position| Body::Msg(read_list(position, &sources.each_ref()));
        // First with a wrong position.
        let answer = requester.call(20, with(position + 4), encoder.as_slice());
        assert!(is_err_chunk(&answer));
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        let answer = requester.call(20, with(position), encoder.as_slice());
        assert_eq!(written(answer.results()), 524_287);
        assert!(std::fs::read(&path).unwrap()[10..] == data);
        // The same chunk for a procedure that cannot have one: it has no effect.
        let create = |name: &'static [u8]| CreateArgs {
            at: DirOp {
                dir: root,
                name: Name(name),
            },
            how: CreateHow::Guarded(SetAttributes::default()),
        };
        let refused = call::<Create>(21, &create(b"refused"));
        assert!(is_err_chunk(&requester.call(21, with(position), &refused)));
        assert!(!dirs.export().join("refused").exists());
        requester.inline::<Create>(22, &create(b"created"));
        assert!(dirs.export().join("created").exists());
    });
}

//= RFC 8166, Section 3.5.3
//= type=test
//# If a Reply chunk was provided and the reduced [...]
//= RFC 8797, Section 4.1
//= type=test
//# Each RDMA Send with Invalidate MUST invalidate an STag [...]
#[test]
fn long_replies_use_the_reply_chunk_and_short_ones_do_not() {
    over_all(|dirs, requester| {
        for n in 0..300 {
            std::fs::write(dirs.export().join(format!("a-rather-long-name-{n}")), b"").unwrap();
        }
        let root = requester.mount();
        let args = ReaddirArgs {
            dir: root,
            cookie: 0,
            verifier: Verifier::default(),
            count: 60_000,
        };
        let long = call::<Readdir>(40, &args);
        // Without a chunk for it, there is no reply.
        let answer = requester.call(40, without_chunks(), &long);
        assert!(is_err_chunk(&answer));
        let sinks = [requester.sink(4096), requester.sink(60_000)];
        let body = Body::Msg(reply_chunk(&sinks.each_ref()));
        let answer = requester.call(41, body, &call::<Readdir>(41, &args));
        let Body::NoMsg(lists) = &answer.header.body else {
            panic!("{:?}", answer.header);
        };
        assert_eq!(answer.inline, b"");
        let len = lists.reply.as_ref().unwrap().len() as usize;
        let reply: Vec<u8> = sinks.into_iter().flat_map(|s| requester.take(s)).collect();
        let list = ok(ReaddirRes::from_xdr(results(&reply[..len])).unwrap());
        assert_eq!((list.entries.len(), list.eof), (302, true));
        // One handle, offered for a short reply: the chunk is unused, but invalidated.
        let sink = requester.sink(8192);
        let handle = sink.segments()[0].handle;
        let getattr = call::<Getattr>(42, &GetattrArgs { object: root });
        let answer = requester.call(42, Body::Msg(reply_chunk(&[&sink])), &getattr);
        assert!(answer.lists().reply.as_ref().unwrap().is_empty());
        assert_eq!(answer.invalidated, Some(handle));
        assert!(!answer.results().is_empty());
        assert!(requester.take(sink).iter().all(|&b| b == 0xee));
    });
}

//= RFC 8166, Section 4.2.1
//= type=test
//# This XID MUST be the same as the XID in the RPC message.
//= RFC 8166, Section 4.2.4
//= type=test
//# A Responder MUST silently discard RDMA_ERROR procedures.
//= RFC 8166, Section 4.5
//= type=test
//# If other errors are detected in the RPC-over-RDMA header [...]
//= RFC 8166, Section 4.5.1
//= type=test
//# When a Responder detects an RPC-over-RDMA header version that [...]
//= RFC 8166, Section 4.6.2
//= type=test
//# Receivers MUST silently discard RDMA_DONE messages.
#[test]
fn bad_headers_are_answered_or_ignored() {
    over_all(|_, requester| {
        let null = call::<Null>(50, &Void {});
        // Messages that are too short for a header, and messages that have no answer.
        requester.send(&[0; 24]);
        requester.post(&Header::new(50, 1, Body::Done), &[0; 12]);
        requester.post(
            &Header::new(50, 1, Body::Error(ErrorBody::ErrChunk)),
            &[0; 12],
        );
        let mut header = Header::new(51, 1, without_chunks());
        header.version = 2;
        requester.post(&header, &null);
        let answer = requester.answer().unwrap();
        assert_eq!((answer.header.xid, answer.header.version), (51, 2));
        assert_eq!(
            answer.header.body,
            Body::Error(ErrorBody::ErrVers { low: 1, high: 1 })
        );
        let padded = Body::MsgP {
            align: 4,
            threshold: 4,
            chunks: ChunkLists::default(),
        };
        assert!(is_err_chunk(&requester.call(52, padded, &null)));
        // The XID in the header differs from that of the message.
        assert!(is_err_chunk(&requester.call(54, without_chunks(), &null)));
        assert_eq!(requester.inline::<Null>(56, &Void {}), b"");
    });
}

//= RFC 8797, Section 4.1
//= type=test
//# When either peer on a connection clears this flag, [...]
#[test]
fn a_server_that_clears_the_flag_invalidates_nothing() {
    let provider: Arc<dyn Provider> = Arc::new(IwarpProvider::default());
    let dirs = Dirs::new();
    let clear = |settings: &mut nfsrdma_responder::rdma::Settings| settings.invalidate = false;
    let (server, address) = serve(&dirs.export(), provider.clone(), clear);
    let mut requester = Requester::connect(&*provider, address);
    assert!(!requester.theirs.remote_invalidation);
    // One handle, which a server with remote invalidation would invalidate.
    let sink = requester.sink(4096);
    let null = call::<Null>(81, &Void {});
    let answer = requester.call(81, Body::Msg(reply_chunk(&[&sink])), &null);
    assert_eq!(answer.invalidated, None);
    requester.take(sink);
    drop(requester);
    server.stop();
}

//= RFC 8166, Section 3.3.1
//= type=test
//# The Responder MUST ensure that an increase in receive [...]
//# The granted value MUST NOT be zero, since such a value would result in deadlock.
/// The first reply grants more than the one call that every requester may send. At once as many
/// calls find a Receive, while none of them is answered.
#[test]
fn as_many_calls_as_the_first_reply_grants_find_a_receive() {
    for provider in providers() {
        let dirs = Dirs::new();
        let (server, address) = serve(&dirs.export(), provider.clone(), |_| {});
        let mut requester = Requester::connect(&*provider, address);
        let root = requester.mount();
        let held = ProcedureNumber::Getattr;
        let remote = server.remote();
        let script = remote.script();
        script.hold(Some(held), Stage::Call, u64::MAX);
        let header = |xid| Header::new(xid, 8, without_chunks());
        requester.post(&header(300), &call::<Null>(300, &Void {}));
        let granted = requester.answer().unwrap().header.credits;
        assert!(granted > 1);
        for xid in 400..400 + granted {
            let getattr = call::<Getattr>(xid, &GetattrArgs { object: root });
            requester.post(&header(xid), &getattr);
        }
        // The others wait for a worker.
        assert!(script.wait_held(2, Duration::from_secs(20)));
        script.release(Some(held));
        let answers = (0..granted).map(|_| requester.answer().unwrap().header.xid);
        let mut answers: Vec<u32> = answers.collect();
        answers.sort_unstable();
        assert!(answers.into_iter().eq(400..400 + granted));
        drop(requester);
        server.stop();
    }
}
