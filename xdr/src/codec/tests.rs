use super::*;

/// The file of RFC 4506 section 7: a name, the kind EXEC = 2 with its interpretor, an owner and
/// data.
#[test]
fn example_of_rfc_4506() {
    let bytes = [
        0x00, 0x00, 0x00, 0x09, 0x73, 0x69, 0x6c, 0x6c, 0x79, 0x70, 0x72, 0x6f, 0x67, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x04, 0x6c, 0x69, 0x73, 0x70, 0x00, 0x00,
        0x00, 0x04, 0x6a, 0x6f, 0x68, 0x6e, 0x00, 0x00, 0x00, 0x06, 0x28, 0x71, 0x75, 0x69, 0x74,
        0x29, 0x00, 0x00,
    ];
    let mut to = Encoder::with_capacity(bytes.len());
    to.opaque(b"sillyprog");
    to.u32(2);
    to.opaque(b"lisp");
    to.opaque(b"john");
    to.opaque(b"(quit)");
    assert_eq!(to.as_slice(), bytes);
    let mut from = Decoder::new(&bytes);
    assert_eq!(from.opaque("filename", 255), Ok(&b"sillyprog"[..]));
    assert_eq!(from.position(), 16);
    assert_eq!(from.u32(), Ok(2));
    assert_eq!(from.opaque("interpretor", 255), Ok(&b"lisp"[..]));
    assert_eq!(from.opaque("owner", 32), Ok(&b"john"[..]));
    assert_eq!(from.opaque("data", 65535), Ok(&b"(quit)"[..]));
    assert_eq!(from.finish(), Ok(()));
}

#[test]
fn numbers_are_big_endian() {
    assert_eq!(0x0102_0304u32.to_xdr(), [1, 2, 3, 4]);
    assert_eq!(0x0102_0304_0506_0708u64.to_xdr(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(u64::from_xdr(&[0xff; 8]), Ok(u64::MAX));
    assert_eq!(true.to_xdr(), [0, 0, 0, 1]);
    assert_eq!(Some(7u32).to_xdr(), [0, 0, 0, 1, 0, 0, 0, 7]);
    assert_eq!(None::<u32>.to_xdr(), [0; 4]);
}

#[test]
fn errors_say_what_is_wrong() {
    assert_eq!(
        u64::from_xdr(&[0; 6]),
        Err(DecodeError::Truncated { at: 0, wanted: 2 })
    );
    assert_eq!(u32::from_xdr(&[0; 6]), Err(DecodeError::Trailing(2)));
    assert!(matches!(
        Text::<3>::from_xdr(b"\0\0\0\x04long"),
        Err(DecodeError::TooLong {
            length: 4,
            bound: 3,
            ..
        })
    ));
    // The padding is part of the item,
    assert!(Text::<9>::from_xdr(b"\0\0\0\x01a\0\0").is_err());
    // and its value is ignored (RFC 4506 section 3 requires senders to use zeroes).
    assert_eq!(Text::<9>::from_xdr(b"\0\0\0\x01abcd"), Ok(Text(&b"a"[..])));
}

#[test]
fn bytes_placed_for_nothing_are_an_error() {
    let bytes = 0u32.to_xdr();
    for (placed, fine) in [(0, true), (1, false)] {
        let mut from = Decoder::with_placed(&bytes, placed);
        from.u32().unwrap();
        assert_eq!(from.finish().is_ok(), fine);
    }
}

#[test]
fn only_the_first_payload_is_placed() {
    let mut to = Encoder::new(vec![9]);
    to.payload(Payload::Placed(6));
    assert_eq!(to.placed_at(), Some(5));
    to.payload(Payload::Inline(b"ab"));
    let bytes = to.into_vec();
    let mut from = Decoder::with_placed(&bytes[1..], 6);
    assert_eq!(from.payload("data", 6), Ok(Payload::Placed(6)));
    assert_eq!(from.payload("data", 6), Ok(Payload::Inline(b"ab")));
    assert_eq!(from.finish(), Ok(()));
    let mut from = Decoder::with_placed(&bytes[1..], 6);
    assert!(from.payload("data", 5).is_err());
}

#[test]
fn a_chunk_may_hold_up_to_three_bytes_more_than_its_item_and_never_fewer() {
    let mut to = Encoder::new(Vec::new());
    to.payload(Payload::Placed(6));
    let bytes = to.into_vec();
    for placed in 0..20 {
        let item = Decoder::with_placed(&bytes, placed).payload("data", 100);
        match placed {
            6..=9 => assert_eq!(item, Ok(Payload::Placed(6))),
            _ => assert!(item.is_err(), "{placed}"),
        }
    }
}

#[test]
fn what_endangers_nothing_is_taken() {
    use crate::nfs3::{FileType, Name};
    assert_eq!(bool::from_xdr(&[0, 0, 0, 2]), Ok(true));
    for kind in [0u32, 8, 0x8000, u32::MAX] {
        assert_eq!(
            FileType::from_xdr(&kind.to_be_bytes()),
            Ok(FileType::Unknown)
        );
    }
    let name = [b'x'; 300];
    let taken = Name(&name).to_xdr();
    let taken = Name::from_xdr(&taken).unwrap();
    assert_eq!(taken.0, name);
    assert!(!taken.is_component());
}

#[test]
fn a_payload_has_the_length_of_its_bytes_wherever_they_are() {
    for (payload, len) in [
        (Payload::Inline(b"abc"), 3),
        (Payload::Placed(7), 7),
        (Payload::Inline(b""), 0),
        (Payload::Placed(0), 0),
    ] {
        assert_eq!((payload.len(), payload.is_empty()), (len, len == 0));
    }
    let (empty, other) = (Encoder::default(), Encoder::new(vec![9]));
    assert!(empty.is_empty() && !other.is_empty());
    assert_eq!((empty.len(), other.len()), (0, 1));
}

#[test]
fn a_name_with_a_slash_or_a_zero_byte_is_no_component() {
    use crate::nfs3::{NAME_MAX, Name};
    let longest = vec![b'x'; NAME_MAX];
    for name in [&b"a"[..], b".", b"..", b"\xff\x01", &longest] {
        assert!(Name(name).is_component(), "{name:?}");
    }
    let zeros = [0; 2];
    for name in [&b""[..], b"/", b"a/b", b"a/b/c", b"a//b", b"a\0b", &zeros] {
        assert!(!Name(name).is_component(), "{name:?}");
    }
}
