//! The bytes were seen between Linux's client and server (6.12), with aes256-cts-hmac-sha1-96.

use super::*;
use crate::rpc::{Accepted, Call, Reply, ReplyBody};

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}

const HANDLE: &[u8] = &[0xde, 0xad, 0, 1];

/// A MIC of 28 bytes: sent by the initiator with the acceptor's subkey, sequence number 0x2d7e0e24.
fn mic() -> Vec<u8> {
    words(&[
        0x0404_04ff,
        0xffff_ffff,
        0,
        0x2d7e_0e24,
        0x6717_0e3f,
        0x58fb_4d5c,
        0x3dfd_4264,
    ])
}

fn getattr(service: Service) -> SignedHeader<'static> {
    SignedHeader {
        xid: 0xabcd,
        program: 100_003,
        version: 3,
        procedure: 1,
        credential: Credential::data(7, service, HANDLE),
    }
}

/// A file handle of eight bytes.
fn arguments() -> Vec<u8> {
    words(&[8, 0x0100_0100, 0x0100_0000])
}

#[test]
fn init_literal() {
    let header = SignedHeader {
        xid: 0xabcd,
        program: 100_003,
        version: 3,
        procedure: 0,
        credential: Credential::INIT,
    };
    let expected = words(&[0xabcd, 0, 2, 100_003, 3, 0, 6, 20, 1, 1, 0, 1, 0]);
    assert_eq!(header.to_xdr(), expected);
    assert_eq!(Credential::from_xdr(&expected[32..]), Ok(Credential::INIT));
    let args = InitArgs {
        token: Opaque(b"token"),
    };
    assert_eq!(args.to_xdr(), b"\0\0\0\x05token\0\0\0");

    let mut bytes = words(&[4, 0x0100_0000, 0, 0, 128, 3]);
    bytes.extend(b"tok\0");
    let res = InitRes {
        handle: Opaque(&[1, 0, 0, 0]),
        major: GSS_S_COMPLETE,
        minor: 0,
        window: 128,
        token: Opaque(b"tok"),
    };
    assert_eq!(res.to_xdr(), bytes);
    assert_eq!(InitRes::from_xdr(&bytes), Ok(res));
}

#[test]
fn a_call_literal() {
    let header = getattr(Service::None);
    let mut expected = words(&[0xabcd, 0, 2, 100_003, 3, 1, 6, 24, 1, 0, 7, 1, 4]);
    expected.extend(HANDLE);
    assert_eq!(header.to_xdr(), expected);
    assert_eq!((expected.len(), header.encoded_len()), (56, 56));

    let (signed, mic) = (expected.len(), mic());
    expected.extend(words(&[6, 28]));
    expected.extend(&mic);
    expected.extend(arguments());
    assert_eq!(expected.len(), 104, "as seen");
    let mut to = Encoder::default();
    header.encode(&mut to);
    verifier(&mic).encode(&mut to);
    to.opaque_fixed(&arguments());
    assert_eq!(to.as_slice(), expected);

    let mut from = Decoder::new(&expected);
    let call = Call::parse(&mut from).unwrap();
    assert_eq!(call.signed_len(), signed);
    assert_eq!(from.rest(), arguments());
    let credential = Credential::of(&call.credential);
    assert_eq!(credential, Some(Ok(header.credential)));
    assert_eq!(mic_of(&call.verifier), Some(&mic[..]));
}

#[test]
fn a_reply_literal() {
    let mic = mic();
    let reply = Reply {
        xid: 5,
        body: ReplyBody::Accepted(verifier(&mic), Accepted::Success),
    };
    let bytes = [words(&[5, 1, 0, 6, 28]), mic.clone(), words(&[0])].concat();
    assert_eq!(reply.to_xdr(), bytes);
    assert_eq!(Reply::from_xdr(&bytes), Ok(reply));
}

#[test]
fn integrity_literal() {
    let (mic, arguments) = (mic(), arguments());
    let data = [words(&[4]), arguments.clone()].concat();
    let body = IntegrityBody {
        data: Opaque(&data),
        mic: Opaque(&mic),
    };
    let expected = [
        words(&[0x10, 4, 8, 0x0100_0100, 0x0100_0000, 0x1c]),
        mic.clone(),
    ]
    .concat();
    assert_eq!(body.to_xdr(), expected);
    assert_eq!(IntegrityBody::from_xdr(&expected), Ok(body));
    assert_eq!(expected[..8], integrity_head(4, arguments.len()));
    assert_eq!(split(body.data.0), Ok((4, &arguments[..])));
    assert!(split(&[0, 0, 4]).is_err());
}

#[test]
fn privacy_literal() {
    let wrapped = [words(&[0x0504_06ff, 0, 0, 0x2d7e_0e2c]), vec![0x5a; 60]].concat();
    let body = PrivacyBody {
        wrapped: Opaque(&wrapped),
    };
    let expected = [words(&[0x4c]), wrapped.clone()].concat();
    assert_eq!(body.to_xdr(), expected);
    assert_eq!(PrivacyBody::from_xdr(&expected), Ok(body));
}

/// GETATTR of a file handle of eight bytes, as seen with each encryption type.
#[test]
fn lengths_are_those_seen() {
    for (mic, wrap, none, integrity, privacy) in [
        (28, 60, 104, 144, 172),
        (32, 64, 108, 152, 180),
        (40, 72, 116, 168, 196),
    ] {
        let head = getattr(Service::None).encoded_len() + verifier_len(mic);
        let args = arguments().len();
        assert_eq!(head + args, none);
        assert_eq!(head + integrity_len(args, mic), integrity);
        assert_eq!(head + privacy_len(args, wrap), privacy);
    }
}

#[test]
fn undefined_values() {
    let credential = |version: u32, procedure, service| {
        let bytes = words(&[version, procedure, 1, service, 0]);
        Credential::from_xdr(&bytes).map(|credential| credential.service)
    };
    assert_eq!(credential(1, 0, 3), Ok(Service::Privacy));
    assert!(credential(2, 0, 1).is_err(), "version 2");
    assert!(credential(1, 4, 1).is_err(), "a procedure of version 2");
    for service in [0, 4, 9] {
        assert!(credential(1, 0, service).is_err());
        assert!(credential(1, 3, service).is_err());
        // Ignored while a context is established.
        assert_eq!(credential(1, 1, service), Ok(Service::None));
        assert_eq!(credential(1, 2, service), Ok(Service::None));
    }
    assert_eq!(Credential::of(&Auth::None), None);
    assert_eq!(mic_of(&Auth::None), None);
}

#[test]
fn pseudo_flavors() {
    for service in Service::ALL {
        let flavor = service.pseudo_flavor();
        assert_eq!(Service::of_pseudo_flavor(flavor), Some(*service));
    }
    assert_eq!(Service::Privacy.pseudo_flavor(), 390_005);
    assert_eq!(Service::of_pseudo_flavor(flavor::SYS), None);
}

#[test]
fn the_longest_credential_fits_a_header() {
    let handle = [7; MAX_HANDLE_LEN];
    let mut to = Encoder::default();
    Credential::data(MAX_SEQUENCE - 1, Service::Privacy, &handle).encode_auth(&mut to);
    let auth = Auth::from_xdr(to.as_slice()).unwrap();
    assert_eq!(auth.encoded_len(), 8 + MAX_AUTH_LEN);
    assert!(matches!(Credential::of(&auth), Some(Ok(_))));
}

#[test]
fn debug_output_has_no_tokens() {
    let args = InitArgs {
        token: Opaque(b"secret"),
    };
    assert_eq!(format!("{args:?}"), "InitArgs { token: 6 B }");
}

#[test]
fn another_flavor_has_neither_a_credential_nor_a_mic() {
    let body = &Credential::INIT.to_xdr()[..];
    let of = |flavor| Auth::Other { flavor, body };
    let ours = of(flavor::RPCSEC_GSS);
    assert_eq!(Credential::of(&ours), Some(Ok(Credential::INIT)));
    assert_eq!(mic_of(&ours), Some(body));
    for auth in [of(3), of(flavor::RPCSEC_GSS + 1), Auth::None] {
        assert_eq!((Credential::of(&auth), mic_of(&auth)), (None, None));
    }
}
