//! FPDUs with markers, for a peer that requires them (RFC 5044 section 4.3).
//!
//! A marker is inserted at every 512th byte of the stream, also inside headers and payload. It says
//! how far back the FPDU begins that contains it. So header and payload are cut where a marker is
//! due; payload is still sent by reference, in pieces of at most 508 bytes. The CRC of an FPDU
//! covers its markers.

use super::marker_position::MarkerPosition;
use super::open::Open;
use super::{Piece, Segmenter};
use crate::wire::mpa::{Crc, MARKER, marker};
use nfsrdma_rdma::Buf;

impl Segmenter {
    //= RFC 5044, Section 4.3
    //# In this case, the Marker is considered to be contained in the following FPDU; the Marker
    //# MUST be included in the CRC calculation of the FPDU following the Marker (if CRCs are being
    //# generated or checked).
    //# When Markers are enabled (see Section 7.1, Connection Setup), the MPA Markers MUST be
    //# inserted immediately preceding the first FPDU of Full Operation Phase, and at every 512th
    //# octet of the TCP octet stream thereafter.
    /// Begins an FPDU with markers. A marker between two FPDUs is part of the second one, and its
    /// pointer is zero.
    pub(super) fn begin_marked(&mut self) -> Option<Crc> {
        let mut crc = self.crc.then(Crc::new);
        if let Some(marking) = &mut self.marking {
            marking.fpdu = marking.position;
            if marking.is_due() {
                marking.fpdu += MARKER as u64;
                self.push_marker(0, &mut crc);
            }
        }
        crc
    }

    //= RFC 5044, Section 4.3
    //# FPDUPTR MUST contain the number of octets in the TCP stream from the beginning of the ULPDU
    //# Length field to the first octet of the Marker, unless the Marker falls between FPDUs.
    //# If an FPDU is large enough to contain multiple Markers, they MUST all point to the same
    //# point in the TCP stream: the first octet of the ULPDU Length field for the FPDU.
    //# If a Marker interval contains multiple FPDUs (the FPDUs are small), the Marker MUST point to
    //# the start of the ULPDU Length field for the FPDU containing the Marker unless the Marker
    //# falls between FPDUs, in which case the Marker MUST be zero.
    /// Adds a marker if one is due. Returns how many bytes may follow before the next one.
    fn mark(&mut self, crc: &mut Option<Crc>) -> usize {
        let Some(marking) = &self.marking else {
            return usize::MAX;
        };
        if marking.is_due() {
            let back = marking.position - marking.fpdu;
            self.push_marker(back as u16, crc);
        }
        self.marking
            .as_ref()
            .map_or(usize::MAX, MarkerPosition::gap)
    }

    fn push_marker(&mut self, pointer: u16, crc: &mut Option<Crc>) {
        self.push_marked(&marker(pointer), crc);
    }

    /// Adds bytes of an FPDU that contain no marker position.
    fn push_marked(&mut self, bytes: &[u8], crc: &mut Option<Crc>) {
        let from = self.scratch.len();
        self.scratch.extend_from_slice(bytes);
        if let Some(crc) = crc {
            crc.update(bytes);
        }
        self.push_scratch(from);
        self.advance_marking(bytes.len());
    }

    fn advance_marking(&mut self, bytes: usize) {
        if let Some(marking) = &mut self.marking {
            marking.position += bytes as u64;
        }
    }

    pub(super) fn marked_scratch(&mut self, mut bytes: &[u8], crc: &mut Option<Crc>) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(self.mark(crc).min(bytes.len()));
            self.push_marked(now, crc);
            bytes = later;
        }
    }

    fn marked_payload(&mut self, mut part: Buf, crc: &mut Option<Crc>) {
        while !part.is_empty() {
            let n = self.mark(crc).min(part.len());
            let now = part.slice(..n);
            if let Some(crc) = crc {
                crc.update(&now);
            }
            self.bytes += n;
            self.pieces.push_back(Piece::Payload(now));
            self.advance_marking(n);
            part = part.slice(n..);
        }
    }

    //= RFC 5044, Section 4.4
    //# The fields which MUST be included in the CRC calculation when sending an FPDU are as
    //# follows:
    /// Adds the CRC field. FPDUs and markers are multiples of four bytes, so no marker falls into
    /// the field. A marker directly before it belongs to the FPDU and is covered by the CRC.
    pub(super) fn end_marked(&mut self, mut crc: Option<Crc>) {
        self.mark(&mut crc);
        let field = crc.map(|crc| crc.field()).unwrap_or_default();
        self.push_marked(&field, &mut None);
    }

    /// Cuts an FPDU with markers. The payload is sent by reference, in pieces of at most 508 bytes.
    pub(super) fn cut_marked(&mut self, open: &mut Open, head: &[u8], payload: usize, pad: usize) {
        let mut crc = self.begin_marked();
        self.marked_scratch(head, &mut crc);
        let mut left = payload;
        while left > 0 {
            let part = open.take(left);
            left -= part.len();
            self.marked_payload(part, &mut crc);
        }
        self.marked_scratch(&[0; 3][..pad], &mut crc);
        self.end_marked(crc);
    }
}
