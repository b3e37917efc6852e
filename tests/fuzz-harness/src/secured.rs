//! Replies under RPCSEC_GSS.

use crate::tokens::{changed, peers};
use nfsrdma_gss::support::Peer;
use nfsrdma_rpcrdma::security::{Broken, SecurityContext, Service, open_reply};
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder};
use nfsrdma_xdr::rpc::{Accepted, Reply, ReplyBody};
use nfsrdma_xdr::rpcsec_gss::{integrity_head, verifier};
use std::ops::Range;
use std::time::SystemTime;

const XID: u32 = 0x1234_5678;
/// With which the call was sent.
const NUMBERS: [u32; 3] = [5, 9, 700];

#[derive(Debug)]
struct Context(&'static Peer, Service);

impl SecurityContext for Context {
    fn handle(&self) -> &[u8] {
        &[1]
    }

    fn service(&self) -> Service {
        self.1
    }

    fn window(&self) -> u32 {
        128
    }

    fn expires(&self) -> Option<SystemTime> {
        None
    }

    fn mic_len(&self) -> usize {
        self.0.mic_len()
    }

    fn wrap_overhead(&self) -> usize {
        self.0.wrap_overhead()
    }

    fn mic(&self, message: &[&[u8]], mic: &mut [u8]) -> Result<(), Broken> {
        self.0.mic(message, mic);
        Ok(())
    }

    fn verify(&self, message: &[u8], mic: &[u8]) -> bool {
        self.0.is_mic(message, mic)
    }

    fn wrap(&self, message: &[&[u8]], wrapped: &mut [u8]) -> Result<(), Broken> {
        let wrapped = self.0.wrap(message, wrapped);
        wrapped.ok_or_else(|| Broken("no room".into()))
    }

    fn unwrap(&self, wrapped: &mut [u8]) -> Option<Range<usize>> {
        self.0.unwrap(wrapped)
    }
}

fn mic(server: &Peer, message: &[u8]) -> Vec<u8> {
    let mut mic = vec![0; server.mic_len()];
    server.mic(&[message], &mut mic);
    mic
}

/// The header of a genuine reply to the call with this number.
fn header(server: &Peer, number: u32) -> Vec<u8> {
    let mic = mic(server, &number.to_be_bytes());
    let body = ReplyBody::Accepted(verifier(&mic), Accepted::Success);
    Reply { xid: XID, body }.to_xdr()
}

/// A genuine reply with these results, a multiple of four bytes.
fn genuine(
    server: &Peer,
    service: Service,
    header_of: u32,
    number: u32,
    results: &[u8],
) -> Vec<u8> {
    let mut to = Encoder::new(header(server, header_of));
    match service {
        Service::None => to.opaque_fixed(results),
        Service::Integrity => {
            let head = integrity_head(number, results.len());
            let data = [&head[4..], results].concat();
            to.opaque(&data);
            to.opaque(&mic(server, &data));
        }
        Service::Privacy => {
            let data = [&number.to_be_bytes()[..], results].concat();
            let mut wrapped = vec![0; data.len() + server.wrap_overhead()];
            assert!(server.wrap(&[&data], &mut wrapped).is_some());
            to.opaque(&wrapped);
        }
    }
    to.into_vec()
}

/// Opens replies. The first byte says under what, and whether the others are a reply, a body after a genuine header,
/// results that the server protects, or changes to a genuine reply and its results.
pub fn secured(bytes: &[u8]) {
    let Some((&kind, input)) = bytes.split_first() else {
        return;
    };
    let [client, server] = peers(kind);
    let service = Service::ALL[usize::from(kind >> 4) % Service::ALL.len()];
    let words = &input[..input.len() / 4 * 4];
    let number = NUMBERS[1];
    // What was made, and the results if they are all that may come of it.
    let (mut reply, results) = match kind >> 2 & 3 {
        0 => (input.to_vec(), None),
        1 => ([header(server, number), input.to_vec()].concat(), None),
        2 => {
            let (first, results) = words.split_first_chunk().unwrap_or((&[0; 4], words));
            // Small numbers are more often those of the call.
            let given = u32::from_be_bytes(*first) % 1024;
            let reply = genuine(server, service, number, given, results);
            let right = given == number || service == Service::None;
            (reply, right.then_some((results, true)))
        }
        _ => {
            let whole = |rest: &[u8]| rest.len() / 4 * 4;
            let (reply, rest) = changed(input, |rest| {
                genuine(server, service, number, number, &rest[..whole(rest)])
            });
            let protected = service != Service::None;
            (reply, protected.then_some((&rest[..whole(rest)], false)))
        }
    };
    let len = reply.len();
    let opened = open_reply(&Context(client, service), &mut reply, XID, &NUMBERS);
    let Some(place) = opened else {
        assert!(!results.is_some_and(|(_, certain)| certain), "refused");
        return;
    };
    let mut from = Decoder::new(&reply[place.clone()]);
    let found = Reply::decode(&mut from).map(|header| header.body);
    match found {
        Ok(ReplyBody::Accepted(_, Accepted::Success)) => match (kind >> 2 & 3, results) {
            (0, _) => panic!("nobody made this"),
            (1, _) => assert_eq!(service, Service::None, "nobody made this"),
            (_, Some((results, _))) => assert_eq!(from.rest(), results),
            (_, None) => assert_eq!(service, Service::None, "another number"),
        },
        // The reply as it came.
        Ok(_) => assert_eq!(place, 0..len),
        Err(_) => panic!("not a reply"),
    }
}
