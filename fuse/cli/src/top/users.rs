//! Counts who loads the servers of the mounts whose users are shown.

use super::model::Model;
use crate::mounts::Mount;
use crate::observe::load::Watch;
use std::time::{Duration, Instant};

/// Most mounts that are watched at a time.
pub(super) const MOST: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Users {
    watched: Vec<(Mount, Watch, Instant)>,
}

impl Users {
    /// Watches these mounts, and no others.
    pub(super) fn watch(&mut self, mounts: &[&Mount], now: Instant) {
        self.watched.retain(|(mount, ..)| mounts.contains(&mount));
        for mount in mounts.iter().take(MOST) {
            if self.watched.iter().all(|(of, ..)| of != *mount) {
                self.watched
                    .push(((*mount).clone(), Watch::start(mount), now));
            }
        }
    }

    /// Gives the model what was counted since the last time.
    pub(super) fn take(&mut self, model: &mut Model, now: Instant) {
        for (mount, watch, since) in &mut self.watched {
            let time = now.saturating_duration_since(*since);
            if time > Duration::ZERO {
                model.loaded(mount, watch.take(), time);
                *since = now;
            }
        }
    }
}
