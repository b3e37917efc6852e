//! The line that `mount` prints.

use crate::options::mount_source::MountSource;
use nfsrdma_nfs3::Description;
use std::path::Path;

/// The width of a terminal, in columns.
const COLUMNS: usize = 80;

/// The summary: what was mounted and how, as far as one line of a terminal has room. The log and
/// `-v` show the rest.
pub(crate) fn line(spec: &MountSource, dir: &Path, what: &Description) -> String {
    let Description {
        provider,
        server,
        rsize,
        wsize,
        ..
    } = what;
    first_that_fits(
        &format!("{spec} mounted on {}: ", dir.display()),
        [
            format!("{provider} at {server}, rsize {rsize}, wsize {wsize}"),
            format!("{provider}, rsize {rsize}, wsize {wsize}"),
            (*provider).to_owned(),
        ],
    )
}

/// Joins `head` and the first of `tails` with which it fits on a line, or else the last one.
fn first_that_fits(head: &str, tails: [String; 3]) -> String {
    let room = COLUMNS.saturating_sub(head.chars().count());
    let fits = tails.iter().find(|tail| tail.chars().count() <= room);
    format!("{head}{}", fits.unwrap_or(&tails[2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fits_a_terminal() {
        let tails = || ["x".repeat(50), "y".repeat(20), "z".into()];
        for (head, tail) in [(30, 'x'), (31, 'y'), (60, 'y'), (61, 'z'), (90, 'z')] {
            let line = first_that_fits(&"h".repeat(head), tails());
            assert!(line.ends_with(tail), "{line}");
            assert!(line.len() <= COLUMNS || head >= COLUMNS, "{line}");
        }
    }
}
