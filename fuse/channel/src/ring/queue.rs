//! How many entries a queue of the ring has and needs.

/// The most entries of a queue.
const MOST: u32 = 1024;

/// The queue of one CPU.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) number: u16,
    /// How many entries are registered at first.
    pub(super) initial: u32,
    pub(super) entries: u32,
    /// How many entries are in the kernel without a request, as far as this thread knows.
    pub(super) free: u32,
    /// Requests may wait in the kernel: perhaps no entry was free, and since then no entry that was
    /// given back has stayed without a request.
    pub(super) starved: bool,
}

impl Queue {
    /// How many entries have to be registered now.
    pub(super) fn missing(&self, usual: u32) -> u32 {
        if self.entries == 0 {
            return self.initial;
        }
        // The queue of a CPU that is offline has one entry, until a caller runs there.
        let few = self.free == 0 || self.entries > 1 && self.free < usual / 2;
        match few {
            true => usual.div_ceil(2).min(MOST.saturating_sub(self.entries)),
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(initial: u32, entries: u32, free: u32) -> Queue {
        Queue {
            number: 0,
            initial,
            entries,
            free,
            starved: false,
        }
    }

    #[test]
    fn half_of_what_a_queue_has_at_first_is_kept_free() {
        assert_eq!(queue(64, 0, 0).missing(64), 64);
        assert_eq!(queue(64, 64, 64).missing(64), 0);
        assert_eq!(queue(64, 64, 32).missing(64), 0);
        assert_eq!(queue(64, 64, 31).missing(64), 32);
        assert_eq!(queue(64, 96, 0).missing(64), 32);
        assert_eq!(queue(64, MOST - 1, 0).missing(64), 1);
        assert_eq!(queue(64, MOST, 0).missing(64), 0);
    }

    #[test]
    fn the_queue_of_a_cpu_that_is_off_has_one_entry_until_it_is_used() {
        assert_eq!(queue(1, 0, 0).missing(64), 1);
        assert_eq!(queue(1, 1, 1).missing(64), 0);
        assert_eq!(queue(1, 1, 0).missing(64), 32);
        assert_eq!(queue(1, 33, 33).missing(64), 0);
    }
}
