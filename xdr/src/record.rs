//! Record marking: RPC messages on a byte stream (RFC 5531 section 11).
//!
//! A record consists of one or more fragments, each after a four-byte mark. The top bit of the mark
//! says whether the fragment is the last of the record; the other 31 bits are its length in bytes.

use thiserror::Error;

/// Length of a mark in bytes.
pub const MARK_LEN: usize = 4;
/// Longest fragment, in bytes.
pub const MAX_FRAGMENT_LEN: usize = (1 << 31) - 1;

const LAST: u32 = 1 << 31;

/// Why a stream cannot be read any further. The connection must be closed, because the beginning of
/// the next record is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RecordError {
    #[error("record of at least {length} bytes exceeds the bound of {bound}")]
    TooLong { length: usize, bound: usize },
    /// This also ends a stream of empty fragments.
    #[error("record of more than {0} fragments")]
    TooManyFragments(usize),
}

/// The mark of a fragment.
///
/// # Panics
/// If `len` exceeds [`MAX_FRAGMENT_LEN`].
pub fn mark(len: usize, last: bool) -> [u8; MARK_LEN] {
    assert!(len <= MAX_FRAGMENT_LEN, "no fragment has {len} bytes");
    (len as u32 | if last { LAST } else { 0 }).to_be_bytes()
}

/// Fills in the mark of `message`, which begins with [`MARK_LEN`] bytes for it and contains one
/// record in a single fragment.
///
/// # Panics
/// If there is no room for the mark, or the record exceeds [`MAX_FRAGMENT_LEN`].
pub fn seal(message: &mut [u8]) {
    let len = message
        .len()
        .checked_sub(MARK_LEN)
        .expect("the caller left room for the mark");
    message[..MARK_LEN].copy_from_slice(&mark(len, true));
}

#[derive(Debug)]
enum State {
    Mark { bytes: [u8; MARK_LEN], have: usize },
    Fragment { left: usize, last: bool },
    Failed(RecordError),
}

const NEXT_MARK: State = State::Mark {
    bytes: [0; MARK_LEN],
    have: 0,
};

/// Joins the fragments of a stream into records. It accepts received bytes in pieces of any size,
/// and holds at most one record.
#[derive(Debug)]
pub struct RecordReader {
    max_len: usize,
    max_fragments: usize,
    record: Vec<u8>,
    fragments: usize,
    state: State,
}

impl RecordReader {
    /// A reader that accepts records of at most `max_len` bytes in at most `max_fragments`
    /// fragments.
    pub fn new(max_len: usize, max_fragments: usize) -> Self {
        RecordReader {
            max_len,
            max_fragments,
            record: Vec::new(),
            fragments: 0,
            state: NEXT_MARK,
        }
    }

    /// Number of bytes that are certainly missing, of the mark or of the fragment. At least 1,
    /// except after an error.
    pub fn wanted(&self) -> usize {
        match self.state {
            State::Mark { have, .. } => MARK_LEN - have,
            State::Fragment { left, .. } => left,
            State::Failed(_) => 0,
        }
    }

    /// Whether the stream is between two records, so that it may end here.
    pub fn is_idle(&self) -> bool {
        self.fragments == 0 && matches!(self.state, State::Mark { have: 0, .. })
    }

    /// Takes bytes from the front of `input` until a record is complete; `None` if all were taken
    /// and it is not. Must be called again while `input` is not empty. An error is permanent.
    pub fn read(&mut self, input: &mut &[u8]) -> Result<Option<Vec<u8>>, RecordError> {
        loop {
            match &mut self.state {
                State::Failed(error) => return Err(*error),
                State::Mark { bytes, have } => {
                    let taken = split(input, MARK_LEN - *have);
                    bytes[*have..*have + taken.len()].copy_from_slice(taken);
                    *have += taken.len();
                    if *have < MARK_LEN {
                        return Ok(None);
                    }
                    let mark = u32::from_be_bytes(*bytes);
                    if let Err(error) = self.begin((mark & !LAST) as usize, mark & LAST != 0) {
                        self.record = Vec::new();
                        self.state = State::Failed(error);
                    }
                }
                State::Fragment { left, last } => {
                    // Only received bytes are stored: an announced length allocates no memory.
                    let taken = split(input, *left);
                    self.record.extend_from_slice(taken);
                    *left -= taken.len();
                    if *left > 0 {
                        return Ok(None);
                    }
                    let last = *last;
                    self.state = NEXT_MARK;
                    if last {
                        self.fragments = 0;
                        return Ok(Some(std::mem::take(&mut self.record)));
                    }
                }
            }
        }
    }

    fn begin(&mut self, len: usize, last: bool) -> Result<(), RecordError> {
        if self.fragments == self.max_fragments {
            return Err(RecordError::TooManyFragments(self.max_fragments));
        }
        self.fragments += 1;
        let length = self.record.len() + len;
        if length > self.max_len {
            return Err(RecordError::TooLong {
                length,
                bound: self.max_len,
            });
        }
        self.state = State::Fragment { left: len, last };
        Ok(())
    }
}

/// Takes at most `len` bytes from the front of `input`.
fn split<'a>(input: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(len.min(input.len()));
    *input = rest;
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_all(reader: &mut RecordReader, mut input: &[u8]) -> Result<Vec<Vec<u8>>, RecordError> {
        let mut records = Vec::new();
        while !input.is_empty() {
            records.extend(reader.read(&mut input)?);
        }
        Ok(records)
    }

    #[test]
    fn literal() {
        assert_eq!(mark(0x123, true), [0x80, 0, 1, 0x23]);
        assert_eq!(mark(5, false), [0, 0, 0, 5]);
        let mut message = *b"....body";
        seal(&mut message);
        assert_eq!(&message, b"\x80\0\0\x04body");
        let mut reader = RecordReader::new(100, 10);
        let stream = b"\0\0\0\x02ab\0\0\0\0\x80\0\0\x01c\x80\0\0\x04body";
        let records = read_all(&mut reader, stream).unwrap();
        assert_eq!(records, [b"abc".to_vec(), b"body".to_vec()]);
        assert!(reader.is_idle());
        assert_eq!(reader.wanted(), 4);
    }

    /// A byte at a time: what is missing, and whether the stream may end there.
    #[test]
    fn a_stream_may_end_between_two_records_only() {
        let mut reader = RecordReader::new(100, 10);
        assert_eq!((reader.wanted(), reader.is_idle()), (4, true));
        let mut seen = Vec::new();
        for byte in b"\0\0\0\x02ab\x80\0\0\x01c" {
            reader.read(&mut &[*byte][..]).unwrap();
            seen.push((reader.wanted(), reader.is_idle()));
        }
        let wanted = [3, 2, 1, 2, 1, 4, 3, 2, 1, 1, 4];
        let expected = wanted.into_iter().enumerate();
        let expected: Vec<_> = expected.map(|(at, wanted)| (wanted, at == 10)).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn an_announced_length_allocates_nothing() {
        let mut reader = RecordReader::new(1 << 30, 10);
        let mut input = &b"\xc0\0\0\0xyz"[..];
        assert_eq!(reader.read(&mut input), Ok(None));
        assert!(reader.record.capacity() < 64);
        assert_eq!(reader.wanted(), (1 << 30) - 3);
        assert!(!reader.is_idle());
    }

    #[test]
    fn long_records_are_refused_and_stay_refused() {
        let error = RecordError::TooLong {
            length: 101,
            bound: 100,
        };
        for stream in [&b"\x80\0\0\x65"[..], b"\0\0\0\x01a\x80\0\0\x64"] {
            let mut reader = RecordReader::new(100, 10);
            assert_eq!(read_all(&mut reader, stream), Err(error));
            assert_eq!(reader.read(&mut &b"\x80\0\0\x01a"[..]), Err(error));
        }
        let mut reader = RecordReader::new(100, 10);
        let exact = [&mark(100, true)[..], &[7; 100]].concat();
        assert_eq!(read_all(&mut reader, &exact), Ok(vec![vec![7; 100]]));
    }

    #[test]
    fn empty_fragments_come_to_an_end() {
        let mut reader = RecordReader::new(100, 10);
        let error = read_all(&mut reader, &[0; 400]);
        assert_eq!(error, Err(RecordError::TooManyFragments(10)));
        // Ten fragments are accepted, and each record is counted separately.
        let mut reader = RecordReader::new(100, 10);
        let mut record = vec![0; 36];
        record.extend(mark(0, true));
        let twice = record.repeat(2);
        assert_eq!(read_all(&mut reader, &twice), Ok(vec![vec![], vec![]]));
    }

    proptest! {
        #[test]
        fn records_survive_any_cut(
            records in proptest::collection::vec(
                proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 1..5),
                0..6,
            ),
            pieces in proptest::collection::vec(1usize..9, 1..10),
        ) {
            let mut stream = Vec::new();
            for fragments in &records {
                for (i, fragment) in fragments.iter().enumerate() {
                    stream.extend(mark(fragment.len(), i + 1 == fragments.len()));
                    stream.extend(fragment);
                }
            }
            let mut reader = RecordReader::new(100, 5);
            let mut found = Vec::new();
            let mut rest = &stream[..];
            for len in pieces.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let piece = split(&mut rest, *len);
                found.extend(read_all(&mut reader, piece).unwrap());
            }
            let expected: Vec<Vec<u8>> = records.iter().map(|r| r.concat()).collect();
            prop_assert_eq!(found, expected);
            prop_assert!(reader.is_idle());
        }

        #[test]
        fn any_stream_ends(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            let mut reader = RecordReader::new(64, 4);
            let _ = read_all(&mut reader, &bytes);
            prop_assert!(reader.record.capacity() <= 128);
        }
    }
}
