//! A context.

use super::mechanism::Protection;
use super::window::Window;
use crate::fs::Identity;
use parking_lot::Mutex;
use std::fmt;
use std::time::{Duration, Instant};

/// An established context.
pub(super) struct Context {
    pub(super) protection: Box<dyn Protection>,
    pub(super) window: Mutex<Window>,
    pub(super) who: Identity,
    /// Whose it is, without the realm.
    pub(super) principal: String,
    until: Option<Instant>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context(uid {})", self.who.uid)
    }
}

impl Context {
    pub(super) fn new(
        protection: Box<dyn Protection>,
        who: Identity,
        principal: String,
        until: Option<Instant>,
    ) -> Self {
        Context {
            protection,
            window: Mutex::default(),
            who,
            principal,
            until,
        }
    }

    /// Whether it has expired for a server whose clock is so far ahead.
    pub(super) fn has_expired(&self, ahead: Duration) -> bool {
        self.until
            .is_some_and(|until| Instant::now() + ahead >= until)
    }
}
