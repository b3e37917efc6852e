//! The command `top`: shows all mounts on a screen that it redraws, or as plain text.
//!
//! [`poll`] asks the serving processes, each on a thread of its own, so that a hanging one does not
//! delay others. [`model`] keeps the answers and the changes between them, without I/O. [`view`]
//! draws the model into a frame of ratatui, and [`plain`](model::Model::block) formats it as text.
//! [`screen`] handles the terminal.

mod columns;
mod model;
mod poll;
mod screen;
#[cfg(test)]
mod tests;
mod users;
mod view;

use crate::cli::TopArgs;
use crate::failure::Failure;
use crate::ipc::client;
use crate::mounts;
use crate::output::{self, Reader};
use crate::stats::mount_list::{ListedMount, no_table};
use model::Model;
use poll::{Poll, is_wanted};
use std::io::{IsTerminal, stdin, stdout};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use users::Users;

pub(super) fn run(args: &TopArgs) -> Result<(), Failure> {
    // A directory that is not a mount now is an error. Later, mounts may come and go.
    let mut only = Vec::new();
    for dir in &args.dirs {
        client::mount(dir)?;
        only.push(mounts::resolve(dir).unwrap_or_else(|_| dir.clone()));
    }
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if args.batch || dumb || !stdout().is_terminal() || !stdin().is_terminal() {
        return text(args, &only);
    }
    screen::run(args, &only)
}

/// Prints a block after each interval. The first answers are only the base for the rates of the
/// first block.
fn text(args: &TopArgs, only: &[PathBuf]) -> Result<(), Failure> {
    let delay = args.intervals.delay();
    let (mut poll, mut model) = (Poll::default(), Model::new(delay));
    let mut users = Users::default();
    let mut blocks = 0;
    let mut due = Instant::now();
    loop {
        let targets = poll
            .look(|target| is_wanted(target, only))
            .map_err(no_table)?;
        model.listed(&targets, Instant::now());
        users.take(&mut model, Instant::now());
        if args.users {
            let rows = (0..model.rows.len()).filter_map(|row| model.mount(row));
            users.watch(&rows.take(users::MOST).collect::<Vec<_>>(), Instant::now());
        }
        // Most processes answer at once, and others are not waited for.
        poll.wait(&mut model, delay.min(Duration::from_secs(1)));
        if model.rounds() > 1 {
            if output::result(&model.block(Instant::now()))? == Reader::Gone {
                return Ok(());
            }
            blocks += 1;
        }
        if args.intervals.are_over(blocks) {
            return Ok(());
        }
        due += delay;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Formats the blocks of `stats --watch` without a directory.
#[derive(Debug, Default)]
pub(super) struct Plain(Option<Model>);

impl Plain {
    /// Whether no block was made yet.
    pub(super) fn is_new(&self) -> bool {
        self.0.is_none()
    }

    /// A block with the changes since the last block.
    pub(super) fn block(&mut self, found: &[ListedMount], now: Instant) -> String {
        let model = self.0.get_or_insert_with(|| Model::new(Duration::ZERO));
        model.found(found, now);
        model.block(now)
    }
}
