//! The offsets at which O_DIRECT appends are written.
//!
//! The kernel computes the offset of an append from the size that it knows, which others may have
//! changed since. One write(2) may be several requests: sent one after the other if the file was
//! opened with O_APPEND and O_DIRECT, and all at once if O_DIRECT was set later, or for
//! io_submit(2). Requests sent at once may arrive in any order, but their offsets are right
//! relative to each other. So the request with the least offset is written at the end of the file,
//! and the others at the same distance from it as in the kernel's offsets.
//!
//! The kernel holds the inode's lock during a write(2), so only one is under way at a time, with
//! one exception: a killed caller is answered early, and the lock goes to the next caller while
//! WRITEs of the first are under way. Requests of different threads are therefore different
//! write(2), and the second waits for the first.

/// What an O_DIRECT append has to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Write at this offset.
    At(u64),
    /// Wait for a request that is under way, or that goes first.
    Wait,
    /// Determine the end of the file again: it may have moved meanwhile.
    Late,
}

/// The O_DIRECT appends of a file.
#[derive(Debug, Default)]
pub(super) struct Appends {
    /// The kernel's offset and the thread of each request that has not begun.
    arrived: Vec<(u64, u32)>,
    under_way: usize,
    /// The thread whose requests are under way.
    pid: u32,
    /// Where the file ended before the requests that are under way.
    end: u64,
    /// What is added to the kernel's offsets.
    shift: i128,
}

impl Appends {
    /// A request of the thread `pid` has arrived. The caller must call [`Appends::left`] later.
    pub(super) fn arrived(&mut self, asked: u64, pid: u32) {
        self.arrived.push((asked, pid));
    }

    /// A request has begun, or was given up before it began.
    pub(super) fn left(&mut self, asked: u64, pid: u32) {
        if let Some(at) = self.arrived.iter().position(|of| *of == (asked, pid)) {
            self.arrived.swap_remove(at);
        }
    }

    /// Where the request at the kernel's offset `asked` is to be written. `end` is the end of the
    /// file, used if no request is under way. `None`: it has to wait.
    pub(super) fn begin(&mut self, asked: u64, end: u64) -> Option<u64> {
        let known = self.arrived.iter().find(|of| of.0 == asked);
        let pid = known.map_or(0, |of| of.1);
        if self.under_way == 0 {
            if self.arrived.iter().any(|of| of.1 == pid && of.0 < asked) {
                return None;
            }
            self.pid = pid;
            self.end = end;
            self.shift = i128::from(end) - i128::from(asked);
        } else if self.pid != pid {
            return None;
        }
        let place = i128::from(asked) + self.shift;
        let place = u64::try_from(place).ok().filter(|&at| at >= self.end)?;
        self.under_way += 1;
        self.left(asked, pid);
        Some(place)
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way > 0
    }

    pub(super) fn end(&mut self) {
        self.under_way -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u32 = 1;
    const B: u32 = 2;

    #[test]
    fn requests_of_one_write_keep_their_order_whichever_comes_first() {
        for (known, end) in [(100, 100), (4 << 20, 0), (100, 1 << 20)] {
            let mut appends = Appends::default();
            let second = known + 1_000_000;
            appends.arrived(second, A);
            appends.arrived(known, A);
            assert_eq!(appends.begin(second, end), None);
            assert_eq!(appends.begin(known, end), Some(end));
            assert_eq!(appends.begin(second, end), Some(end + 1_000_000));
            appends.end();
            appends.end();
            assert!(appends.arrived.is_empty());
        }
    }

    #[test]
    fn a_size_of_the_kernel_s_that_is_out_of_date_does_not_matter() {
        let mut appends = Appends::default();
        for (asked, end) in [(4 << 20, 0), (100, 5000)] {
            appends.arrived(asked, A);
            assert_eq!(appends.begin(asked, end), Some(end));
            appends.end();
        }
    }

    #[test]
    fn what_a_killed_thread_has_under_way_is_waited_for() {
        let mut appends = Appends::default();
        appends.arrived(100, A);
        assert_eq!(appends.begin(100, 100), Some(100));
        for asked in [100, 200] {
            appends.arrived(asked, B);
            assert_eq!(appends.begin(asked, 100), None);
        }
        appends.end();
        assert_eq!(appends.begin(200, 200), None);
        assert_eq!(appends.begin(100, 200), Some(200));
        assert_eq!(appends.begin(200, 200), Some(300));
    }

    #[test]
    fn who_does_not_begin_holds_up_nobody() {
        let mut appends = Appends::default();
        appends.arrived(100, A);
        appends.arrived(200, A);
        assert_eq!(appends.begin(200, 100), None);
        appends.left(100, A);
        assert_eq!(appends.begin(200, 100), Some(100));
    }
}
