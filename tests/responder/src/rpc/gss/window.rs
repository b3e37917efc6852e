//! The sequence window of a context (RFC 2203 section 5.3.3.1), as Linux's server keeps it.

/// How many sequence numbers up to the highest are accepted.
pub(super) const SIZE: u32 = 128;

/// The sequence numbers that came.
#[derive(Debug, Default)]
pub(super) struct Window {
    highest: u32,
    /// Bit N is for the number that is N below the highest.
    seen: u128,
}

impl Window {
    /// Whether a number is new and not too old: it counts as seen then. Without that the call is
    /// neither executed nor answered.
    pub(super) fn take(&mut self, number: u32) -> bool {
        if number > self.highest {
            let ahead = number - self.highest;
            self.seen = self.seen.checked_shl(ahead).unwrap_or(0);
            self.highest = number;
        }
        let behind = self.highest - number;
        if behind >= SIZE || self.seen >> behind & 1 == 1 {
            return false;
        }
        self.seen |= 1 << behind;
        true
    }
}
