//! Any work arrives over a stream cut anywhere. The fuzz target `stream` gives the receiver any input.

use super::peer::{Got, Peer, without_markers};
use nfsrdma_iwarp::proto::segment::Segmenter;
use nfsrdma_iwarp::proto::stag::Access;
use nfsrdma_rdma::{Pool, WorkId};
use proptest::prelude::*;
use smallvec::smallvec;

#[derive(Debug, Clone)]
enum Op {
    Send(usize),
    Invalidate,
    Write(usize, usize),
    Read(usize, usize),
}

const AREA: usize = 20_000;

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0usize..5000).prop_map(Op::Send),
        Just(Op::Invalidate),
        (0usize..AREA, 0usize..AREA).prop_map(|(at, n)| Op::Write(at, n)),
        (0usize..AREA, 0usize..AREA).prop_map(|(at, n)| Op::Read(at, n)),
    ]
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i * 7 + seed * 13 + (i >> 8)) as u8)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(4)))]

    //= RFC 5040, Section 3.1
    //= type=test
    //# RDMAP MUST be layered on top of the Direct Data Placement Protocol [DDP].
    //= RFC 5040, Section 5.2
    //= type=test
    //# The RDMA Read operation MUST consist of a single [...]
    //= RFC 5040, Section 5.2.1
    //= type=test
    //# The Remote Peer's RDMAP layer MUST process an RDMA Read Request Message.
    //# A valid RDMA Read Request Message MUST NOT be [...]
    //# If the Data Source receives a valid RDMA Read [...]
    //= RFC 5040, Section 5.5
    //= type=test
    //# RDMA Read Request Messages, including zero-length RDMA Read Requests, [...]
    //# RDMA Read Response Message processing at the Remote Peer [...]
    //= RFC 5040, Section 6.1
    //= type=test
    //# Once in RDMA enabled mode, an implementation MUST send [...]
    //= RFC 5041, Section 3
    //= type=test
    //# The LLP MUST preserve DDP Segment and Message boundaries at the Data Sink.
    //# On receive, the LLP MUST provide the length of the DDP Segment received.
    //= RFC 5041, Section 5.2
    //= type=test
    //# At the Data Source, the DDP layer MUST send all the data contained in the ULP message.
    //# At the Data Sink, the DDP layer MUST Place [...]
    //= RFC 5041, Section 5.4
    //= type=test
    //# At the Data Sink, DDP MUST Deliver a DDP Message if and only if all of the following are
    //# true:
    //= RFC 5044, Section 4.3
    //= type=test
    //# MPA Receivers MUST preserve ULPDU boundaries when passing data to DDP.
    //# MPA Receivers MUST pass the ULPDU data and the [...]
    //= RFC 5044, Section 5.1
    //= type=test
    //# MPA receivers are REQUIRED to be able to operate [...]
    //= RFC 5044, Section 5.2
    //= type=test
    //# The receivers MUST identify FPDU boundaries by using the [...]
    //= RFC 5044, Section 6
    //= type=test
    //# To detect the start of the FPDU unambiguously one of the following MUST be used:
    //= RFC 5044, Section A.4
    //= type=test
    //# However, MPA receivers MUST NOT depend on FPDU Alignment on TCP segment boundaries.
    /// Both ends work at once, and the streams between them are cut at random.
    #[test]
    fn any_work_cut_anywhere(
        ops in proptest::collection::vec((any::<bool>(), op()), 1..24),
        cuts in proptest::collection::vec(1usize..4000, 1..16),
        crc: bool,
        fpdu in prop_oneof![Just(128usize), Just(1460), Just(65_541), 128usize..9000],
        place_step in prop_oneof![Just(usize::MAX), 1usize..2000],
    ) {
        let pool = Pool::new(16 << 20).unwrap();
        let mut ends = [Peer::new(&pool, crc, fpdu), Peer::new(&pool, crc, fpdu)];
        let areas: Vec<_> = ends.iter().map(|e| e.expose(Access::Write, vec![0; AREA])).collect();
        let sources: Vec<_> = ends
            .iter()
            .map(|e| e.expose(Access::Read, pattern(AREA, 5)))
            .collect();
        let mut models = [vec![0; AREA], vec![0; AREA]];
        let mut expected: [Vec<Got>; 2] = [Vec::new(), Vec::new()];
        let mut reads = Vec::new();
        let mut completions = [0usize; 2];
        for (seed, (first, op)) in ops.iter().enumerate() {
            let (from, to) = if *first { (0, 1) } else { (1, 0) };
            match op {
                Op::Send(len) => {
                    let data = pattern(*len, seed);
                    ends[to].post_receive(5000);
                    ends[from].send(&data, None);
                    expected[to].push(Got::Message(data, None));
                    completions[from] += 1;
                }
                Op::Invalidate => {
                    let (stag, _, _) = ends[to].expose(Access::Write, vec![0; 10]);
                    ends[to].post_receive(10);
                    ends[from].send(b"bye", Some(stag));
                    expected[to].push(Got::Message(b"bye".to_vec(), Some(stag)));
                    completions[from] += 1;
                }
                Op::Write(at, n) => {
                    let n = (*n).min(AREA - at);
                    let data = pattern(n, seed);
                    models[to][*at..at + n].copy_from_slice(&data);
                    let (stag, base, _) = &areas[to];
                    let data = smallvec![ends[from].buf(&data)];
                    let mut queue = ends[from].side.queue.borrow_mut();
                    queue.post_write(WorkId(2), data, *stag, base + *at as u64, true);
                    completions[from] += 1;
                }
                Op::Read(at, n) => {
                    let n = (*n).min(AREA - at);
                    let (stag, base, _) = &sources[to];
                    let sink = ends[from].read(n as u32, *stag, base + *at as u64);
                    reads.push((sink, pattern(AREA, 5)[*at..at + n].to_vec()));
                    expected[from].push(Got::ReadDone);
                    completions[from] += 1;
                }
            }
        }
        for end in &mut ends {
            end.place_step = place_step;
        }
        let mut idle = 0;
        for (turn, cut) in cuts.iter().cycle().enumerate() {
            let (a, b) = ends.split_at_mut(1);
            let (from, to) = if turn % 2 == 0 { (&mut a[0], &mut b[0]) } else { (&mut b[0], &mut a[0]) };
            let bytes = from.output(*cut);
            idle = if bytes.is_empty() { idle + 1 } else { 0 };
            if let Err(fault) = to.input(&bytes) {
                panic!("{fault:?}");
            }
            if idle == 4 {
                break;
            }
        }
        for (at, end) in ends.iter_mut().enumerate() {
            prop_assert!(end.staged.is_empty());
            let queue = end.side.queue.get_mut();
            queue.complete(&mut end.completions);
            prop_assert_eq!(end.completions.len(), completions[at]);
            // Sends keep their order, and so do Reads; the two kinds may be mixed in any order.
            for is_read in [false, true] {
                let kind = |g: &&Got| matches!(g, Got::ReadDone) == is_read;
                let got: Vec<_> = end.got.iter().filter(kind).collect();
                let want: Vec<_> = expected[at].iter().filter(kind).collect();
                prop_assert_eq!(got, want);
            }
            prop_assert!(*areas[at].2.borrow() == models[at]);
        }
        for (sink, want) in reads {
            prop_assert!(*sink.borrow() == want);
        }
    }

    //= RFC 5044, Section 4.3
    //= type=test
    //# When Markers are enabled, MPA senders MUST insert a [...]
    //# FPDUPTR MUST contain the number of octets in the [...]
    //# In this case, the Marker is considered to be [...]
    //# If an FPDU is large enough to contain multiple [...]
    //# If a Marker interval contains multiple FPDUs (the FPDUs [...]
    //= RFC 5044, Section 4.4
    //= type=test
    //# The fields which MUST be included in the CRC calculation when sending an FPDU are as
    //# follows:
    /// With markers, any work arrives at a peer that checks every marker.
    #[test]
    fn markers_where_the_peer_looks_for_them(
        sends in proptest::collection::vec(0usize..5000, 1..12),
        writes in proptest::collection::vec(0usize..AREA, 0..6),
        reads in 0usize..3,
        crc: bool,
        fpdu in prop_oneof![Just(128usize), Just(512), Just(1460), Just(65_541), 128usize..9000],
        cut in 1usize..4000,
    ) {
        let pool = Pool::new(16 << 20).unwrap();
        let mut from = Peer::new(&pool, crc, fpdu);
        from.segmenter = Segmenter::new(crc, true, fpdu);
        let most = from.segmenter.max_fpdu();
        let mut to = Peer::new(&pool, crc, fpdu);
        let (stag, base, area) = to.expose(Access::Write, vec![0; AREA]);
        let (source, source_base, _) = to.expose(Access::Read, vec![1; 100]);
        let mut model = vec![0; AREA];
        let mut expected = Vec::new();
        for (seed, len) in sends.iter().enumerate() {
            to.post_receive(5000);
            from.send(&pattern(*len, seed), None);
            expected.push(Got::Message(pattern(*len, seed), None));
        }
        for (seed, len) in writes.iter().enumerate() {
            let data = pattern(*len, seed);
            model[..*len].copy_from_slice(&data);
            let data = smallvec![from.buf(&data)];
            from.side.queue.borrow_mut().post_write(WorkId(0), data, stag, base, false);
        }
        for _ in 0..reads {
            from.read(100, source, source_base);
        }
        let mut stream = Vec::new();
        loop {
            let bytes = from.output(cut);
            if bytes.is_empty() {
                break;
            }
            stream.extend(bytes);
        }
        let mut plain = &without_markers(&stream, crc)[..];
        to.input(plain).unwrap_or_else(|fault| panic!("{fault:?}"));
        prop_assert_eq!(to.got, expected);
        prop_assert!(*area.borrow() == model);
        // No FPDU, markers included, is longer than the limit.
        while let [high, low, ..] = plain {
            let len = nfsrdma_iwarp::wire::mpa::fpdu_len(usize::from(u16::from_be_bytes([*high, *low])));
            prop_assert!(len + 4 * (len / 508) <= most.max(128), "{len} of {most}");
            plain = &plain[len..];
        }
    }
}
