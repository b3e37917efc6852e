//! Keeps the memory of the allocator small: one arena, and freed memory is given back.
//!
//! glibc's malloc keeps freed memory for reuse, in up to eight arenas for each CPU, which do not share it. After many
//! names and requests this is far more than the memory in use, and it stays, because an arena shrinks by itself only
//! at its end. So the process that serves a mount has one arena, and gives the pages of freed memory back when it is
//! idle. With another libc, this module does nothing.

/// The number of arenas: only the main one. One is enough, since few threads answer requests, and most of their
/// allocations come from per-thread caches. The main arena grows by 128 KiB at a time; glibc's other arenas grow by
/// an mprotect(2) for each page or two, which was one for every second file that was created.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 1;

/// Makes all threads share the main arena.
pub fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) only sets a parameter of the allocator, under its own lock.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
    }
}

/// Gives the pages of freed memory back to the system.
pub(super) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) takes the allocator's own locks, and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Decides once a second whether to give memory back: some time after many requests.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// The requests answered at the last tick; `given`: when memory was last given back.
    seen: u64,
    given: u64,
    seconds: u32,
}

/// The most requests in a second in which the mount counts as idle.
const FEW: u64 = 20;
/// The least requests after which there may be freed memory to give back.
const MANY: u64 = 200;
/// Seconds after so many requests. One in which the mount is idle counts as ten.
const PAUSE: u32 = 60;

impl Rest {
    /// A second has passed; `answered` requests were answered so far. Returns whether to give
    /// memory back now.
    pub(super) fn due(&mut self, answered: u64) -> bool {
        let idle = answered - self.seen <= FEW;
        self.seen = answered;
        if answered - self.given < MANY {
            return false;
        }
        self.seconds += if idle { 10 } else { 1 };
        let due = self.seconds > PAUSE;
        if due {
            (self.given, self.seconds) = (answered, 0);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_once_after_many_requests_and_at_times_under_load() {
        let mut rest = Rest::default();
        assert!((0..100).all(|answered| !rest.due(answered)));
        let due: Vec<bool> = (0..300).map(|_| rest.due(1000)).collect();
        assert_eq!(due.iter().position(|&due| due), Some(6));
        assert_eq!(due.iter().filter(|&&due| due).count(), 1);
        let due = (2..612).filter(|second| rest.due(second * 1000)).count();
        assert_eq!(due, 10);
    }
}
