//! `trace`, `profile` and `capture`: a mount's calls and messages as they happen, by its control socket.
//!
//! The serving process only passes on the events of the transport's [`Tap`]. The commands format
//! them, with the rights of the user who runs them.

mod arguments;
pub(super) mod capture;
mod context;
mod frame;
mod line;
pub(super) mod load;
mod packet;
pub(super) mod profile;
pub(super) mod trace;

pub(super) use context::FindPath;

use crate::ipc::control::Feed;
use crate::nearest::nearest;
use context::Context;
use nfsrdma_rpcrdma::tap::{Event, Filter, Interest, Listener, Tap};
use nfsrdma_xdr::nfs3::ProcedureNumber;
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::{nfs_acl, nlm4};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The approximate number of bytes written at a time.
const BATCH: usize = 64 << 10;

/// The first line of a feed.
const GREETING: &str = concat!("nfsrdma ", env!("CARGO_PKG_VERSION"));

/// The procedures of other programs than NFS that can be chosen by name. The transport only reports
/// the procedures of other programs as a whole, and the command filters them.
const SIDE: [&str; 6] = [
    nfs_acl::Getacl::NAME,
    nfs_acl::Setacl::NAME,
    nlm4::Test::NAME,
    nlm4::LockRange::NAME,
    nlm4::Cancel::NAME,
    nlm4::Unlock::NAME,
];
/// The number that stands for all procedures of other programs.
const OTHER: u32 = ProcedureNumber::COUNT as u32;

/// Parses a procedure's name for clap. [`SIDE`] follows the numbers of [`Filter::procedures`].
pub fn procedure(name: &str) -> Result<u32, String> {
    let name = name.to_ascii_uppercase();
    if name == "OTHER" {
        return Ok(OTHER);
    }
    if let Some(at) = SIDE.iter().position(|side| *side == name) {
        return Ok(OTHER + 1 + at as u32);
    }
    ProcedureNumber::ALL
        .iter()
        .find(|number| number.label() == name)
        .map(|number| *number as u32)
        .ok_or_else(|| {
            let of_nfs = ProcedureNumber::ALL.iter().map(|number| number.label());
            let all: Vec<_> = of_nfs.chain(SIDE).chain(["OTHER"]).collect();
            let none = "no procedure of NFS version 3, NFS_ACL or NLM";
            match nearest(&name, all.iter().copied()) {
                Some(meant) => format!("{none}; did you mean '{meant}'?"),
                None => format!("{none}: use one of {}", all.join(", ")),
            }
        })
}

/// Whether the user asked for the procedure with this name, as a line has it.
fn is_asked_for(asked: &[u32], name: &str) -> bool {
    let of_nfs = || ProcedureNumber::ALL.iter().any(|of| of.label() == name);
    asked.is_empty()
        || asked.iter().any(|number| match number.checked_sub(OTHER) {
            None => ProcedureNumber::ALL[*number as usize].label() == name,
            Some(0) => !of_nfs(),
            Some(side) => SIDE[side as usize - 1] == name,
        })
}

/// `trace PROCEDURES ERRORS MILLISECONDS TRANSMISSIONS`
fn trace_request(filter: &Filter) -> String {
    format!(
        "trace {} {} {} {}",
        filter.procedures,
        u8::from(filter.errors),
        filter.slow.as_millis(),
        u8::from(filter.transmissions)
    )
}

/// `capture BYTES`
fn capture_request(limit: usize) -> String {
    format!("capture {limit}")
}

/// A function that appends the encoding of an event.
type Encode = fn(&Event, &mut Context, &mut Vec<u8>);

fn frame_of(event: &Event, _: &mut Context, to: &mut Vec<u8>) {
    frame::encode(event, to);
}

/// Parses a request: what to listen to, how to encode it, and the end of the stream.
fn parse(request: &str) -> Option<(Interest, Encode, Vec<u8>)> {
    let mut words = request.split(' ');
    let name = words.next()?;
    let numbers: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
    match (name, &numbers[..]) {
        ("trace", &[procedures, errors, slow, transmissions]) => {
            let filter = Filter {
                procedures: procedures.try_into().ok()?,
                errors: errors != 0,
                slow: Duration::from_millis(slow),
                transmissions: transmissions != 0,
            };
            Some((Interest::Calls(filter), line::encode, line::end()))
        }
        ("capture", &[limit]) => {
            let limit = limit.try_into().ok()?;
            Some((Interest::Messages { limit }, frame_of, frame::end()))
        }
        _ => None,
    }
}

/// Returns the feed for a request; `None` if the request is another one.
///
/// `paths` finds the path of a handle.
pub(super) fn answer(tap: &Arc<Tap>, paths: FindPath, request: &str) -> Option<Feed> {
    let (interest, encode, end) = parse(request)?;
    let tap = tap.clone();
    Some(Box::new(move |stream| {
        Box::pin(async move {
            let mut listener = tap.listen(interest);
            let mut context = Context::new(paths);
            let (mut from, mut to) = stream.into_split();
            // This reads only to notice that the client is gone. What the client sends is ignored.
            let gone = async {
                let mut word = [0; 64];
                while from.read(&mut word).await.is_ok_and(|n| n > 0) {}
            };
            tokio::select! {
                _ = feed(&mut listener, (encode, &mut context), end, &mut to) => {}
                () = gone => {}
            }
        })
    }))
}

async fn feed(
    listener: &mut Listener,
    (encode, context): (Encode, &mut Context),
    end: Vec<u8>,
    to: &mut (impl AsyncWriteExt + Unpin),
) -> io::Result<()> {
    let mut bytes = format!("{GREETING}\n").into_bytes();
    // When the client reads the greeting, it knows that events are reported from then on.
    to.write_all(&bytes).await?;
    while let Some(event) = listener.next().await {
        bytes.clear();
        encode(&event, context, &mut bytes);
        while bytes.len() < BATCH {
            let Some(event) = listener.try_next() else {
                break;
            };
            encode(&event, context, &mut bytes);
        }
        to.write_all(&bytes).await?;
    }
    to.write_all(&end).await?;
    to.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        let filter = Filter {
            procedures: 1 << 6 | 1 << 22,
            errors: true,
            slow: Duration::from_millis(7),
            transmissions: false,
        };
        let request = trace_request(&filter);
        assert_eq!(request, "trace 4194368 1 7 0");
        let (interest, ..) = parse(&request).unwrap();
        assert_eq!(interest, Interest::Calls(filter));
        let (interest, ..) = parse(&capture_request(96)).unwrap();
        assert_eq!(interest, Interest::Messages { limit: 96 });
        for wrong in [
            "",
            "trace",
            "trace 1 1 1",
            "capture",
            "capture x",
            "capture 1 2",
            "stats",
        ] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn procedures_by_name() {
        assert_eq!(procedure("READ"), Ok(6));
        assert_eq!(procedure("readdirplus"), Ok(17));
        assert_eq!(procedure("OTHER"), Ok(22));
        assert!(procedure("OPEN").is_err());
        let lock = procedure("lock").unwrap();
        let read = procedure("READ").unwrap();
        assert!(is_asked_for(&[], "LOCK") && is_asked_for(&[read, lock], "LOCK"));
        assert!(!is_asked_for(&[lock], "UNLOCK") && !is_asked_for(&[read], "LOCK"));
        assert!(is_asked_for(&[OTHER], "LOCK") && !is_asked_for(&[OTHER], "READ"));
        for name in SIDE {
            assert!(is_asked_for(&[procedure(name).unwrap()], name));
        }
    }
}
