//! A row of the table, and what the work of most rows is made of.

use crate::bound::Bound;
use crate::scale::Scale;
use anyhow::{Context, Result, bail};
use nfsrdma_test_support::Random;
use std::path::Path;
use std::time::Instant;

/// What a row does: in a directory, with so much data.
type Run = Box<dyn Fn(&Path, &Scale) -> Result<Done>>;

/// One row of the table.
pub(crate) struct Workload {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    /// Runs on a fresh mount; otherwise right after the workload before it.
    pub(crate) cold: bool,
    pub(crate) bound: Bound,
    pub(crate) run: Run,
}

impl Workload {
    /// Whether `name` names this row, in whichever size.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.name == name || self.name.split('@').next() == Some(name)
    }
}

/// What a row's figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    MegabytesPerSecond,
    PerSecond,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unit::MegabytesPerSecond => "MB/s",
            Unit::PerSecond => "/s",
        }
    }
}

/// Work done and the time it took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Done {
    /// Bytes or operations.
    pub(crate) amount: u64,
    pub(crate) seconds: f64,
}

pub(super) fn row(
    name: &str,
    unit: Unit,
    cold: bool,
    bound: Bound,
    run: impl Fn(&Path, &Scale) -> Result<Done> + 'static,
) -> Workload {
    Workload {
        name: name.to_owned(),
        unit,
        cold,
        bound,
        run: Box::new(run),
    }
}

pub(super) fn timed(work: impl FnOnce() -> Result<u64>) -> Result<Done> {
    let begin = Instant::now();
    let amount = work()?;
    Ok(Done {
        amount,
        seconds: begin.elapsed().as_secs_f64(),
    })
}

/// Offsets of `count` different pages of a file of `pages` pages, in no order, the same each
/// time.
pub(super) fn pages(count: usize, pages: u64) -> impl Iterator<Item = u64> {
    let mut all: Vec<u64> = (0..pages).collect();
    let mut random = Random::new(1);
    let count = count.min(all.len());
    for n in 0..count {
        let other = n + random.below(all.len() - n);
        all.swap(n, other);
    }
    all.truncate(count);
    all.into_iter().map(|page| page * 4096)
}

/// The first line of what a program complained of, and how many more there were: tar has one for
/// each file.
fn first_line(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let mut lines = said.lines();
    let first = lines.next().unwrap_or("no message");
    match lines.count() {
        0 => first.to_owned(),
        more => format!("{first} (and {more} more lines)"),
    }
}

pub(super) fn program(dir: &Path, name: &str, arguments: &[&str]) -> Result<()> {
    let output = std::process::Command::new(name)
        .args(arguments)
        .current_dir(dir)
        .output()
        .with_context(|| format!("running {name}"))?;
    if output.status.success() {
        return Ok(());
    }
    bail!(
        "{name} ended with {}: {}",
        output.status,
        first_line(&output.stderr)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_takes_one_line() {
        assert_eq!(first_line(b""), "no message");
        assert_eq!(first_line(b"tar: no\n"), "tar: no");
        let said = b"tar: no\ntar: nor this\ntar: exiting\n";
        assert_eq!(first_line(said), "tar: no (and 2 more lines)");
    }
}
