use super::*;

/// The words of a header, in the notation of RFC 8166 section 4.7.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}

fn segment(n: u32) -> Segment {
    Segment {
        handle: n,
        length: 0x1000 + n,
        offset: u64::from(n) << 32 | 0xabc,
    }
}

/// H L O O of [`segment`].
fn hloo(n: u32) -> [u32; 4] {
    [n, 0x1000 + n, n, 0xabc]
}

fn check(header: &Header, bytes: &[u8]) {
    assert_eq!(header.to_xdr(), bytes);
    assert_eq!(header.encoded_len(), bytes.len());
    assert_eq!(Header::parse(bytes), Ok((header.clone(), bytes.len())));
}

//= RFC 8166, Section 4
//= type=test
//# All RPC-over-RDMA header content is contained in the Transport stream; thus, it MUST be XDR
//# encoded.
//= RFC 8166, Section 4.2.2
//= type=test
//# For RPC-over-RDMA version 1, this field MUST contain the value one (1).
#[test]
fn no_chunks_are_three_zeroes() {
    let header = Header::new(0x1234_5678, 32, Body::Msg(ChunkLists::default()));
    check(&header, &words(&[0x1234_5678, 1, 32, 0, 0, 0, 0]));
    assert_eq!(header.encoded_len(), MIN_HEADER_LEN);
}

//= RFC 8166, Section 2.3.2
//= type=test
//# The RPC-over-RDMA version 1 protocol assumes that each region [...]
#[test]
fn read_list_is_1_phloo_and_0() {
    let reads = [(0, 1), (0, 2), (0, 3)]
        .map(|(position, n)| ReadSegment {
            position,
            target: segment(n),
        })
        .into_iter()
        .collect();
    let header = Header::new(
        7,
        1,
        Body::NoMsg(ChunkLists {
            reads,
            ..Default::default()
        }),
    );
    let expected = [
        &[7, 1, 1, 1][..],
        &[1, 0],
        &hloo(1),
        &[1, 0],
        &hloo(2),
        &[1, 0],
        &hloo(3),
        &[0, 0, 0],
    ]
    .concat();
    check(&header, &words(&expected));
}

#[test]
fn write_list_is_1_n_hloo_and_0() {
    let chunk = |range: std::ops::Range<u32>| range.map(segment).collect::<WriteChunk>();
    let header = Header::new(
        7,
        1,
        Body::Msg(ChunkLists {
            writes: [chunk(1..4), chunk(4..6)].into_iter().collect(),
            ..Default::default()
        }),
    );
    let expected = [
        &[7, 1, 1, 0, 0][..],
        &[1, 3],
        &hloo(1),
        &hloo(2),
        &hloo(3),
        &[1, 2],
        &hloo(4),
        &hloo(5),
        &[0, 0],
    ]
    .concat();
    check(&header, &words(&expected));
}

#[test]
fn reply_chunk_is_1_n_hloo() {
    let header = Header::new(
        7,
        1,
        Body::NoMsg(ChunkLists {
            reply: Some([segment(1), segment(2)].into_iter().collect()),
            ..Default::default()
        }),
    );
    let expected = [&[7, 1, 1, 1, 0, 0, 1, 2][..], &hloo(1), &hloo(2)].concat();
    check(&header, &words(&expected));
}

#[test]
fn errors_and_retired_procedures() {
    check(&Header::err_chunk(9, 4), &words(&[9, 1, 4, 4, 2]));
    let vers = Body::Error(ErrorBody::ErrVers { low: 1, high: 1 });
    check(&Header::new(9, 4, vers), &words(&[9, 1, 4, 4, 1, 1, 1]));
    let other = Body::Error(ErrorBody::Other(9));
    check(&Header::new(9, 4, other), &words(&[9, 1, 4, 4, 9]));
    let padded = Body::MsgP {
        align: 64,
        threshold: 1024,
        chunks: ChunkLists::default(),
    };
    check(
        &Header::new(9, 4, padded),
        &words(&[9, 1, 4, 2, 64, 1024, 0, 0, 0]),
    );
    let done = Header::new(9, 4, Body::Done);
    assert_eq!(done.to_xdr(), words(&[9, 1, 4, 3]));
    // Bytes after it do not belong to it; alone it is too short, and discarded as well.
    let long = words(&[9, 1, 4, 3, 0, 0, 0]);
    assert_eq!(Header::parse(&long), Ok((done, 16)));
    assert_eq!(Header::parse(&long[..16]), Err(HeaderError::TooShort(16)));
}

//= RFC 8166, Section 4.5.2
//= type=test
//# If the rdma_vers field contains a recognized value, but [...]
#[test]
fn short_messages_are_told_from_malformed_ones() {
    let bytes = words(&[9, 1, 4, 0, 0, 0, 0]);
    for len in 0..bytes.len() {
        assert_eq!(
            Header::parse(&bytes[..len]),
            Err(HeaderError::TooShort(len))
        );
    }
    // A read list without an end.
    let bytes = words(&[9, 1, 4, 0, 1, 0, 0]);
    let error = Header::parse(&bytes).unwrap_err();
    assert!(matches!(error, HeaderError::Malformed(..)), "{error:?}");
    assert_eq!(error.answer(3), Some(Header::err_chunk(9, 3)));
}

//= RFC 8166, Section 4.5
//= type=test
//# The rdma_xid field MUST contain the same XID that was in the rdma_xid field in the failing
//# request;
//# The rdma_vers field MUST contain the same version that [...]
//# The rdma_proc field MUST contain the value RDMA_ERROR; and
#[test]
fn an_unknown_version_is_answered_in_kind() {
    let error = Header::parse(&words(&[9, 2, 4, 77, 5, 6, 7])).unwrap_err();
    assert!(matches!(error, HeaderError::UnsupportedVersion(_)));
    let answer = error.answer(3).unwrap();
    assert_eq!(answer.to_xdr(), words(&[9, 2, 3, 4, 1, 1, 1]));
    // That answer is understood, although it has another version.
    assert_eq!(Header::parse(&answer.to_xdr()), Ok((answer, 28)));
}

//= RFC 8166, Section 4.2.4
//= type=test
//# A Responder MUST silently discard RDMA_ERROR procedures.
//= RFC 8166, Section 4.5
//= type=test
//# A receiver MUST silently discard an RDMA_ERROR procedure that it cannot decode.
#[test]
fn errors_are_never_answered() {
    for message in [words(&[9, 1, 4, 4, 1, 1]), words(&[9, 5, 4, 4, 2, 0, 0])] {
        assert_eq!(Header::parse(&message).unwrap_err().answer(1), None);
    }
}

#[test]
fn empty_and_unused_chunks_are_taken() {
    // Drafts returned an unused chunk with no segments; the RFC returns empty segments.
    for chunk in [&[1, 0][..], &[1, 1, 5, 0, 0, 8]] {
        let message = words(&[&[9, 1, 4, 0, 0][..], chunk, &[0, 0]].concat());
        let (header, len) = Header::parse(&message).unwrap();
        assert_eq!(len, message.len());
        assert!(header.chunks().unwrap().writes[0].is_empty());
    }
}

//= RFC 8166, Section 3.4.5
//= type=test
//# The value in this field MUST be a multiple of four.
//= RFC 8166, Section 4.2.4
//= type=test
//# Though any of these MAY be marked as not [...]
#[test]
fn contradictions_are_errors() {
    let nothing = words(&[9, 1, 4, 1, 0, 0, 0]);
    let askew = words(&[9, 1, 4, 0, 1, 6, 1, 1, 0, 0, 0, 0, 0]);
    let boolean = words(&[9, 1, 4, 0, 2, 0, 0]);
    let procedure = words(&[9, 1, 4, 5, 0, 0, 0]);
    for message in [nothing, askew, boolean, procedure] {
        let error = Header::parse(&message).unwrap_err();
        assert!(matches!(error, HeaderError::Malformed(..)), "{error:?}");
    }
}

#[test]
fn counts_are_bounded() {
    // A count that exceeds the message, and one that exceeds the bound but not the message.
    let mut huge = words(&[9, 1, 4, 0, 0, 1, u32::MAX]);
    huge.resize(huge.len() + 16, 0);
    assert!(Header::parse(&huge).is_err());
    let segments = |n: usize| {
        let chunk = (0..n as u32).map(segment).collect::<WriteChunk>();
        let lists = ChunkLists {
            reply: Some(chunk),
            ..Default::default()
        };
        Header::new(1, 1, Body::Msg(lists)).to_xdr()
    };
    assert!(Header::parse(&segments(MAX_SEGMENTS - 1)).is_ok());
    assert!(Header::parse(&segments(MAX_SEGMENTS)).is_err());
    // Empty Write chunks are counted, too.
    let mut empties = words(&[9, 1, 4, 0, 0]);
    for _ in 0..=MAX_SEGMENTS {
        empties.extend(words(&[1, 0]));
    }
    empties.extend(words(&[0, 0]));
    assert!(Header::parse(&empties).is_err());
}

#[test]
fn the_length_of_a_chunk_is_that_of_its_segments() {
    let chunk: WriteChunk = [segment(1), segment(2)].into_iter().collect();
    assert_eq!((chunk.len(), chunk.is_empty()), (0x2003, false));
    let unused = |segment| Segment {
        length: 0,
        ..segment
    };
    let chunk: WriteChunk = [unused(segment(1))].into_iter().collect();
    assert_eq!((chunk.len(), chunk.is_empty()), (0, true));
}

/// Before memory is taken for them.
#[test]
fn segments_that_are_missing_are_noticed_by_their_number() {
    // A Write chunk of three segments, of which there are two and a half.
    let mut bytes = words(&[1, 1, 1, 0, 0, 1, 3]);
    bytes.extend(words(&[1; 10]));
    match Header::parse(&bytes) {
        Err(HeaderError::Malformed(_, error)) => {
            assert_eq!(error, DecodeError::Truncated { at: 28, wanted: 8 });
        }
        other => panic!("{other:?}"),
    }
}
