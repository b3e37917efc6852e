//! What the program writes to standard output and standard error.
//!
//! Both may be closed, a pipe that nobody reads, or a file on a full disk. Then messages are lost
//! without further effect: `println!` and `eprintln!`, which panic, are not used. A command whose
//! result is its output fails if the output cannot be written.

use crate::failure::{Exit, Failure};
use std::fmt::Display;
use std::io::{self, Write};

/// Writes a message to standard error. Errors are ignored.
pub fn message(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes a line to standard output that is not part of the result. Errors are ignored.
pub fn notice(text: impl Display) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Whether somebody still reads the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    There,
    /// The reader has closed the pipe (`| head`). This is no error, but a reason to end.
    Gone,
}

/// Writes a part of the result to standard output.
pub fn result(bytes: &[u8]) -> Result<Reader, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failure::new(
            Exit::System,
            format!(
                "cannot write to standard output: {}; redirect it elsewhere",
                without_number(&error)
            ),
        )),
    }
}

/// The system's text of an error, without "(os error N)".
pub fn without_number(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Replaces the control characters of foreign text, which a terminal would obey.
pub(crate) fn plain(text: &str) -> String {
    let safe = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(safe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_left_out() {
        let error = io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(without_number(&error), "No space left on device");
        assert_eq!(without_number(&io::Error::other("x")), "x");
    }
}
