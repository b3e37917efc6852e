use super::*;
use crate::directory::Directory;
use crate::header::Header;
use proptest::prelude::*;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

/// A device with a socket instead of the kernel, and a function that receives one message from it.
pub(crate) fn peer() -> (Arc<Device>, impl Fn() -> Vec<u8>) {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let device = Arc::new(Device::from(OwnedFd::from(ours)));
    let next = move || {
        let mut message = vec![0; 1 << 17];
        let len = theirs.recv(&mut message).unwrap_or(0);
        message.truncate(len);
        message
    };
    (device, next)
}

/// The header of the request 0x1122 for node 3.
fn header() -> Header {
    let mut bytes = [0; 40];
    bytes[0] = 40;
    bytes[4] = 1;
    bytes[8..16].copy_from_slice(&0x1122u64.to_ne_bytes());
    bytes[16] = 3;
    Header::parse(&bytes).unwrap().0
}

fn attr() -> Attr {
    Attr {
        fileid: 0x0102_0304_0506_0708,
        size: 5,
        blocks: 8,
        seconds: [10, 11, 12],
        nanoseconds: [1, 2, 3],
        mode: 0o100_644,
        nlink: 1,
        uid: 1000,
        gid: 1001,
        rdev: 0x801,
        blksize: 4096,
        flags: 0,
    }
}

fn entry_of(attr: Attr) -> Entry {
    Entry::new(77, Duration::new(1, 500), Duration::new(2, 600), attr)
}

fn entry() -> Entry {
    entry_of(attr())
}

/// A message as 32-bit words.
fn words(message: &[u8]) -> Vec<u32> {
    assert_eq!(message.len() % 4, 0);
    message
        .chunks(4)
        .map(|w| u32::from_ne_bytes(w.try_into().unwrap()))
        .collect()
}

/// The words of `attr()` on a little-endian machine: struct fuse_attr, 88 bytes.
#[rustfmt::skip]
const ATTR: [u32; 22] = [
    0x0506_0708, 0x0102_0304, 5, 0, 8, 0, 10, 0, 11, 0, 12, 0,
    1, 2, 3, 0o100_644, 1, 1000, 1001, 0x801, 4096, 0,
];
/// The words of `entry()` before its attributes.
const ENTRY: [u32; 10] = [77, 0, 0, 0, 1, 0, 2, 0, 500, 600];

/// The words of a reply after its header, which must have the length, no error, and the request.
fn answered(answer: impl FnOnce(Reply)) -> Vec<u32> {
    let (device, next) = peer();
    answer(Reply::new(&device, &header()));
    let message = words(&next());
    assert_eq!(message[..4], [message.len() as u32 * 4, 0, 0x1122, 0]);
    assert!(next().is_empty(), "answered twice");
    message[4..].to_vec()
}

#[test]
#[cfg(target_endian = "little")]
fn replies_in_words() {
    let full = [&ENTRY[..], &ATTR[..]].concat();
    assert_eq!(answered(|r| r.ok()), []);
    assert_eq!(answered(|r| r.entry(&entry())), full);
    assert_eq!(
        answered(|r| r.attr(Duration::new(3, 4), &attr())),
        [&[3, 0, 4, 0][..], &ATTR].concat()
    );
    assert_eq!(answered(|r| r.opened(9, 2)), [9, 0, 2, 0]);
    assert_eq!(
        answered(|r| r.created(&entry(), 9, 2)),
        [&full[..], &[9, 0, 2, 0]].concat()
    );
    assert_eq!(answered(|r| r.written(6)), [6, 0]);
    assert_eq!(answered(|r| r.xattr_size(6)), [6, 0]);
    let lock = Lock {
        start: 1,
        end: 2,
        kind: 3,
        pid: 4,
    };
    assert_eq!(answered(|r| r.lock(&lock)), [1, 0, 2, 0, 3, 4]);
    let statfs = Statfs {
        blocks: 1,
        bfree: 2,
        bavail: 3,
        files: 4,
        ffree: 5,
        bsize: 6,
        namelen: 7,
        frsize: 8,
        ..Statfs::default()
    };
    let mut expected = vec![1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 7, 8];
    expected.resize(20, 0);
    assert_eq!(answered(|r| r.statfs(&statfs)), expected);
    let nothing = answered(|r| r.entry(&Entry::absent(Duration::new(5, 6), Attr::default())));
    assert_eq!(nothing[..10], [0, 0, 0, 0, 5, 0, 0, 0, 6, 0]);
    assert_eq!((nothing.len(), nothing[10..].iter().max()), (32, Some(&0)));
}

#[test]
fn errors_in_bytes() {
    let expected = |errno: i32| {
        let mut bytes = vec![16, 0, 0, 0];
        bytes.extend((-errno).to_le_bytes());
        bytes.extend([0x22, 0x11, 0, 0, 0, 0, 0, 0]);
        bytes
    };
    // An errno that the kernel would refuse becomes EIO, and so does a dropped reply.
    for (errno, told) in [(2, 2), (0, 5), (-3, 5), (512, 5), (i32::MIN, 5), (511, 511)] {
        let (device, next) = peer();
        Reply::new(&device, &header()).error(errno);
        assert_eq!(next(), expected(told));
        assert!(next().is_empty());
    }
    let (device, next) = peer();
    drop(Reply::new(&device, &header()));
    assert_eq!(next(), expected(5));
    assert!(next().is_empty());
}

#[test]
fn data_of_any_number_of_slices() {
    for count in [0, 1, 2, 1023, 1024, 3000] {
        let (device, next) = peer();
        let data: Vec<[u8; 3]> = (0..count as u32)
            .map(|n| [n as u8, (n >> 8) as u8, 7])
            .collect();
        let slices: Vec<&[u8]> = data.iter().map(|part| &part[..]).collect();
        Reply::new(&device, &header()).slices(&slices);
        let message = next();
        assert_eq!(message[..4], (16 + 3 * count as u32).to_ne_bytes());
        assert_eq!(message[16..], data.concat());
        assert!(next().is_empty());
    }
}

#[test]
fn a_reply_that_nobody_waits_for_is_given_up() {
    // A pipe without a reader stands for a mount that is gone.
    let (mut end, pipe) = std::io::pipe().unwrap();
    let device = Arc::new(Device::from(OwnedFd::from(pipe)));
    Reply::new(&device, &header()).ok();
    let mut message = [0; 16];
    end.read_exact(&mut message).unwrap();
    drop(end);
    Reply::new(&device, &header()).ok();
}

#[test]
fn directory_entries_in_bytes() {
    let mut plain = Directory::new(64);
    assert!(plain.add(5, 6, 0o100_644, b"abc"));
    assert!(plain.add(7, 8, 0o040_755, b"12345678"));
    let mut expected = Vec::new();
    for number in [5u64, 6, 3 | 8 << 32] {
        expected.extend(number.to_le_bytes());
    }
    expected.extend(b"abc\0\0\0\0\0");
    for number in [7u64, 8, 8 | 4 << 32] {
        expected.extend(number.to_le_bytes());
    }
    expected.extend(b"12345678");
    assert_eq!(plain.bytes(), expected);
    assert_eq!(expected.len(), 64);
    assert!(!plain.add(1, 1, 0, b"x"), "it is full");
    assert_eq!(plain.bytes(), expected);

    let mut plus = Directory::new(160);
    assert!(!plus.add_plus(&entry(), 6, b"123456789"), "it does not fit");
    assert!(plus.add_plus(&entry(), 6, b"1234567"));
    let mut expected: Vec<u8> = [&ENTRY[..], &ATTR[..]]
        .concat()
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    for number in [attr().fileid, 6, 7 | 8 << 32] {
        expected.extend(number.to_ne_bytes());
    }
    expected.extend(b"1234567\0");
    assert_eq!(plus.bytes(), expected);
}

/// Decodes entries as the kernel does.
fn read_back(mut bytes: &[u8], plus: bool) -> Vec<(u64, u64, u32, Vec<u8>)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let at = if plus { 128 } else { 0 };
        let u64_at = |i: usize| u64::from_ne_bytes(bytes[at + i..at + i + 8].try_into().unwrap());
        let u32_at = |i: usize| u32::from_ne_bytes(bytes[at + i..at + i + 4].try_into().unwrap());
        let len = u32_at(16) as usize;
        let name = bytes[at + 24..at + 24 + len].to_vec();
        all.push((u64_at(0), u64_at(8), u32_at(20), name));
        bytes = &bytes[(at + 24 + len).next_multiple_of(8)..];
    }
    all
}

proptest! {
    #[test]
    fn directories_are_read_back(
        size in 0u32..4096,
        entries in prop::collection::vec(
            (any::<u64>(), any::<u64>(), 0u32..16, prop::collection::vec(any::<u8>(), 1..300)),
            0..40,
        ),
    ) {
        let (mut plain, mut plus) = (Directory::new(size), Directory::new(size));
        let (mut in_plain, mut in_plus) = (Vec::new(), Vec::new());
        for (fileid, offset, kind, name) in entries {
            let mode = kind << 12 | 0o644;
            if plain.add(fileid, offset, mode, &name) {
                in_plain.push((fileid, offset, kind, name.clone()));
            }
            let of = entry_of(Attr { fileid, mode, ..attr() });
            if plus.add_plus(&of, offset, &name) {
                in_plus.push((fileid, offset, kind, name));
            }
        }
        prop_assert!(plain.bytes().len() <= size as usize);
        prop_assert!(plus.bytes().len() <= size as usize);
        prop_assert_eq!(read_back(plain.bytes(), false), in_plain);
        prop_assert_eq!(read_back(plus.bytes(), true), in_plus);
    }
}
