//! Which ways to the server live, where the connections have several.
//!
//! A path is a pair of addresses, and may have several connections. One that dies is found by a call
//! without a reply, or by an attempt to connect that fails. That connection is gone then, and its
//! calls go by others; but the other connections of the path do not know yet. So nothing is sent on
//! them while others live, until something is heard on the path again: a reply, or a connection that
//! was made.
//!
//! The state machine is asked once for each tick of the transport's timer, and counts nothing for a
//! call. A transport with one path does not have it.

use crate::options::Path;
use nfsrdma_rdma::Instant;

/// What a connection slot knows at a tick.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// How many messages arrived, and how many connections were made, so far.
    pub(super) heard: u64,
    /// Since when, at the latest, a call or an attempt to connect has had no answer.
    pub(super) silent_since: Option<Instant>,
}

/// One path.
#[derive(Debug, Clone, Copy)]
struct State {
    /// The time after which something was heard.
    heard: Instant,
    silent_since: Option<Instant>,
}

/// The paths of a transport.
#[derive(Debug)]
pub(super) struct Paths {
    /// The path of each slot.
    of: Vec<usize>,
    /// What was heard on each slot at the last tick.
    heard: Vec<u64>,
    states: Vec<State>,
    last: Instant,
}

impl Paths {
    /// The slots take these paths. All live at `now`.
    pub(super) fn new(slots: &[Path], now: Instant) -> Self {
        let mut distinct: Vec<Path> = Vec::new();
        let of: Vec<_> = slots
            .iter()
            .map(|path| {
                let known = distinct.iter().position(|other| other == path);
                known.unwrap_or_else(|| {
                    distinct.push(*path);
                    distinct.len() - 1
                })
            })
            .collect();
        let state = State {
            heard: now,
            silent_since: None,
        };
        Paths {
            heard: vec![0; of.len()],
            of,
            states: vec![state; distinct.len()],
            last: now,
        }
    }

    /// Goes on to `now` with what each slot has seen. Returns for each slot whether its path is
    /// silent.
    pub(super) fn tick(
        &mut self,
        now: Instant,
        slots: impl IntoIterator<Item = Seen>,
    ) -> impl Iterator<Item = bool> {
        for (slot, seen) in slots.into_iter().enumerate() {
            let state = &mut self.states[self.of[slot]];
            if std::mem::replace(&mut self.heard[slot], seen.heard) != seen.heard {
                // It came after the last tick; a call that was sent since may be without a reply.
                state.heard = state.heard.max(self.last);
            }
            state.silent_since = state.silent_since.max(seen.silent_since);
        }
        self.last = now;
        let silent = |state: &State| state.silent_since.is_some_and(|since| since > state.heard);
        let each: Vec<_> = self.states.iter().map(silent).collect();
        self.of.iter().map(move |path| each[*path])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn path(last: u8) -> Path {
        Path {
            peer: ([10, 0, 0, last], 20049).into(),
            local: None,
        }
    }

    /// Paths 1 and 2 with two slots each, in turn; ticks of one second.
    struct Trial {
        paths: Paths,
        begin: Instant,
        heard: [u64; 4],
        silent: [Option<u64>; 4],
        second: u64,
    }

    impl Trial {
        fn new() -> Self {
            let begin = Instant::now();
            Trial {
                paths: Paths::new(&[path(1), path(2), path(1), path(2)], begin),
                begin,
                heard: [0; 4],
                silent: [None; 4],
                second: 0,
            }
        }

        /// The next second, in which something arrived on these slots.
        fn hear(&mut self, slots: &[usize]) -> Vec<bool> {
            slots.iter().for_each(|slot| self.heard[*slot] += 1);
            self.second += 1;
            let at = |second| self.begin + Duration::from_secs(second);
            let seen: Vec<_> = (0..4)
                .map(|slot| Seen {
                    heard: self.heard[slot],
                    silent_since: self.silent[slot].map(at),
                })
                .collect();
            self.paths.tick(at(self.second), seen).collect()
        }
    }

    const ALL: [bool; 4] = [false; 4];
    const WITHOUT_FIRST: [bool; 4] = [true, false, true, false];

    #[test]
    fn idle_paths_live() {
        let mut trial = Trial::new();
        for _ in 0..100 {
            assert_eq!(trial.hear(&[]), ALL);
        }
    }

    #[test]
    fn a_path_is_silent_until_something_is_heard_on_it() {
        let mut trial = Trial::new();
        assert_eq!(trial.hear(&[0, 1, 2, 3]), ALL);
        assert_eq!(trial.hear(&[1, 3]), ALL);
        // A call that was sent at second 1 has no reply at 3.
        trial.silent[0] = Some(1);
        for _ in 0..5 {
            assert_eq!(trial.hear(&[1]), WITHOUT_FIRST);
        }
        // Slot 2 gets a reply after all, or slot 0 a connection.
        assert_eq!(trial.hear(&[2]), ALL);
        assert_eq!(trial.hear(&[]), ALL);
        // Later it fails again.
        trial.silent[2] = Some(8);
        assert_eq!(trial.hear(&[]), WITHOUT_FIRST);
        assert_eq!(trial.hear(&[]), WITHOUT_FIRST);
        assert_eq!(trial.hear(&[0]), ALL);
    }

    #[test]
    fn one_call_without_a_reply_says_nothing_of_a_path_that_brings_others() {
        let mut trial = Trial::new();
        for _ in 0..10 {
            assert_eq!(trial.hear(&[0, 2]), ALL);
        }
        trial.silent[0] = Some(5);
        assert_eq!(trial.hear(&[2]), ALL);
        assert_eq!(trial.hear(&[]), ALL);
    }

    #[test]
    fn all_paths_can_be_silent() {
        let mut trial = Trial::new();
        assert_eq!(trial.hear(&[0, 1]), ALL);
        trial.silent = [Some(1), Some(1), None, None];
        assert_eq!(trial.hear(&[]), [true; 4]);
        assert_eq!(trial.hear(&[3]), WITHOUT_FIRST);
    }
}
