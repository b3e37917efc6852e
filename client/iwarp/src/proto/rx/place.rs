//! Placement. The receiver copies no payload, but says where it belongs. The caller moves the bytes
//! and reports them (`placed`, `send_filled`), so that the receiver knows when a segment is
//! complete and includes the bytes in the CRC.

use super::{Receiver, State};

impl<R: Clone> Receiver<R> {
    /// Reports bytes that were placed where [`super::Step::Place`] said, in order.
    ///
    /// # Panics
    /// If there are more bytes than it said.
    pub fn placed(&mut self, bytes: &[u8]) {
        let State::Tagged { at, left, .. } = &mut self.state else {
            assert!(bytes.is_empty(), "placed only after Step::Place");
            return;
        };
        assert!(bytes.len() <= *left, "no more than Step::Place said");
        *at += bytes.len();
        *left -= bytes.len();
        if *left == 0 {
            self.state = State::Trailer;
        }
        self.digest(bytes);
    }

    /// Where the rest of this segment of a Send belongs. Report it to [`Receiver::send_filled`].
    pub fn send_space(&mut self) -> &mut [u8] {
        match (&self.state, &mut self.message) {
            (State::Send { left }, Some(m)) => {
                let to = m.filled + left;
                &mut m.buf[m.filled..to]
            }
            _ => &mut [],
        }
    }

    /// Reports that the first `n` bytes of [`Receiver::send_space`] were filled.
    pub fn send_filled(&mut self, n: usize) {
        let (State::Send { left }, Some(message)) = (&mut self.state, &mut self.message) else {
            return;
        };
        let n = n.min(*left);
        let from = message.filled;
        message.filled += n;
        *left -= n;
        if *left == 0 {
            self.state = State::Trailer;
        }
        if let (Some(crc), Some(current)) = (&mut self.crc, &self.current)
            && !current.crc_checked
            && let Some(message) = &self.message
        {
            crc.update(&message.buf[from..from + n]);
        }
    }

    fn digest(&mut self, bytes: &[u8]) {
        if let (Some(crc), Some(current)) = (&mut self.crc, &self.current)
            && !current.crc_checked
        {
            crc.update(bytes);
        }
    }
}
