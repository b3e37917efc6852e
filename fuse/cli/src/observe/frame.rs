//! The stream of `capture`: events encoded in XDR, each preceded by its length in bytes.

use nfsrdma_rpcrdma::tap::{Data, Event, Incoming, Outgoing};
use nfsrdma_xdr::codec::{DecodeError, Decoder, Encode, Encoder};
use nfsrdma_xdr::rpcrdma::{Body, ChunkLists, Header};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

/// Longest event, in bytes.
pub(super) const FRAME_MAX: usize = 64 << 20;

const CONNECTED: u32 = 1;
const DISCONNECTED: u32 = 2;
const OUTGOING: u32 = 3;
const INCOMING: u32 = 4;
const LOST: u32 = 5;
const END: u32 = 6;

/// What the stream consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    Connected(Connected),
    Disconnected { connection: u64, time: SystemTime },
    Outgoing(Outgoing),
    Incoming(Box<Incoming>),
    Lost(u64),
    End,
}

/// The fields of [`nfsrdma_rpcrdma::tap::Connected`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Connected {
    pub(super) connection: u64,
    pub(super) time: SystemTime,
    pub(super) transport: String,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) own_private_data: Vec<u8>,
    pub(super) peer_private_data: Vec<u8>,
    pub(super) greeting: Option<[Vec<u8>; 2]>,
}

/// Bytes that are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error(transparent)]
    Xdr(#[from] DecodeError),
    #[error("{0}")]
    Other(&'static str),
}

type Result<T> = std::result::Result<T, FrameError>;

fn put_time(time: SystemTime, to: &mut Encoder) {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    to.u64(since.as_secs());
    to.u32(since.subsec_nanos());
}

fn put_data(data: &Data, to: &mut Encoder) {
    to.u64(data.length as u64);
    to.opaque(&data.bytes);
}

fn put_some(data: Option<&Data>, to: &mut Encoder) {
    to.bool(data.is_some());
    if let Some(data) = data {
        put_data(data, to);
    }
}

fn put(event: &Event, to: &mut Encoder) -> bool {
    match event {
        Event::Connected(connected) => {
            to.u32(CONNECTED);
            to.u64(connected.connection);
            put_time(connected.time, to);
            to.opaque(connected.provider.as_bytes());
            to.opaque(connected.local.to_string().as_bytes());
            to.opaque(connected.peer.to_string().as_bytes());
            to.opaque(&connected.own_private_data);
            to.opaque(&connected.peer_private_data);
            to.bool(connected.greeting.is_some());
            for message in connected.greeting.iter().flatten() {
                to.opaque(message);
            }
        }
        Event::Disconnected(gone) => {
            to.u32(DISCONNECTED);
            to.u64(gone.connection);
            put_time(gone.time, to);
        }
        Event::Outgoing(out) => {
            to.u32(OUTGOING);
            to.u64(out.connection);
            put_time(out.time, to);
            put_data(&out.message, to);
        }
        Event::Incoming(into) => {
            to.u32(INCOMING);
            to.u64(into.connection);
            put_time(into.time, to);
            put_data(&into.message, to);
            to.bool(into.invalidated.is_some());
            to.u32(into.invalidated.unwrap_or(0));
            // The chunk lists can only be encoded as part of a header.
            Header::new(0, 1, Body::Msg(into.offer.clone())).encode(to);
            put_some(into.read.as_ref(), to);
            put_some(into.written.as_ref(), to);
            put_some(into.reply.as_ref(), to);
        }
        Event::Lost(events) => {
            to.u32(LOST);
            to.u64(*events);
        }
        Event::Sent(_) | Event::Ended(_) => return false,
    }
    true
}

fn framed(body: &[u8], to: &mut Vec<u8>) {
    // A message and its chunks have a few MiB, so the length fits.
    to.extend_from_slice(&(body.len() as u32).to_be_bytes());
    to.extend_from_slice(body);
}

/// Appends an event.
pub(super) fn encode(event: &Event, to: &mut Vec<u8>) {
    let mut body = Encoder::with_capacity(256);
    if put(event, &mut body) {
        framed(body.as_slice(), to);
    }
}

/// The last frame.
pub(super) fn end() -> Vec<u8> {
    let mut bytes = Vec::new();
    framed(&END.to_be_bytes(), &mut bytes);
    bytes
}

/// Splits a complete frame off the front of `bytes`, if there is one. Returns the frame, and the
/// number of bytes to drop.
pub(super) fn split(bytes: &[u8]) -> Result<Option<(&[u8], usize)>> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if length > FRAME_MAX {
        return Err(FrameError::Other("a frame is too long"));
    }
    Ok(rest.get(..length).map(|frame| (frame, 4 + length)))
}

fn time(from: &mut Decoder<'_>) -> Result<SystemTime> {
    let (seconds, nanoseconds) = (from.u64()?, from.u32()?);
    if nanoseconds >= 1_000_000_000 {
        return Err(FrameError::Other("more nanoseconds than a second has"));
    }
    SystemTime::UNIX_EPOCH
        .checked_add(Duration::new(seconds, nanoseconds))
        .ok_or(FrameError::Other("a time that does not exist"))
}

fn text(from: &mut Decoder<'_>) -> Result<String> {
    let bytes = from.opaque("text", 256)?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

fn address(from: &mut Decoder<'_>) -> Result<SocketAddr> {
    let text = text(from)?;
    text.parse()
        .map_err(|_| FrameError::Other("an address cannot be read"))
}

fn data(from: &mut Decoder<'_>) -> Result<Data> {
    let length = usize::try_from(from.u64()?).unwrap_or(usize::MAX);
    let bytes = from.opaque("data", FRAME_MAX)?;
    if bytes.len() > length || length > u32::MAX as usize {
        return Err(FrameError::Other("a message with a wrong length"));
    }
    Ok(Data {
        bytes: bytes.into(),
        length,
    })
}

fn some(from: &mut Decoder<'_>) -> Result<Option<Data>> {
    from.bool()?.then(|| data(from)).transpose()
}

fn offer(from: &mut Decoder<'_>) -> Result<ChunkLists> {
    let (header, length) =
        Header::parse(from.rest()).map_err(|_| FrameError::Other("chunks cannot be read"))?;
    from.take(length)?;
    match header.body {
        Body::Msg(chunks) => Ok(chunks),
        _ => Err(FrameError::Other("chunks of another kind")),
    }
}

/// A message that sets up a connection: 20 bytes, and up to 512 of private data (RFC 5044 section
/// 7.1.1).
fn greeting(from: &mut Decoder<'_>) -> Result<Vec<u8>> {
    Ok(from.opaque("MPA frame", 532)?.to_vec())
}

/// Decodes a frame that [`split`] returned.
pub(super) fn decode(bytes: &[u8]) -> Result<Frame> {
    let mut from = Decoder::new(bytes);
    let from = &mut from;
    Ok(match from.u32()? {
        CONNECTED => Frame::Connected(Connected {
            connection: from.u64()?,
            time: time(from)?,
            transport: text(from)?,
            local: address(from)?,
            peer: address(from)?,
            own_private_data: from.opaque("private data", 512)?.to_vec(),
            peer_private_data: from.opaque("private data", 512)?.to_vec(),
            greeting: match from.bool()? {
                true => Some([greeting(from)?, greeting(from)?]),
                false => None,
            },
        }),
        DISCONNECTED => Frame::Disconnected {
            connection: from.u64()?,
            time: time(from)?,
        },
        OUTGOING => Frame::Outgoing(Outgoing {
            connection: from.u64()?,
            time: time(from)?,
            message: data(from)?,
        }),
        INCOMING => Frame::Incoming(Box::new(Incoming {
            connection: from.u64()?,
            time: time(from)?,
            message: data(from)?,
            invalidated: {
                let (some, handle) = (from.bool()?, from.u32()?);
                some.then_some(handle)
            },
            offer: offer(from)?,
            read: some(from)?,
            written: some(from)?,
            reply: some(from)?,
        })),
        LOST => Frame::Lost(from.u64()?),
        END => Frame::End,
        _ => return Err(FrameError::Other("an unknown kind of event")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_answered(kind in 0u32..8, bytes: Vec<u8>) {
            let _ = split(&bytes);
            let mut all = kind.to_be_bytes().to_vec();
            all.extend(bytes);
            let _ = decode(&all);
        }
    }
}
