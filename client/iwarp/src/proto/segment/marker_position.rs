//! The positions of markers in the stream: every 512th byte.

use crate::wire::mpa::MARKER_INTERVAL;

/// The position in a stream whose receiver requires markers.
#[derive(Debug)]
pub(super) struct MarkerPosition {
    /// Bytes of the stream so far, with markers.
    pub(super) position: u64,
    /// Position of the length field of the FPDU being cut.
    pub(super) fpdu: u64,
}

impl MarkerPosition {
    //= RFC 5044, Section 4.3
    //# When Markers are enabled, MPA senders MUST insert a Marker into the data stream at a
    //# 512-octet periodic interval in the TCP Sequence Number Space.
    //# Note that this computation MUST take into account that the TCP sequence number could have
    //# wrapped between the Marker and the header.
    /// Whether the next byte of the stream belongs to a marker.
    pub(super) fn is_due(&self) -> bool {
        self.position.is_multiple_of(MARKER_INTERVAL as u64)
    }

    /// Bytes until the next marker.
    pub(super) fn gap(&self) -> usize {
        MARKER_INTERVAL - (self.position % MARKER_INTERVAL as u64) as usize
    }
}
