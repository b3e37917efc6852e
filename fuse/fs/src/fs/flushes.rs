//! Which flush of a file does the work, where several are under way.
//!
//! close(2), fsync(2) and stat(2) of a dirty file each need all of its data at the server. A flush asks
//! what to do next whenever a WRITE has ended. If each of N callers did that, M WRITEs would cost N times
//! M turns: thousands of processes that close or look at one file with many small pieces would occupy the
//! threads that everybody's calls need. So one flush leads, and the others with the same goal wait for its
//! end. That has brought all of their data to the server as well, because programs' writes wait as long as
//! any flush is under way.

/// The flushes of a file with one goal.
#[derive(Debug, Default, Clone, Copy)]
struct Flush {
    /// One leads.
    led: bool,
    /// How many have reached the goal.
    done: u64,
}

/// The flushes of a file: those that only write, and those that also commit.
#[derive(Debug, Default)]
pub(super) struct Flushes([Flush; 2]);

/// What a flush has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The work; finally call [`Flushes::end`].
    Lead,
    /// Ask again when the one that leads has ended, with this number.
    Wait(u64),
    /// Nothing: another one has reached the goal since the first call.
    Done,
}

impl Flushes {
    /// The part of a flush, which commits or not. `since`: the number in the last answer.
    pub(super) fn part(&mut self, commit: bool, since: Option<u64>) -> Part {
        let flush = &mut self.0[usize::from(commit)];
        if since.is_some_and(|since| flush.done > since) {
            return Part::Done;
        }
        match std::mem::replace(&mut flush.led, true) {
            false => Part::Lead,
            true => Part::Wait(since.unwrap_or(flush.done)),
        }
    }

    /// The one that leads has ended. `reached`: it has reached the goal, and was not given up.
    pub(super) fn end(&mut self, commit: bool, reached: bool) {
        let flush = &mut self.0[usize::from(commit)];
        flush.led = false;
        flush.done += u64::from(reached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_leads_and_the_others_wait_until_it_has_reached_the_goal() {
        let mut flushes = Flushes::default();
        assert_eq!(flushes.part(true, None), Part::Lead);
        assert_eq!(flushes.part(true, None), Part::Wait(0));
        assert_eq!(flushes.part(false, None), Part::Lead, "another goal");
        flushes.end(true, true);
        assert_eq!(flushes.part(true, Some(0)), Part::Done);
        // Who comes later may have written in between.
        assert_eq!(flushes.part(true, None), Part::Lead);
        assert_eq!(flushes.part(true, None), Part::Wait(1));
        flushes.end(true, false);
        assert_eq!(flushes.part(true, Some(1)), Part::Lead, "it was given up");
        assert_eq!(flushes.part(true, Some(1)), Part::Wait(1));
    }
}
