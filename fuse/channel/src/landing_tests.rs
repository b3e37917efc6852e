use super::*;
use crate::abi::opcode;
use crate::device::Device;
use crate::header::Header;
use crate::operation::Operation;
use crate::reply::Reply;
use crate::request::Request;
use crate::serve::{Buffer, Handler, ReadResult, Reader};
use proptest::prelude::*;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};

/// What a handler got: the offset and data of a WRITE, or a name; and whether the data was in
/// memory of the handler.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Got {
    offset: u64,
    bytes: Vec<u8>,
    own: bool,
}

#[derive(Default)]
struct Recorder {
    got: Mutex<Vec<Got>>,
    gives_none: bool,
}

impl Recorder {
    fn note(&self, offset: u64, bytes: &[u8], own: bool) {
        let bytes = bytes.to_vec();
        self.got.lock().unwrap().push(Got { offset, bytes, own });
    }
}

impl Handler for Recorder {
    type Buffer = Vec<u8>;

    fn handle(&self, request: &Request<'_>, reply: Reply) {
        match request.operation {
            Operation::Write { to, data } => self.note(to.offset, data, false),
            Operation::Lookup { name } => self.note(0, name.as_bytes(), false),
            _ => panic!("{request:?}"),
        }
        reply.ok();
    }

    fn buffer(&self, len: usize) -> Option<Vec<u8>> {
        (!self.gives_none).then(|| vec![0xee; len])
    }

    fn write(&self, _: &Header, to: &WriteIn, data: Vec<u8>, reply: Reply) {
        self.note(to.offset, &data, true);
        reply.ok();
    }

    fn forget(&self, _: u64, _: u64) {}

    fn interrupt(&self, _: u64) {}
}

fn message(code: u32, body: &[&[u8]]) -> Vec<u8> {
    let len = 40 + body.iter().map(|part| part.len()).sum::<usize>();
    let mut bytes = (len as u32).to_ne_bytes().to_vec();
    bytes.extend(code.to_ne_bytes());
    bytes.extend([0; 32]);
    bytes.extend(body.concat());
    bytes
}

fn write(offset: u64, data: &[u8]) -> Vec<u8> {
    let mut arguments = [0; 40];
    arguments[8..16].copy_from_slice(&offset.to_ne_bytes());
    arguments[16..20].copy_from_slice(&(data.len() as u32).to_ne_bytes());
    message(opcode::WRITE, &[&arguments, data])
}

fn lookup(name: &[u8]) -> Vec<u8> {
    message(opcode::LOOKUP, &[name, b"\0"])
}

/// The least length in these tests, which fits into a datagram.
const SHORT: usize = 64 << 10;

/// What the handler gets if one reader reads `messages`.
fn read(messages: &[Vec<u8>], handler: &Recorder) -> Vec<Got> {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let device = Arc::new(Device::from(OwnedFd::from(ours)));
    let mut reader = Reader::new(device, Buffer::Own(vec![0; (1 << 20) + 4096]));
    let mut landing = Landing {
        least: SHORT,
        ..Landing::default()
    };
    for message in messages {
        theirs.send(message).unwrap();
        let result = reader.read(handler, &mut landing).unwrap();
        assert_eq!(result, ReadResult::Handled);
        let mut reply = [0; 16];
        assert_eq!(theirs.recv(&mut reply).unwrap(), 16);
        assert_eq!(reply[4..8], [0; 4], "no error");
    }
    handler.got.lock().unwrap().clone()
}

const LEN: u64 = SHORT as u64;

#[test]
fn the_second_of_writes_in_a_row_has_its_data_in_memory_of_its_own() {
    let data: Vec<Vec<u8>> = (1..4).map(|byte| vec![byte; SHORT]).collect();
    let writes = [
        write(0, &data[0]),
        write(LEN, &data[1]),
        lookup(b"name"),
        write(2 * LEN, &data[2]),
    ];
    let got = read(&writes, &Recorder::default());
    let own: Vec<bool> = got.iter().map(|got| got.own).collect();
    assert_eq!(own, [false, true, false, true]);
    assert_eq!(got[1].offset, LEN);
    assert_eq!(got[1].bytes, data[1]);
    assert_eq!(got[2].bytes, b"name");
    assert_eq!(got[3].bytes, data[2]);
}

#[test]
fn other_requests_read_in_pieces_are_put_together() {
    let long: Vec<u8> = (0..255).map(|n| b'a' + n % 26).collect();
    let odd: Vec<u8> = (0..SHORT + 1000).map(|n| n as u8).collect();
    for other in [
        lookup(b""),
        lookup(&long),
        write(LEN, &odd[..7]),
        write(LEN, &odd[..SHORT - 1]),
        write(LEN, &odd),
    ] {
        let messages = [write(0, &[1; SHORT]), other.clone()];
        let in_pieces = read(&messages, &Recorder::default());
        let whole = read(&[other], &Recorder::default());
        assert_eq!(in_pieces[1], whole[0]);
    }
}

#[test]
fn without_memory_the_data_is_lent() {
    let handler = Recorder {
        gives_none: true,
        ..Recorder::default()
    };
    let got = read(&[write(0, &[1; SHORT]), write(LEN, &[2; SHORT])], &handler);
    assert_eq!(
        got[1],
        Got {
            offset: LEN,
            bytes: vec![2; SHORT],
            own: false
        }
    );
}

#[test]
fn only_a_power_of_two_at_a_multiple_of_itself_is_expected_again() {
    for (offset, len) in [(LEN / 2, SHORT), (0, SHORT + 4096), (0, SHORT / 2)] {
        let one = write(offset, &vec![1; len]);
        let got = read(&[one.clone(), one], &Recorder::default());
        assert!(!got[1].own, "{len} bytes at {offset}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_sequence_gives_what_single_requests_give(
        kinds in prop::collection::vec((0usize..4, 0u64..3, 0usize..300), 1..12),
    ) {
        let messages: Vec<Vec<u8>> = kinds
            .iter()
            .map(|&(kind, block, odd)| match kind {
                0 => lookup(&vec![b'n'; odd.min(255)]),
                1 => write(block * LEN, &vec![odd as u8; SHORT]),
                2 => write(block * LEN, &vec![odd as u8; SHORT - odd]),
                _ => write(block * 4096, &vec![odd as u8; odd]),
            })
            .collect();
        let together = read(&messages, &Recorder::default());
        for (message, got) in messages.iter().zip(together) {
            let alone = read(std::slice::from_ref(message), &Recorder::default());
            prop_assert_eq!((got.offset, &got.bytes), (alone[0].offset, &alone[0].bytes));
        }
    }
}

/// Whether there is memory for each page of `bytes`.
#[cfg(not(miri))]
fn is_there(bytes: &[u8]) -> bool {
    use std::os::unix::fs::FileExt;
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    let first = bytes.as_ptr() as u64 / 4096;
    let last = (bytes.as_ptr() as u64 + bytes.len() as u64 - 1) / 4096;
    (first..=last).all(|page| {
        let mut entry = [0; 8];
        pagemap.read_exact_at(&mut entry, 8 * page).unwrap();
        u64::from_ne_bytes(entry) >> 63 == 1
    })
}

/// The kernel fails a request that it copies to a page for which a process that was killed has no memory.
#[test]
#[cfg(not(miri))]
fn what_a_successor_would_read_again_is_read_into_memory_that_is_there() {
    struct Lazy;
    impl Handler for Lazy {
        type Buffer = Vec<u8>;
        fn handle(&self, _: &Request<'_>, reply: Reply) {
            reply.ok();
        }
        fn buffer(&self, len: usize) -> Option<Vec<u8>> {
            Some(vec![0; len])
        }
        fn write(&self, _: &Header, _: &WriteIn, _: Vec<u8>, reply: Reply) {
            reply.ok();
        }
        fn forget(&self, _: u64, _: u64) {}
        fn interrupt(&self, _: u64) {}
    }
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let device = Arc::new(Device::from(OwnedFd::from(ours)));
    let buffer = vec![0; 64 << 20];
    let place = buffer.as_ptr();
    let mut reader = Reader::new(device, Buffer::Own(buffer));
    // SAFETY: the reader has the buffer, and reads nothing meanwhile.
    let all = || unsafe { std::slice::from_raw_parts(place, 64 << 20) };
    assert!(!is_there(all()));
    reader.expect_successor();
    assert!(is_there(all()));
    let mut landing = Landing {
        expected: 32 << 20,
        ..Landing::default()
    };
    theirs.send(&lookup(b"name")).unwrap();
    let result = reader.read(&Lazy, &mut landing).unwrap();
    assert_eq!(result, ReadResult::Handled);
    assert!(is_there(&landing.buffer.unwrap()));
}
