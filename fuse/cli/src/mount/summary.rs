//! The line that `mount` prints.

use crate::options::mount_source::MountSource;
use nfsrdma_nfs3::Description;
use std::path::Path;

/// Columns of a terminal.
const COLUMNS: usize = 80;

/// What was mounted how, as far as there is room for it in one line of a terminal. The log, and
/// `-v`, have the rest.
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

/// `head` and the first of `tails` with which it fits a line, else the last.
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
