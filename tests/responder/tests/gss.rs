//! RPCSEC_GSS over RDMA: which chunks each service has (RFC 8166 section 3.4.2: bodies that are
//! protected have no data that may be reduced). The mechanism is one of these tests, so that they
//! need no Kerberos; tests/system/program has those that do.

use crate::common::Dirs;
use crate::common::requester::*;
use nfsrdma_rdma_testing::loopback::Loopback;
use nfsrdma_responder::rpc::Security;
use nfsrdma_responder::rpc::gss::{self, Accepted, Gss, Mechanism, Protection, Refused};
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder, Payload};
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc;
use nfsrdma_xdr::rpcrdma::{Body, ChunkLists, ErrorBody};
use nfsrdma_xdr::rpcsec_gss::{
    self, Credential, InitArgs, InitRes, IntegrityBody, Opaque, PrivacyBody, Service, SignedHeader,
};
use std::ops::Range;
use std::sync::Arc;

/// A token that is longer than any Send, as that of a user in many groups.
const LONG: usize = 9000;

/// A mechanism whose MIC is a sum, and whose ciphertext is the complement.
struct Simple;

impl Mechanism for Simple {
    fn accept(&self, token: &[u8]) -> Result<Accepted, Refused> {
        Ok(Accepted {
            context: Box::new(Simple),
            token: vec![9; token.len()],
            principal: "alice@HERE".into(),
            lifetime: None,
        })
    }
}

fn sum(message: &[u8]) -> Vec<u8> {
    let add = |sum: u64, &byte: &u8| sum.rotate_left(5) ^ u64::from(byte);
    let sum = message.iter().fold(message.len() as u64, add);
    sum.to_be_bytes().repeat(3)
}

fn flip(message: &[u8]) -> Vec<u8> {
    message.iter().map(|byte| byte ^ 0xff).collect()
}

impl Protection for Simple {
    fn mic(&self, message: &[&[u8]]) -> Option<Vec<u8>> {
        Some(sum(&message.concat()))
    }

    fn verify(&self, message: &[u8], mic: &[u8]) -> Option<()> {
        (sum(message) == mic).then_some(())
    }

    fn wrap_overhead(&self) -> usize {
        24
    }

    fn wrap(&self, message: &[&[u8]], token: &mut [u8]) -> Option<()> {
        let message = message.concat();
        token.copy_from_slice(&[sum(&message), flip(&message)].concat());
        Some(())
    }

    fn unwrap(&self, token: &mut [u8]) -> Option<Range<usize>> {
        let (mic, flipped) = token.split_at_mut_checked(24)?;
        let message = flip(flipped);
        flipped.copy_from_slice(&message);
        (sum(&message) == mic).then_some(24..token.len())
    }
}

/// The client's side of a context.
struct Session {
    handle: Vec<u8>,
    sequence: u32,
}

impl Session {
    /// Begins with a token of so many bytes, as a Long Call with a Reply chunk if it is long.
    fn establish(requester: &mut Requester, token: usize) -> Self {
        let token = vec![7; token];
        let header = SignedHeader {
            xid: 40,
            program: PROGRAM,
            version: VERSION,
            procedure: 0,
            credential: Credential::INIT,
        };
        let mut to = Encoder::new(header.to_xdr());
        rpc::Auth::None.encode(&mut to);
        let token = Opaque(&token[..]);
        InitArgs { token }.encode(&mut to);
        let reply = exchange(requester, 40, &to.into_vec(), token.0.len() + 1000);
        let results = InitRes::from_xdr(results(&reply)).unwrap();
        assert_eq!((results.major, results.window), (0, 128));
        assert_eq!(results.token.0.len(), token.0.len());
        Session {
            handle: results.handle.0.to_vec(),
            sequence: 0,
        }
    }

    /// The header of the next call, with its verifier.
    fn header<P: Procedure>(&mut self, xid: u32, service: Service) -> Encoder {
        self.sequence += 1;
        let header = SignedHeader {
            xid,
            program: P::PROGRAM,
            version: P::VERSION,
            procedure: P::NUMBER,
            credential: Credential::data(self.sequence, service, &self.handle),
        };
        let mut to = Encoder::new(header.to_xdr());
        let mic = sum(to.as_slice());
        rpcsec_gss::verifier(&mic).encode(&mut to);
        to
    }

    /// The bytes of the next call.
    fn call<P: Procedure>(&mut self, xid: u32, service: Service, args: &P::Args<'_>) -> Vec<u8> {
        let mut to = self.header::<P>(xid, service);
        let data = [&self.sequence.to_be_bytes()[..], &args.to_xdr()].concat();
        match service {
            Service::None => args.encode(&mut to),
            Service::Integrity => IntegrityBody {
                data: Opaque(&data),
                mic: Opaque(&sum(&data)),
            }
            .encode(&mut to),
            Service::Privacy => PrivacyBody {
                wrapped: Opaque(&[sum(&data), flip(&data)].concat()),
            }
            .encode(&mut to),
        }
        to.into_vec()
    }

    /// The results in the reply to the last call.
    fn open(&self, service: Service, reply: &[u8]) -> Vec<u8> {
        let mut from = Decoder::new(reply);
        let header = rpc::Reply::decode(&mut from).unwrap();
        let sequence = self.sequence.to_be_bytes();
        let mic = sum(&sequence);
        let verifier = rpcsec_gss::verifier(&mic);
        let expected = rpc::ReplyBody::Accepted(verifier, rpc::Accepted::Success);
        assert_eq!(header.body, expected);
        let data = match service {
            Service::None => return from.rest().to_vec(),
            Service::Integrity => {
                let body = IntegrityBody::from_xdr(from.rest()).unwrap();
                assert_eq!(sum(body.data.0), body.mic.0);
                body.data.0.to_vec()
            }
            Service::Privacy => {
                let body = PrivacyBody::from_xdr(from.rest()).unwrap();
                let mut token = body.wrapped.0.to_vec();
                let message = Simple.unwrap(&mut token).unwrap();
                token[message].to_vec()
            }
        };
        assert_eq!(data[..4], sequence);
        data[4..].to_vec()
    }
}

/// Sends a message: inline, or by a Position Zero Read chunk of several segments. The reply of up to
/// `most` bytes may come by a Reply chunk of several segments.
fn exchange(requester: &mut Requester, xid: u32, message: &[u8], most: usize) -> Vec<u8> {
    let third = (message.len() / 3).next_multiple_of(4);
    let pieces = [
        &message[..third],
        &message[third..2 * third],
        &message[2 * third..],
    ];
    let sources = pieces.map(|piece| requester.source(piece));
    let sinks = [1000, 4000, most.max(4)].map(|len| requester.sink(len));
    let mut chunks = ChunkLists::default();
    if most > 3000 {
        chunks.reply = Some(write_chunk(&sinks.each_ref()));
    }
    let answer = match message.len() > 3000 {
        true => {
            chunks.reads = read_chunk(0, &sources.each_ref()).into();
            requester.call(xid, Body::NoMsg(chunks), &[])
        }
        false => requester.call(xid, Body::Msg(chunks), message),
    };
    let by_chunk = matches!(answer.header.body, Body::NoMsg(_));
    assert_eq!(by_chunk, most > 6000, "only what is too long is not inline");
    let written: usize = match &answer.lists().reply {
        Some(chunk) => chunk.segments.iter().map(|s| s.length as usize).sum(),
        None => 0,
    };
    let mut whole = Vec::new();
    for sink in sinks {
        whole.extend(requester.take(sink));
    }
    match by_chunk {
        true => whole[..written].to_vec(),
        false => answer.inline,
    }
}

fn with_server(test: impl FnOnce(&Dirs, &mut Requester)) {
    let (provider, dirs) = (Arc::new(Loopback::new()), Dirs::new());
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let security = Security {
        flavors: Vec::new(),
        gss: Some(Gss::new(
            Box::new(Simple),
            gss::Settings {
                principals: vec![format!("alice={uid}:{gid}").parse().unwrap()],
                ..Default::default()
            },
        )),
    };
    let sealed = |settings: &mut nfsrdma_responder::rdma::Settings| settings.sealed = true;
    let (server, address) = serve_by(&dirs.export(), provider.clone(), sealed, security);
    let mut requester = Requester::connect(&*provider, address, true);
    test(&dirs, &mut requester);
    drop(requester);
    server.stop();
}

fn look_up(requester: &mut Requester, root: FileHandle) -> FileHandle {
    let what = DirOp {
        dir: root,
        name: Name(b"file"),
    };
    let results = requester.inline::<Lookup>(2, &LookupArgs { what });
    match LookupRes::from_xdr(&results).unwrap() {
        Reply::Ok(ok) => ok.object,
        Reply::Fail(status, _) => panic!("{status:?}"),
    }
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 251 + i) as u8).collect()
}

#[test]
fn tokens_come_inline_and_by_chunks() {
    with_server(|_, requester| {
        let root = requester.mount();
        for token in [800, LONG] {
            let mut session = Session::establish(requester, token);
            let args = GetattrArgs { object: root };
            let message = session.call::<Getattr>(41, Service::None, &args);
            let reply = exchange(requester, 41, &message, 0);
            let results = session.open(Service::None, &reply);
            assert!(GetattrRes::from_xdr(&results).is_ok());
        }
    });
}

/// RDMA_NOMSG in both directions, with nothing reduced.
#[test]
fn bodies_under_protection_are_whole() {
    with_server(|dirs, requester| {
        std::fs::write(dirs.export().join("file"), b"").unwrap();
        let root = requester.mount();
        let file = look_up(requester, root);
        let mut session = Session::establish(requester, 800);
        let all = data(1 << 20);
        for (service, len) in [Service::Integrity, Service::Privacy]
            .into_iter()
            .flat_map(|service| [1, 300_001, 1 << 20].map(|len| (service, len)))
        {
            let args = WriteArgs {
                file,
                offset: 0,
                count: len as u32,
                stable: Stable::FileSync,
                data: Payload::Inline(&all[..len]),
            };
            let message = session.call::<Write>(50, service, &args);
            let reply = exchange(requester, 50, &message, 0);
            let results = session.open(service, &reply);
            match WriteRes::from_xdr(&results).unwrap() {
                Reply::Ok(ok) => assert_eq!(ok.count as usize, len),
                Reply::Fail(status, _) => panic!("{status:?}"),
            }
            let on_disk = std::fs::read(dirs.export().join("file")).unwrap();
            assert!(on_disk[..len] == all[..len]);

            let args = ReadArgs {
                file,
                offset: 0,
                count: len as u32,
            };
            let message = session.call::<Read>(51, service, &args);
            let reply = exchange(requester, 51, &message, len + 1000);
            let results = session.open(service, &reply);
            match ReadRes::from_xdr(&results).unwrap() {
                Reply::Ok(ok) => assert!(ok.data == Payload::Inline(&all[..len])),
                Reply::Fail(status, _) => panic!("{status:?}"),
            }
        }
    });
}

/// With krb5 data are reduced as with AUTH_SYS, and with krb5i that is refused.
#[test]
fn data_is_reduced_only_without_protection() {
    with_server(|dirs, requester| {
        std::fs::write(dirs.export().join("file"), b"").unwrap();
        let root = requester.mount();
        let file = look_up(requester, root);
        let mut session = Session::establish(requester, 800);
        let all = data(300_000);
        let args = WriteArgs {
            file,
            offset: 0,
            count: 300_000,
            stable: Stable::FileSync,
            data: Payload::Placed(300_000),
        };
        for service in [Service::None, Service::Integrity] {
            let mut to = session.header::<Write>(60, service);
            args.encode(&mut to);
            let position = to.placed_at().unwrap() as u32;
            let source = requester.source(&all);
            let body = Body::Msg(ChunkLists {
                reads: read_chunk(position, &[&source]).into(),
                ..Default::default()
            });
            let answer = requester.call(60, body, &to.into_vec());
            if service == Service::None {
                let results = session.open(service, &answer.inline);
                assert_eq!(WriteRes::from_xdr(&results).unwrap().status(), Status::Ok);
                let on_disk = std::fs::read(dirs.export().join("file")).unwrap();
                assert!(on_disk == all);
            } else {
                assert_eq!(answer.header.body, Body::Error(ErrorBody::ErrChunk));
            }
        }
        let args = ReadArgs {
            file,
            offset: 0,
            count: 300_000,
        };
        let sink = requester.sink(300_000);
        let body = Body::Msg(ChunkLists {
            writes: [write_chunk(&[&sink])].into_iter().collect(),
            ..Default::default()
        });
        let message = session.call::<Read>(61, Service::None, &args);
        let answer = requester.call(61, body, &message);
        assert_eq!(answer.lists().writes[0].segments[0].length, 300_000);
        let results = session.open(Service::None, &answer.inline);
        let mut from = Decoder::with_placed(&results, 300_000);
        assert_eq!(ReadRes::decode(&mut from).unwrap().status(), Status::Ok);
        assert!(requester.take(sink) == all);
    });
}
