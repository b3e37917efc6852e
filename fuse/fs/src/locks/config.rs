//! Which locks are taken at the server, and how long a program waits for an answer.

use super::error::LockError;
use std::time::Duration;

/// The pause after a call without an answer grows from the first to the last.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// Which locks are taken at the server (`local_lock=` excludes some).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinds {
    pub posix: bool,
    pub flock: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct LockConfig {
    pub kinds: Kinds,
    /// How long a call is repeated for a process (`soft`, `softerr`), and whether it then fails
    /// with ETIMEDOUT instead of EIO; `None`: for ever (`hard`).
    pub patience: Option<(Duration, bool)>,
}

impl LockConfig {
    /// Does `work`, on a `soft` mount no longer than it repeats a call.
    pub(super) async fn patiently<T>(
        &self,
        work: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        match self.patience {
            None => work.await,
            Some((limit, timed_out)) => tokio::time::timeout(limit, work)
                .await
                .unwrap_or(Err(given_up(timed_out))),
        }
    }
}

/// The error for a call that is not repeated any longer.
pub(super) fn given_up(timed_out: bool) -> LockError {
    match timed_out {
        true => LockError::TimedOut,
        false => LockError::GivenUp,
    }
}

/// The pauses between attempts, and the limit of a `soft` mount.
#[derive(Debug)]
pub(super) struct Retry {
    pause: Duration,
    since: tokio::time::Instant,
}

impl Default for Retry {
    fn default() -> Self {
        Retry {
            pause: FIRST_RETRY,
            since: tokio::time::Instant::now(),
        }
    }
}

impl Retry {
    /// The next pause.
    pub(super) fn next(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(LAST_RETRY);
        pause
    }

    /// Fails if a `soft` mount has waited long enough.
    pub(super) fn check(&self, config: &LockConfig) -> Result<(), LockError> {
        match config.patience {
            Some((limit, timed_out)) if self.since.elapsed() >= limit => Err(given_up(timed_out)),
            _ => Ok(()),
        }
    }
}
