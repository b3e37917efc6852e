//! The allocator's memory: little of it set aside, and what was freed given back.
//!
//! glibc's malloc keeps freed memory for later, in up to eight arenas for each CPU, each with
//! its own. After many names and requests that is far more than what is in use, and it stays:
//! an arena shrinks by itself only at its end. So the process that serves a mount has one
//! arena, and gives the pages of freed memory back when it rests. Where libc is another one,
//! there is nothing to do here.

/// Arenas of the process: the main one. Threads that answer requests are few, and most of what they
/// allocate comes from their own caches. All others of glibc's arenas grow by an mprotect(2) for
/// each page or two, which was one for every second file that was created; the main one grows by
/// 128 KiB at a time.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 1;

/// Has all threads share the main arena.
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

/// Tells when to give memory back, asked once a second: when little was done for some seconds
/// after much was, and once in a while where it never rests.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Requests answered when it was asked last, and when memory was last given back.
    seen: u64,
    given: u64,
    quiet: u32,
    busy: u32,
}

/// Requests in a second that still count as rest.
const FEW: u64 = 20;
/// Requests that may have left something behind.
const MANY: u64 = 200;
/// Seconds of rest before memory is given back.
const QUIET: u32 = 5;
/// Seconds without rest after which it is done all the same.
const BUSY: u32 = 60;

impl Rest {
    /// A second has passed; `answered` requests were answered so far.
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

    /// The same, and does it, after `before`, which may free more.
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
        // A stat now and then leaves nothing behind.
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
