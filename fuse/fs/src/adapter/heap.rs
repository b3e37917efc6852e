//! Keeps the memory of the allocator small: one arena, and freed memory is given back.
//!
//! glibc's malloc keeps freed memory for reuse, in up to eight arenas for each CPU, which do not
//! share it. After many names and requests this is far more than the memory in use, and it stays,
//! because an arena shrinks by itself only at its end. So the process that serves a mount has one
//! arena, and gives the pages of freed memory back when it is idle. With another libc, this module
//! does nothing.

/// The number of arenas: only the main one. One is enough, since few threads answer requests, and
/// most of their allocations come from per-thread caches. The main arena grows by 128 KiB at a
/// time; glibc's other arenas grow by an mprotect(2) for each page or two, which was one for every
/// second file that was created.
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
fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) takes the allocator's own locks, and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Decides once a second whether to give memory back: after many requests, once there were few for
/// some seconds, or after a longer time if the mount is never idle.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// The requests answered at the last tick; `given`: when memory was last given back.
    seen: u64,
    given: u64,
    quiet: u32,
    busy: u32,
}

/// The most requests in a second in which the mount counts as idle.
const FEW: u64 = 20;
/// The least requests after which there may be freed memory to give back.
const MANY: u64 = 200;
/// Seconds for which the mount must be idle before memory is given back.
const QUIET: u32 = 5;
/// Seconds after which memory is given back even if the mount is never idle.
const BUSY: u32 = 60;

impl Rest {
    /// A second has passed; `answered` requests were answered so far. Returns whether to give
    /// memory back now.
    fn due(&mut self, answered: u64) -> bool {
        let quiet = answered - self.seen <= FEW;
        self.seen = answered;
        self.quiet = if quiet { self.quiet + 1 } else { 0 };
        self.busy += 1;
        if answered - self.given < MANY {
            self.busy = 0;
            return false;
        }
        let due = self.quiet >= QUIET || self.busy >= BUSY;
        if due {
            (self.given, self.busy) = (answered, 0);
        }
        due
    }

    /// A second has passed. Gives memory back if it is due, after `before`, which may free some.
    pub(super) fn tick(&mut self, answered: u64, before: impl FnOnce()) {
        if self.due(answered) {
            before();
            give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_at_rest_once() {
        let mut rest = Rest::default();
        let mut answered = 0;
        for _ in 0..30 {
            answered += 1000;
            assert!(!rest.due(answered));
        }
        let due: Vec<bool> = (0..300).map(|_| rest.due(answered)).collect();
        assert_eq!(due.iter().position(|&due| due), Some(QUIET as usize - 1));
        assert_eq!(due.iter().filter(|&&due| due).count(), 1);
        // Few requests free no memory worth giving back.
        for _ in 0..100 {
            answered += 1;
            assert!(!rest.due(answered));
        }
    }

    #[test]
    fn memory_is_given_back_without_rest_once_in_a_while() {
        let mut rest = Rest::default();
        let due = (1..=600).filter(|second| rest.due(second * 1000)).count();
        assert_eq!(due, 10);
    }
}
