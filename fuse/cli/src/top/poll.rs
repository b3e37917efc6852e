//! Asks the serving processes for statistics, without blocking the caller.

use super::model::Model;
use crate::stats::mount_list::{self, ListedMount, Target};
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long a thread waits for an answer. It may be long, because nothing waits for the thread.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Most threads that wait for an answer. Further processes are asked in a later round.
const MOST_WAITING: usize = 64;

type Answer = (Target, Option<ListedMount>);

/// The threads that ask, one for each process. A process is not asked again before it has answered
/// or its time limit is over.
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
    /// Lists the mounts, and asks those that are `wanted`.
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
                // This fails only while the program is ending.
                let _ = sender.send((target, answer));
            });
            if started.is_ok() {
                self.waiting.insert(asked);
            }
        }
        Ok(targets)
    }

    /// Passes the answers that have arrived to the model. Returns false if there are none.
    pub(super) fn take(&mut self, model: &mut Model) -> bool {
        let mut some = false;
        while let Ok(answer) = self.answers.try_recv() {
            self.give(answer, model);
            some = true;
        }
        some
    }

    /// Waits until all have answered, but at most `limit`.
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

/// Whether the user asked for `target`.
pub(super) fn is_wanted(target: &Target, only: &[PathBuf]) -> bool {
    match target {
        Target::Mounted(mount) => only.is_empty() || only.contains(&mount.dir),
        Target::Pending(_) => only.is_empty(),
    }
}
