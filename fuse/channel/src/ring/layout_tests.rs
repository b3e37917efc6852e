use super::*;
use crate::Request;
use proptest::prelude::*;

/// The header buffer of a LOOKUP of "name" in node 1 from a little-endian kernel. This operation
/// has no first argument, and its name is the payload.
#[rustfmt::skip]
fn lookup() -> [u8; HEADERS] {
    let mut bytes = [0; HEADERS];
    bytes[..40].copy_from_slice(&[
        45, 0, 0, 0,                1, 0, 0, 0,
        0x22, 0x11, 0, 0, 0, 0, 0, 0,
        1, 0, 0, 0, 0, 0, 0, 0,
        0xe8, 3, 0, 0,              100, 0, 0, 0,
        0x92, 0x10, 0, 0,           0, 0, 0, 0,
    ]);
    bytes[256..288].copy_from_slice(&[
        0, 0, 0, 0, 0, 0, 0, 0,
        0x22, 0x11, 0, 0, 0, 0, 0, 0,
        5, 0, 0, 0,                 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0,
    ]);
    bytes
}

#[test]
#[cfg(target_endian = "little")]
fn a_request_whose_arguments_are_all_payload() {
    let headers = lookup();
    let expected = Arrived {
        commit_id: 0x1122,
        unique: 0x1122,
        first_argument: Some(0),
        payload: 5,
    };
    assert_eq!(arrived(&headers), expected);
    let (header, first) = parts(&headers, 0);
    let message = [header, first, b"name\0"].concat();
    assert_eq!(message.len(), 45);
    assert!(Request::parse(&message).is_ok());
}

#[test]
#[cfg(target_endian = "little")]
fn a_request_with_a_first_argument_and_no_payload() {
    // READ: struct fuse_read_in has 40 bytes.
    let mut headers = lookup();
    headers[0] = 80;
    headers[4] = 15;
    headers[128 + 8] = 7;
    headers[128 + 16..128 + 20].copy_from_slice(&4096u32.to_le_bytes());
    headers[272] = 0;
    let found = arrived(&headers);
    assert_eq!((found.first_argument, found.payload), (Some(40), 0));
    let (header, first) = parts(&headers, 40);
    let message = [header, first].concat();
    let request = Request::parse(&message).unwrap();
    assert!(matches!(
        request.operation,
        crate::Operation::Read {
            offset: 7,
            size: 4096,
            ..
        }
    ));
}

#[test]
#[cfg(target_endian = "little")]
fn a_reply_is_sixteen_bytes_and_the_length_of_its_payload() {
    let mut headers = lookup();
    put_reply(&mut headers, 0x1122, 0, 128);
    #[rustfmt::skip]
    assert_eq!(headers[..16], [
        144, 0, 0, 0,   0, 0, 0, 0,
        0x22, 0x11, 0, 0, 0, 0, 0, 0,
    ]);
    #[rustfmt::skip]
    assert_eq!(headers[256..288], [
        0, 0, 0, 0, 0, 0, 0, 0,
        0x22, 0x11, 0, 0, 0, 0, 0, 0,
        128, 0, 0, 0,   0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0,
    ]);
    put_reply(&mut headers, 0x1122, -2, 0);
    assert_eq!(headers[..8], [16, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff]);
    assert_eq!(headers[272..276], [0; 4]);
}

#[test]
#[cfg(target_endian = "little")]
fn a_command_names_the_request_and_the_queue() {
    let bytes = command(0x0102_0304_0506_0708, 0x0a0b);
    assert_eq!(bytes[..8], [0; 8]);
    assert_eq!(bytes[8..16], [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(bytes[16..24], [0x0b, 0x0a, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[24..], [0; 56]);
    assert_eq!((REGISTER, COMMIT_AND_FETCH), (1, 2));
}

#[test]
fn lengths_that_contradict_each_other_give_no_first_argument() {
    let of = |total: u32, payload: u32| {
        let mut headers = [0; HEADERS];
        headers[..4].copy_from_slice(&total.to_ne_bytes());
        headers[272..276].copy_from_slice(&payload.to_ne_bytes());
        arrived(&headers).first_argument
    };
    assert_eq!(of(39, 0), None);
    assert_eq!(of(44, 5), None);
    assert_eq!(of(40 + 129, 0), None);
    assert_eq!(of(40 + 128, 0), Some(128));
    assert_eq!(of(u32::MAX, 0), None);
    assert_eq!(of(0, u32::MAX), None);
}

proptest! {
    #[test]
    fn any_header_buffer_is_decoded(bytes in proptest::collection::vec(any::<u8>(), HEADERS)) {
        let headers: [u8; HEADERS] = bytes.try_into().unwrap();
        let found = arrived(&headers);
        if let Some(len) = found.first_argument {
            let (header, first) = parts(&headers, len);
            prop_assert_eq!((header.len(), first.len()), (IN_HEADER, len));
        }
    }

    #[test]
    fn a_reply_leaves_the_commit_id(unique: u64, error in -511i32..=0, payload in 0u32..=1 << 20) {
        let mut headers = lookup();
        let before = arrived(&headers);
        put_reply(&mut headers, unique, error, payload);
        let after = arrived(&headers);
        prop_assert_eq!(after.commit_id, before.commit_id);
        prop_assert_eq!((after.unique, after.payload), (unique, payload as usize));
    }
}
