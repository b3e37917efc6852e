use super::*;
use std::ffi::OsStr;

/// An encoder of requests, as the kernel sends them.
struct Message(Vec<u8>);

impl Message {
    /// The request 0x0102030405060708 for node 3 from user 1000, group 100, thread 4242.
    fn new(code: u32) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(code.to_ne_bytes());
        bytes.extend(0x0102_0304_0506_0708u64.to_ne_bytes());
        bytes.extend(3u64.to_ne_bytes());
        for number in [1000u32, 100, 4242, 0] {
            bytes.extend(number.to_ne_bytes());
        }
        Message(bytes)
    }

    fn d(mut self, words: &[u32]) -> Self {
        words.iter().for_each(|w| self.0.extend(w.to_ne_bytes()));
        self
    }

    fn q(mut self, numbers: &[u64]) -> Self {
        numbers.iter().for_each(|n| self.0.extend(n.to_ne_bytes()));
        self
    }

    fn s(mut self, text: &[u8]) -> Self {
        self.0.extend(text);
        self
    }

    fn end(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

fn os(text: &'static str) -> &'static OsStr {
    OsStr::new(text)
}

#[test]
fn the_shown_root_is_the_root() {
    let to_shown = |code, body: &[u64]| {
        let mut bytes = Message::new(code).q(body).s(b"a\0b\0").end();
        bytes[16..24].copy_from_slice(&u64::MAX.to_ne_bytes());
        bytes
    };
    let bytes = to_shown(opcode::RENAME, &[u64::MAX]);
    let Request { header, operation } = Request::parse(&bytes).unwrap();
    assert_eq!(header.nodeid, 1);
    assert!(
        matches!(operation, Operation::Rename { new_parent: 1, .. }),
        "{operation:?}"
    );
    let bytes = to_shown(opcode::BATCH_FORGET, &[2, u64::MAX, 7, 5, 8]);
    let Operation::BatchForget { nodes } = Request::parse(&bytes).unwrap().operation else {
        panic!("another operation");
    };
    assert_eq!(nodes.collect::<Vec<_>>(), [(1, 7), (5, 8)]);
}

#[test]
fn a_resent_request_is_told_by_its_number() {
    let mut bytes = Message::new(opcode::READLINK).end();
    let header = Request::parse(&bytes).unwrap().header;
    assert!(!header.resent());
    assert_eq!(header.original(), header.unique);
    bytes[8..16].copy_from_slice(&(header.unique | 1 << 63).to_ne_bytes());
    let again = Request::parse(&bytes).unwrap().header;
    assert!(again.resent());
    assert_eq!(again.original(), header.unique);
    assert_ne!(
        again.unique, header.unique,
        "the reply has the whole number"
    );
}

#[test]
fn extensions_are_not_taken_for_arguments() {
    let mut bytes = Message::new(opcode::LOOKUP).s(b"n\0").s(&[1; 16]).end();
    bytes[36..38].copy_from_slice(&2u16.to_ne_bytes());
    let request = Request::parse(&bytes).unwrap();
    assert_eq!(request.operation, Operation::Lookup { name: os("n") });
    // More extensions than there are bytes.
    bytes[36..38].copy_from_slice(&3u16.to_ne_bytes());
    assert_eq!(Request::parse(&bytes), Err(Malformed::Truncated));
    let mut bytes = Message::new(opcode::LOOKUP).s(&[b'x'; 8]).end();
    bytes[36..38].copy_from_slice(&1u16.to_ne_bytes());
    assert_eq!(Request::parse(&bytes), Err(Malformed::Unterminated));
}

#[test]
fn forgets_are_counted_by_what_is_there() {
    let huge = Message::new(opcode::BATCH_FORGET)
        .d(&[u32::MAX, 0])
        .q(&[1, 2]);
    assert_eq!(Request::parse(&huge.end()), Err(Malformed::Truncated));
    let two = Message::new(opcode::BATCH_FORGET)
        .d(&[2, 0])
        .q(&[7, 1, 8, 2])
        .end();
    let Operation::BatchForget { nodes } = Request::parse(&two).unwrap().operation else {
        panic!("another operation");
    };
    assert_eq!(nodes.collect::<Vec<_>>(), [(7, 1), (8, 2)]);
}
