//! Which files are written back because they have been dirty for too long
//! ([`tick`](super::Fs::tick)).
//!
//! A sweep writes back the files that are due, some at the same time, and as long as it makes
//! progress it is the only one. A file whose WRITE or COMMIT does not end, for example because the
//! server keeps answering NFS3ERR_JUKEBOX, must not keep the others from being written. So if no
//! file was finished between two ticks, another sweep begins, which takes the files that no sweep
//! is writing back.

use std::collections::HashSet;

/// The most sweeps at the same time.
const MOST: usize = 16;

/// The sweeps of one file system.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    running: usize,
    /// A file was finished since the last tick.
    progress: bool,
    /// The files that are being written back.
    under_way: HashSet<u64>,
}

impl Sweeps {
    /// A tick found the files `due`. Returns true if a sweep has to begin; [`Sweeps::end`] ends it.
    pub(super) fn begin(&mut self, due: impl IntoIterator<Item = u64>) -> bool {
        let stuck = !std::mem::take(&mut self.progress);
        let begins = (self.running == 0 || (stuck && self.running < MOST))
            && due.into_iter().any(|file| !self.under_way.contains(&file));
        self.running += usize::from(begins);
        begins
    }

    /// A sweep takes a file; false if another sweep is writing it back.
    pub(super) fn start(&mut self, file: u64) -> bool {
        self.under_way.insert(file)
    }

    /// The file is written back, or its writers have the error.
    pub(super) fn finish(&mut self, file: u64) {
        self.under_way.remove(&file);
        self.progress = true;
    }

    pub(super) fn end(&mut self) {
        self.running -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sweep_at_a_time_while_it_makes_progress() {
        let mut sweeps = Sweeps::default();
        assert!(!sweeps.begin([]));
        assert!(sweeps.begin([1, 2, 3]));
        assert!(sweeps.start(1) && sweeps.start(2));
        sweeps.finish(1);
        assert!(!sweeps.begin([2, 3]), "it has finished one");
        sweeps.finish(2);
        sweeps.end();
        assert!(sweeps.begin([3]));
    }

    #[test]
    fn a_stuck_file_does_not_keep_the_others_from_being_written() {
        let mut sweeps = Sweeps::default();
        assert!(sweeps.begin([1, 2]));
        assert!(sweeps.start(1));
        assert!(sweeps.begin([1, 2]), "nothing was finished");
        assert!(!sweeps.start(1) && sweeps.start(2));
        sweeps.finish(2);
        sweeps.end();
        assert!(!sweeps.begin([1]), "nobody else is due");
        for file in 2..=16 {
            assert!(sweeps.begin([1, file]) || sweeps.begin([1, file]));
            assert!(sweeps.start(file));
        }
        assert!(
            !sweeps.begin([17]) && !sweeps.begin([17]),
            "there is a limit"
        );
    }
}
