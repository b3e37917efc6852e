//! By a mechanism whose MIC is the length of the message and a key.

use super::*;
use nfsrdma_xdr::rpcsec_gss::SignedHeader;
use std::ops::Range;

const KEY: u8 = 7;

struct Simple;

impl Mechanism for Simple {
    fn accept(&self, token: &[u8]) -> Result<Accepted, Refused> {
        match token {
            b"alice" => Ok(Accepted {
                context: Box::new(Simple),
                token: b"welcome".to_vec(),
                principal: "alice@HERE".into(),
                lifetime: None,
            }),
            _ => Err(Refused {
                major: 9 << 16,
                minor: 5,
                why: "nobody knows it".into(),
            }),
        }
    }
}

fn sum(message: &[u8]) -> Vec<u8> {
    let sum = message
        .iter()
        .fold(0u32, |sum, &byte| sum.rotate_left(5) ^ u32::from(byte));
    [&sum.to_be_bytes()[..], &[KEY]].concat()
}

fn flip(message: &[u8]) -> Vec<u8> {
    message.iter().map(|byte| byte ^ 0xff).collect()
}

fn token(message: &[u8]) -> Vec<u8> {
    [&[KEY], &flip(message)[..]].concat()
}

impl Protection for Simple {
    fn mic(&self, message: &[&[u8]]) -> Option<Vec<u8>> {
        Some(sum(&message.concat()))
    }

    fn verify(&self, message: &[u8], mic: &[u8]) -> Option<()> {
        (sum(message) == mic).then_some(())
    }

    fn wrap_overhead(&self) -> usize {
        1
    }

    fn wrap(&self, message: &[&[u8]], token: &mut [u8]) -> Option<()> {
        token.copy_from_slice(&self::token(&message.concat()));
        Some(())
    }

    fn unwrap(&self, token: &mut [u8]) -> Option<Range<usize>> {
        let message = flip(token.strip_prefix(&[KEY])?);
        token[1..].copy_from_slice(&message);
        Some(1..token.len())
    }
}

fn server(lifetime: Option<Duration>, faults: &[&str]) -> Gss {
    Gss::new(
        Box::new(Simple),
        Settings {
            principals: vec!["alice=1001:1002".parse().unwrap()],
            lifetime,
            faults: faults.iter().map(|fault| fault.parse().unwrap()).collect(),
        },
    )
}

/// What came of a call.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    /// It may be executed: by this uid, flavor, and with these arguments.
    In(u32, u32, Vec<u8>),
    Reply(Vec<u8>),
    Denied(AuthStat),
    Hangup,
    BadChunks,
}

/// The bytes of a call of GETATTR, or of NULL where that is meant.
fn call(credential: Credential<'_>, body: &[u8]) -> Vec<u8> {
    let header = SignedHeader {
        xid: 0xabcd,
        program: 100_003,
        version: 3,
        procedure: u32::from(credential.procedure == Procedure::Data),
        credential,
    };
    let mut out = Encoder::new(header.to_xdr());
    let mic = sum(out.as_slice());
    match credential.procedure {
        Procedure::Init => Auth::None.encode(&mut out),
        _ => rpcsec_gss::verifier(&mic).encode(&mut out),
    }
    [out.as_slice(), body].concat()
}

fn send_with(gss: &Gss, bytes: &[u8], results: &[u8]) -> (Came, Option<Vec<u8>>) {
    let mapping = Mapping {
        privileged: false,
        root_squash: false,
        anonymous: (65534, 65534),
    };
    let mut from = Decoder::new(bytes);
    let call = Call::parse(&mut from).unwrap();
    let mut plain = Vec::new();
    let signed = &bytes[..call.signed_len()];
    match gss.open(&mapping, &call, signed, from, false, &mut plain) {
        Ok(entered) => {
            let mut reply = answer(call.xid, Auth::None, None);
            reply.head.extend_from_slice(results);
            let sealed = entered.seal.close(reply, &|_| None).unwrap().head[HEADROOM..].to_vec();
            let came = Came::In(
                entered.who.uid,
                entered.flavor,
                entered.from.rest().to_vec(),
            );
            (came, Some(sealed))
        }
        Err(Closed::Reply(reply)) => (Came::Reply(reply.head[HEADROOM..].to_vec()), None),
        Err(Closed::Denied(status)) => (Came::Denied(status), None),
        Err(Closed::Hangup) => (Came::Hangup, None),
        Err(Closed::BadChunks) => (Came::BadChunks, None),
    }
}

fn send(gss: &Gss, bytes: &[u8]) -> Came {
    send_with(gss, bytes, b"").0
}

fn establish(gss: &Gss) -> Vec<u8> {
    let args = InitArgs {
        token: Opaque(b"alice"),
    };
    let Came::Reply(reply) = send(gss, &call(Credential::INIT, &args.to_xdr())) else {
        panic!("no context");
    };
    let mut from = Decoder::new(&reply);
    let header = rpc::Reply::decode(&mut from).unwrap();
    // The verifier is the MIC of the window.
    let window = sum(&[0, 0, 0, 128]);
    let body = rpc::ReplyBody::Accepted(rpcsec_gss::verifier(&window), rpc::Accepted::Success);
    assert_eq!(header.body, body);
    let results = InitRes::from_xdr(from.rest()).unwrap();
    assert_eq!((results.major, results.window), (0, 128));
    assert_eq!(results.token.0, b"welcome");
    results.handle.0.to_vec()
}

fn plain(sequence: u32, handle: &[u8]) -> Vec<u8> {
    call(Credential::data(sequence, Service::None, handle), b"args")
}

fn came_in(flavor: u32) -> Came {
    Came::In(1001, flavor, b"args".to_vec())
}

#[test]
fn a_refused_token_is_told_by_the_results() {
    let gss = server(None, &[]);
    let args = InitArgs {
        token: Opaque(b"eve"),
    };
    let Came::Reply(reply) = send(&gss, &call(Credential::INIT, &args.to_xdr())) else {
        panic!("no reply");
    };
    let mut from = Decoder::new(&reply);
    assert!(rpc::Reply::decode(&mut from).unwrap().is_success());
    let results = InitRes::from_xdr(from.rest()).unwrap();
    assert_eq!((results.major, results.minor), (9 << 16, 5));
    assert!(results.handle.0.is_empty());
}

#[test]
fn the_window_is_that_of_linux() {
    let gss = server(None, &[]);
    let handle = establish(&gss);
    for sequence in [0, 1, 1000, 1000 - 127, 0x8000_0000] {
        let bytes = plain(sequence, &handle);
        assert_eq!(send(&gss, &bytes), came_in(390_003), "{sequence}");
        assert_eq!(send(&gss, &bytes), Came::Hangup, "{sequence} again");
    }
    assert_eq!(send(&gss, &plain(1001, &handle)), Came::Hangup);
    let above = send(&gss, &plain(0x8000_0001, &handle));
    assert_eq!(above, Came::Denied(AuthStat::GssCtxProblem));
}

#[test]
fn what_is_not_of_the_context_is_refused() {
    let gss = server(None, &[]);
    let handle = establish(&gss);
    let problem = Came::Denied(AuthStat::GssCredProblem);
    assert_eq!(send(&gss, &plain(1, b"unknown.")), problem);
    let mut changed = plain(1, &handle);
    changed[3] ^= 1;
    assert_eq!(send(&gss, &changed), problem, "another XID than was signed");
    // None of them has used the number.
    assert_eq!(send(&gss, &plain(1, &handle)), came_in(390_003));
    let destroyed = send(&gss, &call(Credential::destroy(2, &handle), b""));
    let Came::Reply(reply) = destroyed else {
        panic!("{destroyed:?}");
    };
    // XID, REPLY, accepted, the MIC of the sequence number, success, and no results.
    let mic = rpcsec_gss::verifier(&sum(&[0, 0, 0, 2])).to_xdr();
    let head = [0, 0, 0xab, 0xcd, 0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(reply, [&head[..], &mic, &[0; 4]].concat());
    assert_eq!(send(&gss, &plain(3, &handle)), problem);
}

#[test]
fn an_ended_context_is_unknown() {
    let gss = server(Some(Duration::ZERO), &[]);
    let handle = establish(&gss);
    let problem = Came::Denied(AuthStat::GssCredProblem);
    assert_eq!(send(&gss, &plain(1, &handle)), problem);
}

fn integrity(sequence: u32, inner: u32, handle: &[u8]) -> Vec<u8> {
    let data = [&inner.to_be_bytes()[..], b"args"].concat();
    let body = IntegrityBody {
        data: Opaque(&data),
        mic: Opaque(&sum(&data)),
    };
    let credential = Credential::data(sequence, Service::Integrity, handle);
    call(credential, &body.to_xdr())
}

fn privacy(sequence: u32, inner: u32, handle: &[u8]) -> Vec<u8> {
    let data = [&inner.to_be_bytes()[..], b"args"].concat();
    let body = PrivacyBody {
        wrapped: Opaque(&token(&data)),
    };
    let credential = Credential::data(sequence, Service::Privacy, handle);
    call(credential, &body.to_xdr())
}

#[test]
fn bodies_are_opened_and_replies_sealed() {
    let gss = server(None, &[]);
    let handle = establish(&gss);
    let head = |sequence: u32| {
        let mic = rpcsec_gss::verifier(&sum(&sequence.to_be_bytes())).to_xdr();
        let head = [0, 0, 0xab, 0xcd, 0, 0, 0, 1, 0, 0, 0, 0];
        [&head[..], &mic, &[0; 4]].concat()
    };
    let (came, reply) = send_with(&gss, &plain(1, &handle), b"results.");
    assert_eq!(came, came_in(390_003));
    assert_eq!(reply.unwrap(), [&head(1)[..], b"results."].concat());

    let (came, reply) = send_with(&gss, &integrity(2, 2, &handle), b"results.");
    assert_eq!(came, came_in(390_004));
    let data = b"\0\0\0\x02results.";
    // Its length, the sequence number and the results, the length of the MIC, the MIC and padding.
    let body = [b"\0\0\0\x0c", &data[..], b"\0\0\0\x05", &sum(data), &[0; 3]].concat();
    assert_eq!(reply.unwrap(), [head(2), body].concat());

    let (came, reply) = send_with(&gss, &privacy(3, 3, &handle), b"results.");
    assert_eq!(came, came_in(390_005));
    let token = token(b"\0\0\0\x03results.");
    let body = [b"\0\0\0\x0d", &token[..], &[0; 3]].concat();
    assert_eq!(reply.unwrap(), [head(3), body].concat());
}

#[test]
fn a_wrong_body_is_refused_and_the_next_call_works() {
    let gss = server(None, &[]);
    let handle = establish(&gss);
    let bad = Came::Denied(AuthStat::BadCred);
    assert_eq!(send(&gss, &integrity(1, 2, &handle)), bad);
    assert_eq!(send(&gss, &privacy(2, 3, &handle)), bad);
    for (sequence, mut bytes) in [(3, integrity(3, 3, &handle)), (4, privacy(4, 4, &handle))] {
        // A byte of the arguments.
        let at = match sequence {
            3 => bytes.len() - 16,
            _ => bytes.len() - 12,
        };
        bytes[at] ^= 1;
        assert_eq!(send(&gss, &bytes), bad, "{sequence}");
    }
    assert_eq!(send(&gss, &integrity(5, 5, &handle)), came_in(390_004));
    // Service 0 and 9.
    for service in [0u8, 9] {
        let mut bytes = plain(6, &handle);
        bytes[47] = service;
        assert_eq!(send(&gss, &bytes), bad);
    }
}

#[test]
fn faults_come_on_command() {
    let denied = |fault: &str| {
        let gss = server(None, &[fault]);
        let handle = establish(&gss);
        let came = send(&gss, &plain(1, &handle));
        // Once.
        let after = send(&gss, &plain(2, &handle));
        (came, after)
    };
    let fine = || came_in(390_003);
    let refused = |status| Came::Denied(status);
    let problem = || refused(AuthStat::GssCredProblem);
    assert_eq!(denied("FORGET:1"), (problem(), problem()));
    assert_eq!(denied("CREDPROBLEM:1"), (problem(), fine()));
    let context = refused(AuthStat::GssCtxProblem);
    assert_eq!(denied("CTXPROBLEM:1"), (context, fine()));
    let bad = refused(AuthStat::BadCred);
    assert_eq!(denied("BADCRED:1"), (bad, fine()));
    assert_eq!(denied("WINDOW:1"), (Came::Hangup, fine()));
    assert_eq!(denied("CREDPROBLEM:1/2"), (fine(), problem()));
}

#[test]
fn a_spoilt_reply_differs_in_one_bit() {
    for (fault, service) in [("VERIFIER:1", 2), ("BODY:1", 2), ("BODY:1", 3)] {
        let gss = server(None, &[fault]);
        let handle = establish(&gss);
        let of = |sequence| match service {
            2 => integrity(sequence, sequence, &handle),
            _ => privacy(sequence, sequence, &handle),
        };
        let spoilt = send_with(&gss, &of(1), b"results.").1.unwrap();
        let right = {
            let gss = server(None, &[]);
            let handle = establish(&gss);
            let bytes = match service {
                2 => integrity(1, 1, &handle),
                _ => privacy(1, 1, &handle),
            };
            send_with(&gss, &bytes, b"results.").1.unwrap()
        };
        let differ = spoilt.iter().zip(&right).filter(|(a, b)| a != b).count();
        assert_eq!((differ, spoilt.len()), (1, right.len()), "{fault}");
    }
}
