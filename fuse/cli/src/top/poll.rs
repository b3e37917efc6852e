//! Asks the serving processes without waiting for them.

use super::model::Model;
use crate::stats::mount_list::{self, ListedMount, Target};
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// For one answer: longer than any interval should be, since nobody waits for it.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Threads that wait for an answer; who comes later is asked when there is room.
const MOST_WAITING: usize = 64;

type Answer = (Target, Option<ListedMount>);

/// Each process is asked by a thread of its own, and not again before it has answered or its time
/// is over.
#[derive(Debug)]
pub(super) struct Poll {
    waiting: HashSet<Target>,
    sender: Sender<Answer>,
    answers: Receiver<Answer>,
}

impl Default for Poll {
    fn default() -> Self {
        let (sender, answers) = channel();
        Poll {
            waiting: HashSet::new(),
            sender,
            answers,
        }
    }
}

impl Poll {
    /// Looks which mounts there are, and asks those that are `wanted`.
    pub(super) fn look(&mut self, wanted: impl Fn(&Target) -> bool) -> io::Result<Vec<Target>> {
        let mut targets = mount_list::targets()?;
        targets.retain(wanted);
        for target in &targets {
            if self.waiting.len() >= MOST_WAITING || self.waiting.contains(target) {
                continue;
            }
            let (target, sender) = (target.clone(), self.sender.clone());
            let asked = target.clone();
            let started = std::thread::Builder::new().spawn(move || {
                let answer = target.ask(ANSWER_LIMIT);
                // Nobody listens: the program is ending.
                let _ = sender.send((target, answer));
            });
            if started.is_ok() {
                self.waiting.insert(asked);
            }
        }
        Ok(targets)
    }

    /// Gives the model the answers that are there. False if there are none.
    pub(super) fn take(&mut self, model: &mut Model) -> bool {
        let mut some = false;
        while let Ok(answer) = self.answers.try_recv() {
            self.give(answer, model);
            some = true;
        }
        some
    }

    /// Waits until all have answered, and no longer than `limit`.
    pub(super) fn wait(&mut self, model: &mut Model, limit: Duration) {
        let until = Instant::now() + limit;
        while !self.waiting.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left) {
                Ok(answer) => self.give(answer, model),
                Err(_) => return,
            }
        }
    }

    fn give(&mut self, (target, answer): Answer, model: &mut Model) {
        self.waiting.remove(&target);
        model.answered(&target, answer, Instant::now());
    }
}

/// Whether `target` is one of those asked for.
pub(super) fn is_wanted(target: &Target, only: &[PathBuf]) -> bool {
    match target {
        Target::Mounted(mount) => only.is_empty() || only.contains(&mount.dir),
        Target::Pending(_) => only.is_empty(),
    }
}
