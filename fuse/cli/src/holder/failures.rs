//! When a mount is given up whose daemons fail again and again.
//!
//! A daemon fails if it ends by itself, however long it has served: a panic, a bad memory access, an exit without
//! having said that the mount has ended. SIGKILL comes from outside, from a person or from the kernel that is out of
//! memory. A mount goes on after that as often as it happens, unless the daemon has not served for [`SOUND`]: then its
//! predecessor's state or its limits may be what it does not survive.
//!
//! A program at the path that does not serve is no failure: the holder's own program takes its place at once.
//!
//! After the n-th failure the next daemon waits a little longer, so that what was short for a moment (memory, threads)
//! may be there again. The last of [`FAILURES_MAX`] failures within [`WINDOW`] ends the mount: callers get an error
//! rather than wait.

use std::time::{Duration, Instant};

/// How many daemons may fail within [`WINDOW`]; the last of these failures ends the mount.
const FAILURES_MAX: usize = 5;
const WINDOW: Duration = Duration::from_secs(5 * 60);
/// A daemon that was killed and has served for this long has not failed.
const SOUND: Duration = Duration::from_secs(1);
/// The wait after the second failure. It doubles with each.
const PAUSE: Duration = Duration::from_secs(1);

/// The failures that count still.
#[derive(Debug, Default)]
pub(super) struct Failures([Option<Instant>; FAILURES_MAX]);

/// Whether a daemon that was killed has failed. `serving` is since when it has served.
pub(super) fn is_unsound(serving: Option<Instant>, now: Instant) -> bool {
    serving.is_none_or(|since| now.duration_since(since) < SOUND)
}

impl Failures {
    /// Notes that a daemon failed. Returns how long its successor waits, and `None` if there is to be none.
    pub(super) fn note(&mut self, now: Instant) -> Option<Duration> {
        for failure in &mut self.0 {
            failure.take_if(|at| now.duration_since(*at) > WINDOW);
        }
        let before = self.0.iter().flatten().count();
        let place = self.0.iter_mut().find(|place| place.is_none())?;
        *place = Some(now);
        match before {
            0 => Some(Duration::ZERO),
            _ if before + 1 == FAILURES_MAX => None,
            _ => Some(PAUSE * (1 << (before - 1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    #[test]
    fn the_fifth_failure_within_five_minutes_is_the_last() {
        let (mut failures, begin) = (Failures::default(), Instant::now());
        let at = [0, 60, 120, 180, 300].map(|at| failures.note(begin + second(at)));
        let pauses = [0, 1, 2, 4].map(|pause| Some(second(pause)));
        assert_eq!(at[..4], pauses);
        assert_eq!(at[4], None);
    }

    #[test]
    fn failures_are_forgotten() {
        let (mut failures, begin) = (Failures::default(), Instant::now());
        for nth in 0..100 {
            let pause = failures.note(begin + second(76 * nth));
            assert!(pause.is_some(), "{nth}: {failures:?}");
        }
    }

    #[test]
    fn who_was_killed_has_failed_only_at_the_start() {
        let begin = Instant::now();
        assert!(is_unsound(None, begin));
        assert!(is_unsound(Some(begin), begin + SOUND / 2));
        assert!(!is_unsound(Some(begin), begin + SOUND));
    }
}
