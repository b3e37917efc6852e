//! The terminal: switches it to the alternate screen, and always restores it.
//!
//! ratatui's panic hook restores it before the message of a panic is printed. Signals that end the
//! program only set a flag: the loop ends, the terminal is restored, and then the signal has its
//! usual effect, so that the parent process sees it.
//!
//! When the terminal is closed, the program ends. crossterm would retry its read for ever, so this
//! module waits for keys by poll(2), which reports the end of the terminal.

use super::model::Model;
use super::poll::{Poll, is_wanted};
use super::users::Users;
use super::view::{Detail, View};
use crate::cli::TopArgs;
use crate::failure::{Exit, Failure};
use crate::stats::mount_list::no_table;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::low_level::{emulate_default_handler, raise};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

/// The longest time until a key, a signal or an answer is noticed.
const TICK: Duration = Duration::from_millis(100);

/// The state of the program while it has the terminal.
pub(super) struct Session {
    pub(super) terminal: DefaultTerminal,
}

impl Session {
    pub(super) fn begin() -> io::Result<Session> {
        let terminal = ratatui::try_init().inspect_err(|_| give_back())?;
        Ok(Session { terminal })
    }
}

/// Waits for a key, a signal or the next tick. False if the terminal at standard input was closed.
fn wait_for_key() -> bool {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let tick = Timespec::try_from(TICK).unwrap_or_default();
    let closed = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    match poll(&mut fds, Some(&tick)) {
        Ok(_) => !fds[0].revents().intersects(closed),
        // poll(2) was interrupted by a signal.
        Err(_) => true,
    }
}

fn give_back() {
    // This fails if the terminal is gone, and then nothing needs to be restored.
    let _ = ratatui::try_restore();
}

impl Drop for Session {
    fn drop(&mut self) {
        give_back();
    }
}

/// The action of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    Suspend,
    Show(Detail),
    Up,
    Down,
}

pub(super) fn action(key: KeyEvent) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c') if control => Action::Quit,
        KeyCode::Char('z') if control => Action::Suspend,
        KeyCode::Char('q' | 'Q') => Action::Quit,
        KeyCode::Char('p' | 'P') => Action::Show(Detail::Procedures),
        KeyCode::Char('u' | 'U') => Action::Show(Detail::Users),
        KeyCode::Char('c' | 'C') => Action::Show(Detail::Connections),
        KeyCode::Char('s' | 'S') | KeyCode::Esc => Action::Show(Detail::Minute),
        KeyCode::Up | KeyCode::Char('k') => Action::Up,
        KeyCode::Down | KeyCode::Char('j') => Action::Down,
        _ => return None,
    })
}

impl View {
    /// Returns false if the program should end.
    fn obey(&mut self, action: Action) -> bool {
        match action {
            Action::Quit => return false,
            Action::Suspend => {}
            // The same key again switches back to the sparklines.
            Action::Show(detail) if detail == self.detail => self.detail = Detail::Minute,
            Action::Show(detail) => self.detail = detail,
            Action::Up => self.selected = self.selected.saturating_sub(1),
            // The next draw limits it to the last row.
            Action::Down => self.selected = self.selected.saturating_add(1),
        }
        true
    }
}

/// Runs `top` on a terminal.
pub(super) fn run(args: &TopArgs, only: &[PathBuf]) -> Result<(), Failure> {
    let broken = |error: io::Error| {
        Failure::new(
            Exit::System,
            format!("cannot use the terminal: {error}; 'nfsrdma top -b' prints plain text"),
        )
    };
    let signalled = Arc::new(AtomicUsize::new(0));
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
        let number = usize::try_from(signal).unwrap_or(0);
        signal_hook::flag::register_usize(signal, signalled.clone(), number).map_err(broken)?;
    }
    let ended = watch(args, only, &signalled, broken);
    // The terminal has been restored.
    if let Ok(signal @ 1..) = i32::try_from(signalled.load(Relaxed)) {
        let _ = emulate_default_handler(signal);
    }
    ended
}

/// Runs until a key or a signal ends it, or until the mounts were asked `--count` times.
fn watch(
    args: &TopArgs,
    only: &[PathBuf],
    signalled: &AtomicUsize,
    broken: impl Fn(io::Error) -> Failure + Copy,
) -> Result<(), Failure> {
    let delay = args.intervals.delay();
    let mut session = Session::begin().map_err(broken)?;
    let (mut poll, mut model, mut view) = (Poll::default(), Model::new(delay), View::default());
    let mut users = Users::default();
    if args.users {
        view.detail = Detail::Users;
    }
    let begun = Instant::now();
    let (mut due, mut shown, mut changed) = (begun, None, false);
    while signalled.load(Relaxed) == 0 {
        let now = Instant::now();
        if now >= due {
            if args.intervals.are_over(model.rounds().saturating_sub(1)) {
                break;
            }
            let targets = poll
                .look(|target| is_wanted(target, only))
                .map_err(no_table)?;
            model.listed(&targets, now);
            users.take(&mut model, now);
            changed = true;
            due = now + delay;
        }
        // Nobody's calls are counted unless the users are shown.
        let of = model
            .mount(view.selected)
            .filter(|_| view.detail == Detail::Users);
        users.watch(of.as_slice(), now);
        // Redraw every second for the clock in the heading.
        let tick = now.saturating_duration_since(begun).as_secs();
        if poll.take(&mut model) || std::mem::take(&mut changed) || shown != Some(tick) {
            shown = Some(tick);
            let drawn = session
                .terminal
                .draw(|frame| view.draw(frame, &model, Instant::now(), SystemTime::now()));
            drawn.map_err(broken)?;
        }
        if !wait_for_key() {
            break;
        }
        // This also fetches a change of size, which crossterm learns of by a signal.
        if !event::poll(Duration::ZERO).map_err(broken)? {
            continue;
        }
        changed = true;
        // A change of size only needs another draw.
        if let Event::Key(key) = event::read().map_err(broken)?
            && let Some(action) = action(key)
        {
            if action == Action::Suspend {
                drop(session);
                let _ = raise(SIGTSTP);
                session = Session::begin().map_err(broken)?;
            } else if !view.obey(action) {
                break;
            }
        }
    }
    Ok(())
}
