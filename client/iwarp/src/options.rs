//! The options of the provider.

use crate::proto::segment::{MAX_FPDU, MIN_FPDU};
use std::str::FromStr;
use std::time::Duration;

/// The size of FPDUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fpdu {
    /// One TCP segment, which is best for peers in hardware (RFC 5044 section 5); but the largest
    /// that MPA allows if both ends are on this machine, where all peers are software.
    #[default]
    Auto,
    /// At most this many bytes, with header and CRC.
    Bytes(usize),
    /// The largest that MPA allows, for a peer that is known to accept it (siw does).
    Largest,
}

impl FromStr for Fpdu {
    type Err = String;

    /// `auto`, `max`, or a number of bytes.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Fpdu::Auto),
            "max" => Ok(Fpdu::Largest),
            number => match number.parse() {
                Ok(n) if (MIN_FPDU..=MAX_FPDU).contains(&n) => Ok(Fpdu::Bytes(n)),
                _ => Err(format!(
                    "an FPDU size is `auto`, `max`, or {MIN_FPDU} to {MAX_FPDU} bytes, not `{text}`"
                )),
            },
        }
    }
}

/// The options of the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IwarpOptions {
    /// Require CRC32c for FPDUs. Without this, CRCs are used if the peer requires them.
    pub crc: bool,
    /// The newest MPA revision to use: 2 (with enhanced connection set-up) or 1.
    pub mpa_revision: u8,
    /// Size of the FPDUs that are sent.
    pub fpdu: Fpdu,
    /// Ask for the peer-to-peer model when connecting (RFC 6581 section 9).
    pub peer_to_peer: bool,
    /// Sizes of the socket buffers in bytes; `None` leaves them to the kernel.
    pub socket_buffer: Option<usize>,
    /// How long sent data may remain unacknowledged before the connection is lost
    /// (TCP_USER_TIMEOUT).
    pub user_timeout: Option<Duration>,
    /// Idle time before TCP keepalive probes the peer.
    pub keepalive: Option<Duration>,
    /// How long the completion thread polls the socket, yielding in between, before it sleeps.
    /// Waking a sleeping thread on another CPU takes longer than the rest of a small call.
    pub spin: Duration,
}

impl Default for IwarpOptions {
    fn default() -> Self {
        IwarpOptions {
            crc: false,
            mpa_revision: 2,
            fpdu: Fpdu::Auto,
            peer_to_peer: false,
            socket_buffer: None,
            user_timeout: Some(Duration::from_secs(60)),
            keepalive: Some(Duration::from_secs(30)),
            spin: Duration::from_micros(20),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fpdu_sizes_as_text() {
        assert_eq!("auto".parse(), Ok(Fpdu::Auto));
        assert_eq!("max".parse(), Ok(Fpdu::Largest));
        assert_eq!("1448".parse(), Ok(Fpdu::Bytes(1448)));
        assert_eq!("64772".parse(), Ok(Fpdu::Bytes(64_772)));
        for wrong in ["", "135", "64773", "-1", "1k", "18446744073709551616"] {
            assert!(wrong.parse::<Fpdu>().is_err(), "{wrong}");
        }
    }
}
