use super::*;
use crate::Lock;
use crate::operation::{Forgets, LockIn, SetAttr, TimeOrNow};
use proptest::prelude::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

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

fn at(seconds: i64, nanoseconds: u32) -> Option<TimeOrNow> {
    Some(TimeOrNow::At {
        seconds,
        nanoseconds,
    })
}

/// Each operation as bytes, and as it has to be decoded.
fn samples() -> Vec<(Vec<u8>, Operation<'static>)> {
    let mut all = of_objects();
    all.extend(of_open_files());
    all
}

#[rustfmt::skip]
fn of_objects() -> Vec<(Vec<u8>, Operation<'static>)> {
    let new = Message::new;
    vec![
        (new(opcode::LOOKUP).s(b"name\0").end(), Operation::Lookup { name: os("name") }),
        (new(opcode::FORGET).q(&[5]).end(), Operation::Forget { count: 5 }),
        (new(opcode::BATCH_FORGET).d(&[2, 0]).q(&[7, 1, 8, 2]).end(),
         Operation::BatchForget { nodes: Forgets(Box::leak(
             [7u64, 1, 8, 2].iter().flat_map(|n| n.to_ne_bytes()).collect::<Box<[u8]>>())) }),
        (new(opcode::GETATTR).d(&[0, 0]).q(&[6]).end(), Operation::Getattr { handle: None }),
        (new(opcode::GETATTR).d(&[1, 0]).q(&[6]).end(), Operation::Getattr { handle: Some(6) }),
        (new(opcode::SETATTR).d(&[0xfff, 0]).q(&[1, 2, 3, 4, 5, 6])
             .d(&[7, 8, 9, 0o100_600, 0, 11, 12, 0]).end(),
         Operation::Setattr { to: SetAttr {
             mode: Some(0o100_600), uid: Some(11), gid: Some(12), size: Some(2),
             atime: Some(TimeOrNow::Now), mtime: Some(TimeOrNow::Now),
             handle: Some(1),
         } }),
        (new(opcode::SETATTR).d(&[0x30, 0]).q(&[1, 2, 3, 4, (-5i64) as u64, 6])
             .d(&[7, 8, 9, 10, 0, 11, 12, 0]).end(),
         Operation::Setattr { to: SetAttr {
             atime: at(4, 7),
             mtime: at(-5, 8),
             ..SetAttr::default()
         } }),
        (new(opcode::SETATTR).d(&[0x8, 0]).q(&[1, 2, 3, 4, 5, 6]).d(&[7; 8]).end(),
         Operation::Setattr { to: SetAttr { size: Some(2), ..SetAttr::default() } }),
        (new(opcode::READLINK).end(), Operation::Readlink),
        (new(opcode::SYMLINK).s(b"new\0old/path\0").end(),
         Operation::Symlink { name: os("new"), target: os("old/path") }),
        (new(opcode::MKNOD).d(&[0o020_644, 0x103, 0o22, 0]).s(b"n\0").end(),
         Operation::Mknod { name: os("n"), mode: 0o020_644, rdev: 0x103, umask: 0o22 }),
        (new(opcode::MKDIR).d(&[0o755, 0o22]).s(b"n\0").end(),
         Operation::Mkdir { name: os("n"), mode: 0o755, umask: 0o22 }),
        (new(opcode::UNLINK).s(b"n\0").end(), Operation::Unlink { name: os("n") }),
        (new(opcode::RMDIR).s(b"n\0").end(), Operation::Rmdir { name: os("n") }),
        (new(opcode::RENAME).q(&[8]).s(b"a\0b\0").end(),
         Operation::Rename { name: os("a"), new_parent: 8, new_name: os("b"), flags: 0 }),
        (new(opcode::RENAME2).q(&[8]).d(&[1, 0]).s(b"a\0b\0").end(),
         Operation::Rename { name: os("a"), new_parent: 8, new_name: os("b"), flags: 1 }),
        (new(opcode::LINK).q(&[8]).s(b"n\0").end(), Operation::Link { node: 8, name: os("n") }),
    ]
}

#[rustfmt::skip]
fn of_open_files() -> Vec<(Vec<u8>, Operation<'static>)> {
    let new = Message::new;
    let lock = Lock { start: 1, end: 2, kind: 1, pid: 9 };
    vec![
        (new(opcode::OPEN).d(&[0x8002, 0]).end(), Operation::Open { flags: 0x8002 }),
        (new(opcode::READ).q(&[1, 2]).d(&[3, 2]).q(&[9]).d(&[0x8000, 0]).end(),
         Operation::Read { handle: 1, offset: 2, size: 3, flags: 0x8000 }),
        (new(opcode::WRITE).q(&[1, 2]).d(&[4, 0]).q(&[9]).d(&[1, 0]).s(b"data").end(),
         Operation::Write { data: b"data", to: WriteIn { handle: 1, offset: 2, cached: false, flags: 1 } }),
        (new(opcode::WRITE).q(&[1, 2]).d(&[4, 7]).q(&[9]).d(&[1, 0]).s(b"data").end(),
         Operation::Write { data: b"data", to: WriteIn { handle: 1, offset: 2, cached: true, flags: 1 } }),
        (new(opcode::STATFS).end(), Operation::Statfs),
        (new(opcode::RELEASE).q(&[1]).d(&[2, 1]).q(&[9]).end(),
         Operation::Release { handle: 1, flock_owner: None }),
        (new(opcode::RELEASE).q(&[1]).d(&[2, 2]).q(&[9]).end(),
         Operation::Release { handle: 1, flock_owner: Some(9) }),
        (new(opcode::FSYNC).q(&[1]).d(&[1, 0]).end(), Operation::Fsync { handle: 1 }),
        (new(opcode::SETXATTR).d(&[3, 1]).s(b"user.a\0val").end(),
         Operation::Setxattr { name: os("user.a"), value: b"val", flags: 1 }),
        (new(opcode::GETXATTR).d(&[64, 0]).s(b"user.a\0").end(),
         Operation::Getxattr { name: os("user.a"), size: 64 }),
        (new(opcode::LISTXATTR).d(&[64, 0]).end(), Operation::Listxattr { size: 64 }),
        (new(opcode::REMOVEXATTR).s(b"user.a\0").end(), Operation::Removexattr { name: os("user.a") }),
        (new(opcode::FLUSH).q(&[1]).d(&[0, 0]).q(&[9]).end(),
         Operation::Flush { handle: 1, lock_owner: 9 }),
        (new(opcode::OPENDIR).d(&[0x18000, 0]).end(), Operation::Opendir { flags: 0x18000 }),
        (new(opcode::READDIR).q(&[1, 2]).d(&[3, 0]).q(&[9]).d(&[0, 0]).end(),
         Operation::Readdir { handle: 1, offset: 2, size: 3 }),
        (new(opcode::READDIRPLUS).q(&[1, 2]).d(&[3, 0]).q(&[9]).d(&[0, 0]).end(),
         Operation::Readdirplus { handle: 1, offset: 2, size: 3 }),
        (new(opcode::RELEASEDIR).q(&[1]).d(&[2, 0]).q(&[9]).end(),
         Operation::Releasedir { handle: 1 }),
        (new(opcode::GETLK).q(&[4, 5, 1, 2]).d(&[1, 9, 0, 0]).end(),
         Operation::Getlk { of: LockIn { handle: 4, owner: 5, lock, flock: false } }),
        (new(opcode::SETLK).q(&[4, 5, 1, 2]).d(&[1, 9, 1, 0]).end(),
         Operation::Setlk { of: LockIn { handle: 4, owner: 5, lock, flock: true }, wait: false }),
        (new(opcode::SETLKW).q(&[4, 5, 1, 2]).d(&[1, 9, 0, 0]).end(),
         Operation::Setlk { of: LockIn { handle: 4, owner: 5, lock, flock: false }, wait: true }),
        (new(opcode::ACCESS).d(&[4, 0]).end(), Operation::Access { mask: 4 }),
        (new(opcode::CREATE).d(&[0x8042, 0o100_644, 0o22, 0]).s(b"n\0").end(),
         Operation::Create { name: os("n"), mode: 0o100_644, umask: 0o22, flags: 0x8042 }),
        (new(opcode::INTERRUPT).q(&[44]).end(), Operation::Interrupt { unique: 44 }),
        (new(opcode::DESTROY).end(), Operation::Destroy),
        (new(opcode::IOCTL).q(&[1]).d(&[2, 3]).q(&[4]).d(&[2, 8]).s(b"io").end(), Operation::Ioctl),
        (new(opcode::NOTIFY_REPLY).q(&[0; 5]).end(), Operation::Unknown),
        (new(9999).s(b"who knows").end(), Operation::Unknown),
    ]
}

/// Operations without arguments, or whose arguments are not decoded.
fn without_arguments(operation: &Operation<'_>) -> bool {
    matches!(
        operation,
        Operation::Readlink
            | Operation::Statfs
            | Operation::Destroy
            | Operation::Ioctl
            | Operation::Unknown
    )
}

#[test]
fn every_operation_is_decoded() {
    let mut seen = std::collections::HashSet::new();
    for (bytes, operation) in samples() {
        let request = Request::parse(&bytes).unwrap();
        assert_eq!(request.operation, operation);
        let header = request.header;
        assert_eq!(
            (header.unique, header.nodeid),
            (0x0102_0304_0506_0708, 3),
            "{operation:?}"
        );
        assert_eq!(
            (header.uid(), header.gid(), header.pid()),
            (1000, 100, 4242)
        );
        seen.insert(header.opcode);
    }
    for code in opcode::ALL {
        // What NFSv3 does not have, and DAX, which is not negotiated.
        let bytes = Message::new(*code).end();
        let is_unknown = Request::parse(&bytes).is_ok_and(|of| of.operation == Operation::Unknown);
        assert!(
            is_unknown || seen.contains(code),
            "no sample of {}",
            opcode::name(*code)
        );
    }
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
#[cfg(target_endian = "little")]
fn requests_in_bytes() {
    #[rustfmt::skip]
    let lookup = [
        44, 0, 0, 0, 1, 0, 0, 0, // length, LOOKUP
        8, 7, 6, 5, 4, 3, 2, 1, // unique
        1, 0, 0, 0, 0, 0, 0, 0, // node
        0xe8, 3, 0, 0, 100, 0, 0, 0, // uid, gid
        0x92, 0x10, 0, 0, 0, 0, 0, 0, // thread, extensions
        b'a', b'.', b'b', 0,
    ];
    let request = Request::parse(&lookup).unwrap();
    assert_eq!(request.header.nodeid, 1);
    assert_eq!(request.header.pid(), 4242);
    assert_eq!(request.operation, Operation::Lookup { name: os("a.b") });

    let mut write = vec![83, 0, 0, 0, 16, 0, 0, 0];
    write.extend([0; 32]);
    write.extend([2, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0]);
    write.extend([3, 0, 0, 0, 0, 0, 0, 0]);
    write.extend([0; 8]);
    write.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    write.extend(b"abc");
    let request = Request::parse(&write).unwrap();
    let Operation::Write { data, to } = request.operation else {
        panic!("{request:?}");
    };
    assert_eq!((data, to.offset), (&b"abc"[..], 4096));
    // The data is not copied: it lies in the buffer.
    assert_eq!(data.as_ptr(), write[80..].as_ptr());
}

#[test]
fn truncated_at_any_length_none_is_decoded() {
    for (bytes, operation) in samples() {
        for len in 0..bytes.len() {
            let mut short = bytes[..len].to_vec();
            assert!(Request::parse(&short).is_err(), "the length is another");
            if len >= 4 {
                short[..4].copy_from_slice(&(len as u32).to_ne_bytes());
            }
            let parsed = Request::parse(&short);
            if len < 40 || !without_arguments(&operation) {
                assert!(parsed.is_err(), "{operation:?} of {len} bytes");
            }
        }
    }
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

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Request::parse(&bytes);
    }

    #[test]
    fn any_arguments_are_decoded_or_refused(
        code in 0u32..60,
        arguments in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let bytes = Message::new(code).s(&arguments).end();
        let _ = format!("{:?}", Request::parse(&bytes));
    }

    #[test]
    fn writes_and_names_are_read_back(
        handle: u64, offset: u64, flags: i32,
        data in prop::collection::vec(any::<u8>(), 0..5000),
        name in prop::collection::vec(1u8.., 1..255),
        new_name in prop::collection::vec(1u8.., 1..255),
    ) {
        let bytes = Message::new(opcode::WRITE).q(&[handle, offset])
            .d(&[data.len() as u32, 0]).q(&[0])
            .d(&[flags as u32, 0]).s(&data).end();
        let to = WriteIn { handle, offset, cached: false, flags };
        let request = Request::parse(&bytes).unwrap();
        prop_assert_eq!(request.operation, Operation::Write { data: &data, to });
        // The same from the bytes before the data.
        let (head, data) = bytes.split_first_chunk().unwrap();
        prop_assert_eq!(parse_write(head, bytes.len()), Some((request.header, to)));
        prop_assert_eq!(parse_write(head, bytes.len() + 1), None);
        prop_assert_eq!(data.len(), bytes.len() - WRITE_HEAD);
        let bytes = Message::new(opcode::RENAME2).q(&[handle]).d(&[flags as u32, 0])
            .s(&name).s(&[0]).s(&new_name).s(&[0]).end();
        prop_assert_eq!(Request::parse(&bytes).unwrap().operation, Operation::Rename {
            name: OsStr::from_bytes(&name), new_parent: handle,
            new_name: OsStr::from_bytes(&new_name), flags: flags as u32,
        });
    }

    #[test]
    fn attributes_to_set_are_those_marked(
        valid: u32, numbers: [u64; 3], times: [i32; 3], nanos in prop::array::uniform3(0u32..1_000_000_000),
        mode: u32, uid: u32, gid: u32,
    ) {
        let seconds: Vec<u64> = times.iter().map(|&t| i64::from(t) as u64).collect();
        let bytes = Message::new(opcode::SETATTR).d(&[valid, 0]).q(&numbers).q(&seconds)
            .d(&nanos).d(&[mode, 0, uid, gid, 0]).end();
        let Operation::Setattr { to: set } = Request::parse(&bytes).unwrap().operation else {
            panic!("another operation");
        };
        let has = |bit: u32| valid & (1 << bit) != 0;
        prop_assert_eq!(set.mode, has(0).then_some(mode));
        prop_assert_eq!(set.uid, has(1).then_some(uid));
        prop_assert_eq!(set.gid, has(2).then_some(gid));
        prop_assert_eq!(set.size, has(3).then_some(numbers[1]));
        prop_assert_eq!(set.handle, has(6).then_some(numbers[0]));
        for (i, told, now) in [(0, set.atime, 7), (1, set.mtime, 8)] {
            match told {
                None => prop_assert!(!has(4 + i as u32)),
                Some(TimeOrNow::Now) => prop_assert!(has(4 + i as u32) && has(now)),
                Some(TimeOrNow::At { seconds, nanoseconds }) => {
                    prop_assert!(has(4 + i as u32) && !has(now));
                    prop_assert_eq!((seconds, nanoseconds), (times[i].into(), nanos[i]));
                }
            }
        }
    }
}
