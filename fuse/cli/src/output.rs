//! What the program writes to standard output and standard error.
//!
//! Both may be closed, a pipe that nobody reads, or a file on a full disk. Then messages are lost
//! without further effect: `println!` and `eprintln!`, which panic, are not used. A command whose
//! result is its output fails if the output cannot be written.
//!
//! Arguments, names of files and what servers say are foreign text, and a terminal obeys some of its
//! characters. So all text goes through [`plain`] here, whoever made it; only [`json`] and [`exact`]
//! have other ways to the same end. A text of several lines is written by [`result`], for which the
//! caller replaces the line breaks of foreign text.

use crate::failure::{Exit, Failure};
pub(crate) use nfsrdma_mountinfo::{is_obeyed, plain};
use std::fmt::{Display, Write as _};
use std::io::{self, IsTerminal, Write};

/// Writes a message to standard error, as one line. Errors are ignored.
pub fn message(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{}", plain(&text.to_string()));
}

/// Writes a line to standard output that is not part of the result. Errors are ignored.
pub fn notice(text: impl Display) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{}", plain(&text.to_string())).and_then(|()| out.flush());
}

/// Whether somebody still reads the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    There,
    /// The reader has closed the pipe (`| head`). This is no error, but a reason to end.
    Gone,
}

/// Writes lines of the result to standard output.
pub fn result(text: &str) -> Result<Reader, Failure> {
    write(plain_lines(text).as_bytes())
}

/// Writes JSON, with escapes for the characters that a terminal would obey. JSON has them in strings
/// only, where each may be an escape (RFC 8259 section 7).
pub fn json(text: &str) -> Result<Reader, Failure> {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match is_obeyed(c) && c != '\n' {
            // They all are in the Basic Multilingual Plane. Writing to a String does not fail.
            true => _ = write!(escaped, "\\u{:04x}", u32::from(c)),
            false => escaped.push(c),
        }
    }
    write(escaped.as_bytes())
}

/// Writes bytes that are for a file as they are, unless a terminal would get them.
pub fn exact(bytes: &[u8]) -> Result<Reader, Failure> {
    match io::stdout().is_terminal() {
        true => result(&String::from_utf8_lossy(bytes)),
        false => write(bytes),
    }
}

fn write(bytes: &[u8]) -> Result<Reader, Failure> {
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
    without_numbers(&error.to_string())
}

/// A text without the "(os error N)" of each system's error in it.
pub(crate) fn without_numbers(text: &str) -> String {
    const MARK: &str = " (os error ";
    let mut parts = text.split(MARK);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .strip_prefix(')')
        {
            Some(rest) => plain += rest,
            None => plain = plain + MARK + part,
        }
    }
    plain
}

/// [`plain`] for text that may have several lines, and tabs between its fields.
pub(crate) fn plain_lines(text: &str) -> String {
    text.replace(|c| is_obeyed(c) && !matches!(c, '\n' | '\t'), "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_left_out() {
        let error = io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(without_number(&error), "No space left on device");
        assert_eq!(without_number(&io::Error::other("x")), "x");
        let line = format!("lost: {error}: 1 (os error x) and {error}");
        let plain = "lost: No space left on device: 1 (os error x) and No space left on device";
        assert_eq!(without_numbers(&line), plain);
    }

    #[test]
    fn lines_and_tabs_stay() {
        assert_eq!(plain_lines("a\n\u{9b}b\r\n"), "a\n?b?\n");
    }
}
