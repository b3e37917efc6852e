//! Which of the calls that match are to fail on command: `WHAT[:COUNT][/EVERY]`.

/// Which of the matching calls it is the turn of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turns {
    /// The number of calls whose turn is still to come.
    count: u64,
    /// Of the matching calls, only each one whose number is a multiple of this has a turn.
    every: u64,
    /// The number of matching calls since the last one that had.
    passed: u64,
}

impl Turns {
    /// Parses the end of a text. Also returns what stands before it.
    pub(super) fn parse(text: &str) -> Result<(&str, Self), String> {
        let (what, every) = match text.split_once('/') {
            Some((what, every)) => match every.parse() {
                Ok(every) if every > 0 => (what, every),
                _ => return Err("EVERY is a number from 1 on".into()),
            },
            None => (text, 1),
        };
        let (what, count) = match what.split_once(':') {
            Some((what, count)) => (what, count.parse().map_err(|_| "COUNT is a number")?),
            None => (what, u64::MAX),
        };
        let turns = Turns {
            count,
            every,
            passed: 0,
        };
        Ok((what, turns))
    }

    /// Whether some are still to come.
    pub(super) fn remain(&self) -> bool {
        self.count > 0
    }

    /// A call matches. Returns whether it is its turn.
    pub(super) fn come(&mut self) -> bool {
        self.passed += 1;
        if self.passed < self.every {
            return false;
        }
        self.passed = 0;
        // Without a count they last for ever.
        if self.count != u64::MAX {
            self.count -= 1;
        }
        true
    }
}
