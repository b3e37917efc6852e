//! The responder's transport headers.

use nfsrdma_responder::rdma::plan::{self, Intake, Limits};

const LIMITS: Limits = Limits {
    argument: 1 << 20,
    message: (1 << 20) + 8192,
    read_segments: 16,
    credits: 32,
};

/// Classifies a transport header, and plans a reply within what it offers.
pub fn intake(bytes: &[u8]) {
    let Some((&sizes, message)) = bytes.split_first() else {
        return;
    };
    let Intake::Call(call) = plan::intake(message, &LIMITS) else {
        return;
    };
    assert!(call.inline.end <= message.len() && call.inline.start <= call.inline.end);
    let (head, payload) = (24 + usize::from(sizes & 15) * 300, usize::from(sizes >> 4));
    for payload in [None, Some(payload * 700)] {
        let planned = plan::reply(call.xid, 1, &call.targets, head, payload, 1024);
        let Ok(planned) = planned else { continue };
        assert!(planned.header.len() <= 1024, "longer than the threshold");
        let lists = call.targets.writes.iter().chain(&call.targets.reply);
        let offered: Vec<_> = lists.flat_map(|chunk| &chunk.segments).collect();
        for push in planned.payload.iter().chain(&planned.message) {
            assert_eq!(push.range.len(), push.target.length as usize);
            let inside = offered.iter().any(|segment| {
                segment.handle == push.target.handle.0
                    && segment.offset == push.target.offset
                    && push.target.length <= segment.length
            });
            assert!(inside, "an RDMA Write to what was not offered");
        }
    }
}
