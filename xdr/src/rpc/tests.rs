use super::*;
use smallvec::smallvec;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}

fn sys() -> AuthSys<'static> {
    AuthSys {
        stamp: 0x11,
        machine: b"client",
        uid: 1000,
        gid: 100,
        groups: smallvec![100, 27],
    }
}

/// The fields of RFC 5531 section 9 (rpc_msg, call_body) and appendix A in order: "client"
/// takes six bytes and two of padding, the whole body 4 + 4 + 8 + 4 + 4 + 4 + 8.
fn call_bytes() -> Vec<u8> {
    let mut bytes = words(&[0xabcd, 0, 2, 100_003, 3, 6, 1, 36, 0x11, 6]);
    bytes.extend(b"client\0\0");
    bytes.extend(words(&[1000, 100, 2, 100, 27, 0, 0]));
    bytes
}

fn call() -> Call<'static> {
    Call {
        xid: 0xabcd,
        program: 100_003,
        version: 3,
        procedure: 6,
        credential: Auth::Sys(sys()),
        verifier: Auth::None,
    }
}

#[test]
fn call_literal() {
    assert_eq!(call().to_xdr(), call_bytes());
    assert_eq!(call().encoded_len(), call_bytes().len());
    assert_eq!(Call::from_xdr(&call_bytes()), Ok(call()));
}

#[test]
fn the_decoder_is_left_at_the_arguments() {
    let mut bytes = call_bytes();
    bytes.extend(b"args");
    let mut from = Decoder::new(&bytes);
    Call::parse(&mut from).unwrap();
    assert_eq!(from.rest(), b"args");

    let mut bytes = Reply::accepted(1, Accepted::Success).to_xdr();
    assert_eq!(bytes.len(), REPLY_LEN);
    bytes.extend(b"results.");
    let mut from = Decoder::new(&bytes);
    assert!(Reply::decode(&mut from).unwrap().is_success());
    assert_eq!(from.rest(), b"results.");
}

#[test]
fn a_template_makes_the_same_bytes() {
    let template = CallTemplate::new(100_003, 3, Auth::Sys(sys()));
    let mut to = Encoder::default();
    template.encode(0xabcd, 6, &mut to);
    assert_eq!(to.as_slice(), call_bytes());
    assert_eq!(template.encoded_len(), call_bytes().len());
}

#[test]
fn every_reply_literal() {
    let none = [0, 0];
    let accepted = |rest: &[u32]| words(&[&[5, 1, 0][..], &none, rest].concat());
    let cases = [
        (Reply::accepted(5, Accepted::Success), accepted(&[0])),
        (Reply::accepted(5, Accepted::ProgUnavail), accepted(&[1])),
        (
            Reply::accepted(5, Accepted::ProgMismatch { low: 3, high: 4 }),
            accepted(&[2, 3, 4]),
        ),
        (Reply::accepted(5, Accepted::ProcUnavail), accepted(&[3])),
        (Reply::accepted(5, Accepted::GarbageArgs), accepted(&[4])),
        (Reply::accepted(5, Accepted::SystemErr), accepted(&[5])),
        (
            Reply::denied(5, Denial::RpcMismatch { low: 2, high: 2 }),
            words(&[5, 1, 1, 0, 2, 2]),
        ),
        (
            Reply::denied(5, Denial::AuthError(AuthStat::TooWeak)),
            words(&[5, 1, 1, 1, 5]),
        ),
    ];
    for (reply, bytes) in cases {
        assert_eq!(reply.to_xdr(), bytes);
        assert_eq!(reply.encoded_len(), bytes.len());
        assert_eq!(Reply::from_xdr(&bytes), Ok(reply));
    }
}

#[test]
fn another_rpc_version_can_be_answered() {
    // The fields after the version may differ, so they are not read.
    let bytes = words(&[5, 0, 3]);
    let error = CallError::RpcVersion { xid: 5, version: 3 };
    assert_eq!(Call::parse(&mut Decoder::new(&bytes)), Err(error));
    assert!(Call::from_xdr(&bytes).is_err());
}

#[test]
fn broken_auth_sys_is_kept_for_an_answer() {
    let bytes = words(&[5, 0, 2, 1, 1, 0, 1, 4, 9, 0, 0]);
    let call = Call::from_xdr(&bytes).unwrap();
    let expected = Auth::Other {
        flavor: flavor::SYS,
        body: &[0, 0, 0, 9],
    };
    assert_eq!(call.credential, expected);
    // 17 groups are too many.
    let mut body = words(&[0, 0, 0, 0, 17]);
    body.resize(body.len() + 17 * 4, 0);
    assert!(AuthSys::from_xdr(&body).is_err());
}

#[test]
fn what_does_not_fit_auth_sys_is_left_out() {
    let many = AuthSys {
        machine: &[b'm'; 300],
        groups: (0..40).collect(),
        ..sys()
    };
    let auth = Auth::Sys(many);
    let bytes = auth.to_xdr();
    assert_eq!(bytes.len(), auth.encoded_len());
    assert!(bytes.len() <= 8 + MAX_AUTH_LEN);
    let Ok(Auth::Sys(taken)) = Auth::from_xdr(&bytes) else {
        panic!("not AUTH_SYS");
    };
    assert_eq!(taken.machine, &[b'm'; 255]);
    assert_eq!(taken.groups[..], (0..16).collect::<Vec<_>>());
}

#[test]
fn a_long_verifier_is_refused() {
    let mut bytes = words(&[5, 1, 0, 2, 404]);
    bytes.resize(bytes.len() + 408, 0);
    assert!(matches!(
        Reply::from_xdr(&bytes),
        Err(DecodeError::TooLong { length: 404, .. })
    ));
}

#[test]
fn maxima_are_reached() {
    let body = [7; MAX_AUTH_LEN];
    let auth = Auth::Other {
        flavor: flavor::SHORT,
        body: &body,
    };
    let reply = Reply {
        xid: 1,
        body: ReplyBody::Accepted(auth.clone(), Accepted::ProgMismatch { low: 1, high: 2 }),
    };
    assert_eq!(reply.to_xdr().len(), MAX_REPLY_LEN);
    let call = Call {
        credential: auth.clone(),
        verifier: auth,
        ..call()
    };
    assert_eq!(call.to_xdr().len(), MAX_CALL_LEN);
}

#[test]
fn a_call_is_no_reply_and_a_reply_no_call() {
    let reply = Reply::accepted(5, Accepted::Success);
    assert!(reply.is_success());
    assert!(!Reply::accepted(5, Accepted::SystemErr).is_success());
    let denial = Denial::AuthError(AuthStat::TooWeak);
    assert!(!Reply::denied(5, denial).is_success());
    let mut bytes = reply.to_xdr();
    assert_eq!(Reply::from_xdr(&bytes), Ok(reply));
    bytes[7] = 0;
    assert!(Reply::from_xdr(&bytes).is_err());
    let mut bytes = call_bytes();
    assert!(Call::parse(&mut Decoder::new(&bytes)).is_ok());
    bytes[7] = 1;
    assert!(Call::parse(&mut Decoder::new(&bytes)).is_err());
}
