//! Exposed memory: permitted accesses work, all others end the connection.

use super::harness::{Bench, End, finish, part, pattern};
use nfsrdma_rdma::{
    Completion, Error, Exposure, Handle, Memory, RemoteSegment, WorkId, WorkRequest,
};
use smallvec::smallvec;
use std::collections::HashSet;

//= RFC 5040, Section 8.1.1
//= type=test
//# An RNIC MUST provide a mechanism for the ULP to establish and revoke the [...]
//= RFC 5041, Section 8.3
//= type=test
//# DDP MUST provide a mechanism for the ULP to establish and revoke the [...]
//= RFC 5041, Section 8.3.1
//= type=test
//# An RNIC MUST provide a mechanism for the ULP to establish and revoke the [...]
/// Segments cover the memory in order, and handles that are in use differ.
pub fn an_exposure_names_its_memory(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    let lens = [4096, 1, 70_000, 333];
    let mut handles = HashSet::new();
    let mut exposures = Vec::new();
    for round in 0..8 {
        let exposure = if round % 2 == 0 {
            a.expose_sink(&b, &lens, 1)
        } else {
            a.expose_source(&b, &lens, &pattern(lens.iter().sum(), 1))
        };
        let segments = exposure.segments();
        if a.qp.capabilities().scatter_handle {
            assert_eq!(segments.len(), 1);
            assert_eq!(segments[0].length as usize, lens.iter().sum::<usize>());
        } else {
            let lengths: Vec<_> = segments.iter().map(|s| s.length as usize).collect();
            assert_eq!(lengths, lens);
        }
        for segment in segments {
            assert!(handles.insert(segment.handle), "a handle is given once");
        }
        exposures.push(exposure);
    }
    for exposure in exposures {
        a.take_back(exposure);
    }
    for empty in [
        Memory::Sink(smallvec![]),
        Memory::Source(smallvec![]),
        Memory::Sink(smallvec![a.alloc(10), a.alloc(0)]),
    ] {
        let count = empty.len();
        let (error, memory) = a.qp.expose(empty).unwrap_err();
        assert!(matches!(error, Error::Misuse(_)));
        assert_eq!(memory.len(), count, "the memory comes back");
    }
    finish(a, b);
}

const SIZES: [usize; 13] = [
    0, 1, 3, 4, 5, 1460, 4095, 4096, 4097, 65_535, 65_537, 1_048_576, 1_048_579,
];

//= RFC 5041, Section 4.1
//= type=test
//# If set to one, the ULP Payload carried in this DDP Segment MUST be Placed into a Tagged Buffer.
/// RDMA Writes of many sizes at odd offsets, across buffers, which change no other byte.
pub fn writes_of_every_size_are_placed(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    for (n, size) in SIZES.into_iter().enumerate() {
        for offset in [0, 1, 4093 + 2 * n] {
            let end = offset + size + 7;
            let lens = if end > 20_000 {
                vec![8192, end - 8192]
            } else {
                vec![end]
            };
            let exposure = b.expose_sink(&a, &lens, 0xa5);
            let data = pattern(size, n as u64);
            a.write(&part(exposure.segments(), offset, size), &data);
            a.send(b"written");
            assert_eq!(b.receive().1, b"written");
            let found = b.take_back(exposure);
            assert!(
                found[..offset].iter().all(|&byte| byte == 0xa5),
                "{size} before"
            );
            assert!(found[offset..offset + size] == data, "{size} at {offset}");
            assert!(
                found[offset + size..].iter().all(|&byte| byte == 0xa5),
                "{size} after"
            );
        }
    }
    finish(a, b);
}

//= RFC 5040, Section 4.4
//= type=test
//# This field MUST be copied, without interpretation, from the [...]
/// RDMA Reads of the same sizes and offsets.
pub fn reads_of_every_size_are_filled(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    let total = 4093 + 26 + (1 << 20) + 3;
    let data = pattern(total, 77);
    let exposure = b.expose_source(&a, &[8191, total - 8191], &data);
    for (n, size) in SIZES.into_iter().enumerate() {
        for offset in [0, 1, 4093 + 2 * n] {
            let got = a.read(&part(exposure.segments(), offset, size));
            assert!(got == data[offset..offset + size], "{size} at {offset}");
        }
    }
    assert!(b.take_back(exposure) == data, "the source is as it was");
    finish(a, b);
}

/// A Write gathers from any list of buffers, a Read scatters into one.
pub fn writes_gather_and_reads_scatter(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    let lens = [
        1, 4096, 0, 3, 10_001, 5, 7, 4096, 2, 1, 1, 1000, 3, 3, 40_000, 9,
    ];
    let data = pattern(lens.iter().sum(), 4);
    let sink = b.expose_sink(&a, &[data.len()], 0);
    let mut rest = &data[..];
    let source = lens
        .iter()
        .map(|&len| {
            let (now, later) = rest.split_at(len);
            rest = later;
            a.buf(now)
        })
        .collect();
    a.post(WorkRequest::Write {
        id: WorkId(1),
        source,
        target: sink.segments()[0],
        signaled: true,
    });
    a.wait("Written", |c| {
        matches!(c, Completion::Written { id: WorkId(1) })
    });
    a.send(b"");
    b.receive();
    assert!(b.take_back(sink) == data);

    let source = b.expose_source(&a, &[data.len()], &data);
    a.post(WorkRequest::Read {
        id: WorkId(2),
        sink: lens.iter().map(|&len| a.alloc(len)).collect(),
        source: source.segments()[0],
    });
    let done = a.wait("Read", |c| {
        matches!(c, Completion::Read { id: WorkId(2), .. })
    });
    let Completion::Read { sink, .. } = done else {
        unreachable!("it was matched");
    };
    let got: Vec<_> = sink.iter().map(|buf| buf.len()).collect();
    assert_eq!(got, lens, "the same buffers come back");
    assert!(
        sink.iter()
            .flat_map(|buf| buf.to_vec())
            .eq(data.iter().copied())
    );
    drop(sink);
    b.take_back(source);
    finish(a, b);
}

/// Exposes memory that `peer` may read or write.
fn exposed(end: &End, peer: &End, read: bool) -> Exposure {
    match read {
        true => end.expose_source(peer, &[1000], &[1; 1000]),
        false => end.expose_sink(peer, &[1000], 1),
    }
}

/// Makes an access that the peer's device refuses. Both ends must get an error, the memory must be
/// unchanged, and posted requests must complete or be flushed.
fn refused(bench: &Bench<'_>, doing: impl FnOnce(&End, &End) -> RemoteSegment, read: bool) {
    let (a, b) = bench.pair();
    let target = doing(&a, &b);
    let len = target.length as usize;
    let (write_id, read_id) = (a.id(), a.id());
    if read {
        a.post(WorkRequest::Read {
            id: read_id,
            sink: smallvec![a.alloc(len)],
            source: target,
        });
        let done = a.wait("the end of the Read", |c| {
            matches!(c, Completion::Read { id, .. } | Completion::Flushed { id, .. } if *id == read_id)
        });
        let Completion::Flushed { memory, .. } = done else {
            panic!("the Read was allowed: {target:?}");
        };
        assert_eq!(memory.unwrap().len(), len, "the sink comes back");
    } else {
        a.post(WorkRequest::Write {
            id: write_id,
            source: smallvec![a.buf(&vec![0x5a; len])],
            target,
            signaled: true,
        });
    }
    let of_b = b.ended(1);
    let of_a = a.ended(1);
    for error in [of_a, of_b] {
        assert!(
            matches!(
                error,
                Error::PeerMisbehaved(_) | Error::PeerReported(_) | Error::LinkLost(_)
            ),
            "{error:?}"
        );
    }
    let written = a
        .rest()
        .iter()
        .filter(|c| match c {
            // A Write may complete locally before the peer refuses it (RFC 5040 section 5.5, rule
            // 9), or be flushed.
            Completion::Written { id } | Completion::Flushed { id, .. } => *id == write_id,
            _ => false,
        })
        .count();
    assert_eq!(written, usize::from(!read), "one completion");
    finish(a, b);
}

//= RFC 8166, Section 8.1
//= type=test
//# The use of an RPC-over-RDMA transport protocol MUST NOT [...]
//= RFC 5041, Section 8.3
//= type=test
//# DDP MUST provide a mechanism for the ULP to establish and revoke STag validity.
/// After `invalidate` the peer has no access.
pub fn an_invalidated_handle_is_refused(bench: &Bench<'_>) {
    for read in [false, true] {
        refused(
            bench,
            |a, b| {
                let exposure = exposed(b, a, read);
                let segment = exposure.segments()[0];
                b.take_back(exposure);
                segment
            },
            read,
        );
    }
}

/// After a Send with Invalidate the peer has no access.
pub fn a_remotely_invalidated_handle_is_refused(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    let supported = b.qp.capabilities().remote_invalidate;
    finish(a, b);
    if !supported {
        println!(
            "skipped: {} has no remote invalidation",
            bench.provider.name()
        );
        return;
    }
    refused(
        bench,
        |a, b| {
            let exposure = b.expose_sink(a, &[1000], 1);
            let segment = exposure.segments()[0];
            a.send_invalidating(segment.handle, b"");
            assert_eq!(b.receive_any().2, Some(segment.handle));
            // Without `invalidate`, because the handle must already be invalid.
            drop(exposure);
            segment
        },
        false,
    );
}

//= RFC 5040, Section 7.2
//= type=test
//# The STag MUST be associated to this RDMAP Stream.
//# The Data Source STag MUST be associated to this RDMAP Stream.
//= RFC 5040, Section 8.1.1
//= type=test
//# An RNIC MUST ensure that a specific Stream in [...]
//# An RNIC MUST ensure that if an STag is [...]
//= RFC 5041, Section 8.2
//= type=test
//# In this case, for an incoming DDP Segment of [...]
//= RFC 5041, Section 8.3
//= type=test
//# DDP MUST provide a mechanism for the ULP to communicate [...]
//= RFC 5041, Section 8.3.1
//= type=test
//# An RNIC MUST ensure that a specific DDP Stream [...]
//# An RNIC MUST ensure that if an STag is [...]
/// A handle of one connection is invalid in another one, even of the same process, and its own
/// connection is not affected.
pub fn a_handle_is_good_for_one_connection(bench: &Bench<'_>) {
    let (c, d) = bench.pair();
    let sink = d.expose_sink(&c, &[1000], 1);
    let source = d.expose_source(&c, &[1000], &[2; 1000]);
    refused(bench, |_, _| sink.segments()[0], false);
    refused(bench, |_, _| source.segments()[0], true);
    c.write(sink.segments(), &[3; 1000]);
    assert_eq!(c.read(source.segments()), [2; 1000]);
    c.send(b"");
    d.receive();
    assert_eq!(d.take_back(sink), [3; 1000]);
    d.take_back(source);
    finish(c, d);
}

//= RFC 5041, Section 7.1
//= type=test
//# If the DDP layer detects any of the receive errors listed in this section, [...]
/// One byte too many at the end, one before the beginning, and an offset that wraps.
pub fn bounds_are_checked(bench: &Bench<'_>) {
    for read in [false, true] {
        let beside: [fn(&mut RemoteSegment); 4] = [
            |s| s.offset += 1,
            |s| s.offset = s.offset.wrapping_sub(1),
            |s| s.offset = u64::MAX - 3,
            |s| s.length += 1,
        ];
        for beside in beside {
            refused(
                bench,
                |a, b| {
                    // Dropped, so that it stays exposed.
                    let mut segment = exposed(b, a, read).segments()[0];
                    beside(&mut segment);
                    segment
                },
                read,
            );
        }
    }
}

//= RFC 5040, Section 8.1.1
//= type=test
//# An RNIC MUST provide a mechanism for the ULP to establish and revoke read, [...]
//= RFC 5041, Section 8.3.1
//= type=test
//# An RNIC MUST provide a mechanism for the ULP to establish and revoke read, [...]
/// A sink cannot be read.
pub fn a_sink_is_not_read(bench: &Bench<'_>) {
    refused(
        bench,
        |a, b| b.expose_sink(a, &[100], 1).segments()[0],
        true,
    );
}

/// A source cannot be written, and remains unchanged.
pub fn a_source_is_not_written(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    let source = b.expose_source(&a, &[100], &[1; 100]);
    a.post(WorkRequest::Write {
        id: WorkId(1),
        source: smallvec![a.buf(&[9; 100])],
        target: source.segments()[0],
        signaled: false,
    });
    b.ended(1);
    a.ended(1);
    assert_eq!(b.take_back(source), [1; 100]);
    finish(a, b);
}

/// A handle that was never assigned is refused.
pub fn an_unknown_handle_is_refused(bench: &Bench<'_>) {
    for read in [false, true] {
        let unknown = RemoteSegment {
            handle: Handle(0x5eed_f00d),
            length: 1,
            offset: 0,
        };
        refused(bench, |_, _| unknown, read);
    }
}

/// After the end, exposing and invalidating still return the memory.
pub fn nothing_is_exposed_after_the_end(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    let before = a.expose_sink(&b, &[5000, 10], 3);
    b.qp.disconnect();
    a.ended(1);
    assert_eq!(a.take_back(before), [3; 5010]);
    match a.qp.expose(Memory::Source(smallvec![a.buf(&[4; 10])])) {
        Ok(exposure) => assert_eq!(a.take_back(exposure), [4; 10]),
        Err((_, memory)) => assert_eq!(memory.len(), 10),
    }
    finish(a, b);
}

/// An exposure that was dropped too early keeps its memory out of the pool while the peer can
/// access it, so that no other data are overwritten.
pub fn a_dropped_exposure_keeps_its_memory(bench: &Bench<'_>) {
    let (a, b) = bench.pair();
    let before = b.pool.free_bytes();
    let exposure = b.expose_sink(&a, &[4096], 0);
    let segment = exposure.segments()[0];
    drop(exposure);
    a.write(&[segment], &[1; 4096]);
    a.send(b"");
    b.receive();
    assert_eq!(b.pool.free_bytes(), before - 4096);
    finish(a, b);
}
