//! Formats text as man(7) source.

/// Escapes text without markup, for any position in a line.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            // A plain '-' is a hyphen, and a plain '\'' a quotation mark (groff_char(7)).
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            c => out.push(c),
        }
    }
    out
}

/// A separate line. A dot at its beginning must not be taken for a request.
fn line(text: String) -> String {
    match text.chars().next() {
        Some('.') => format!("\\&{text}\n"),
        _ => format!("{text}\n"),
    }
}

/// Prose with code in backquotes, as one input line.
pub(crate) fn prose(text: &str) -> String {
    let mut out = String::new();
    for (index, part) in text.split('`').enumerate() {
        match index % 2 {
            // A hyphen in prose stays a hyphen.
            0 => out.push_str(&escape(part).replace("\\-", "-")),
            _ => out.push_str(&format!("\\fB{}\\fR", escape(part))),
        }
    }
    line(out)
}

/// An entry of a list: its tag, which already has markup, and its text.
pub(crate) fn entry(tag: &str, text: &str) -> String {
    format!(".TP\n{}{text}", line(tag.into()))
}

/// A section within a section.
pub(crate) fn subsection(title: &str) -> String {
    format!(".SS \"{}\"\n", escape(title).replace('"', "\\(dq"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_taken_for_a_request() {
        assert_eq!(prose(".so /etc/passwd"), "\\&.so /etc/passwd\n");
        assert_eq!(prose("'x"), "\\(aqx\n");
        assert_eq!(prose("a-b `c-d\\e`"), "a-b \\fBc\\-d\\ee\\fR\n");
        assert_eq!(entry(".x", "y\n"), ".TP\n\\&.x\ny\n");
    }
}
